"""Gates for continuous integration: bounds that no scenario may pass, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from undelta.errors import ConfigError
from undelta.evaluation.measures import METRICS, QUALITIES
from undelta.schema import unknown
from undelta.trials.diagnosis import MEANINGS
from undelta.trials.verdict import Verdict

WORTH: dict[str, float] = {"ssim": 1.0, "psnr": 100.0, "fraction_recovered": 1.0, "lpips": 0.0, "mse": 0.0}
"""What a perfect reconstruction has; a bound there, or beyond, would let everything through."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A bound that no trial may pass."""

    metric: str
    bound: float
    above: bool

    def passed_by(self, value: float) -> bool:
        """Whether a value is on the wrong side."""
        return value > self.bound if self.above else value < self.bound

    @property
    def text(self) -> str:
        return f"{self.metric} {'at most' if self.above else 'at least'} {self.bound:g}"


@dataclass(frozen=True, kw_only=True)
class Gated:
    """What came of the gates of an audit."""

    passed: bool
    rules: tuple[str, ...]
    offenses: tuple[str, ...]
    """A line for each scenario and rule that it broke."""
    unproven: tuple[str, ...] = ()
    """Scenarios that broke no rule only because no attack worked."""

    @property
    def text(self) -> str:
        rules = ", ".join(self.rules)
        if not self.passed:
            return f"Gate failed ({rules})."
        if self.unproven:
            return (
                f"Gate passed ({rules}), but no attack worked on {', '.join(self.unproven)}, which says nothing about "
                "safety; with --fail-closed this fails."
            )
        return f"Gate passed ({rules})."


def parse_gates(above: Mapping[str, Any], below: Mapping[str, Any]) -> list[Gate]:
    """The bounds of ``--fail-above`` and ``--fail-below``."""
    gates = []
    for option, is_above, values in (("--fail-above", True, above), ("--fail-below", False, below)):
        for metric, bound in values.items():
            if metric not in QUALITIES:
                known = [key for key in QUALITIES if METRICS[key].rises is is_above]
                raise ConfigError(f"{option}: {unknown('metric', metric, known)}")
            if METRICS[metric].rises is not is_above:
                larger, other = ("smaller", "--fail-below") if is_above else ("larger", "--fail-above")
                raise ConfigError(f"{option} {metric}: a {larger} {metric} is worse; use {other} {metric}={bound}")
            if isinstance(bound, bool) or not isinstance(bound, int | float) or not abs(bound) < float("inf"):
                raise ConfigError(f"{option} {metric}: expected a number, got {bound!r}")
            least, most = _range(metric)
            if not (least <= bound < most if is_above else least < bound <= most):
                expected = f"{least:g} <= {metric} < {most:g}" if is_above else f"{least:g} < {metric} <= {most:g}"
                raise ConfigError(f"{option} {metric}: expected {expected}, got {bound:g}, which nothing could fail")
            gates.append(Gate(metric=metric, bound=float(bound), above=is_above))
    return gates


def _range(metric: str) -> tuple[float, float]:
    return (0.0, WORTH[metric]) if METRICS[metric].rises else (WORTH[metric], 1.0)


def apply_gates(verdicts: Sequence[Verdict], gates: Sequence[Gate], *, closed: bool = False) -> Gated | None:
    """What the gates say; None without any. A metric that was not measured does not pass.

    ``closed`` gates are passed only where something is known: by a scenario that resisted an attack which works, and by
    one that leaks within the bounds of other gates, if there are some.
    """
    if not gates and not closed:
        return None
    rules = [gate.text for gate in gates] + (["an attack known to work"] if closed else [])
    lines = []
    for verdict in verdicts:
        for gate in gates:
            value = verdict.worst[gate.metric]
            if value is None:
                lines.append(f"{verdict.title}: {gate.metric} was not measured, so the gate cannot be passed")
            elif gate.passed_by(value):
                side = "above" if gate.above else "below"
                lines.append(f"{verdict.title}: {gate.metric} {value:.4g} is {side} {gate.bound:g}")
    unproven = [verdict for verdict in verdicts if verdict.level not in ("leaks", "resisted")]
    if closed:
        known = ("leaks", "resisted") if gates else ("resisted",)
        refused = [verdict for verdict in verdicts if verdict.level not in known]
        lines += [f"{verdict.title}: {verdict.level}. {MEANINGS[verdict.level]}" for verdict in refused]
    return Gated(
        passed=not lines,
        rules=tuple(rules),
        offenses=tuple(lines),
        unproven=tuple(verdict.title for verdict in unproven),
    )
