"""What an audit's numbers mean, in plain words, and whether they pass a gate.

A verdict is about one scenario with one defense. It is the worst case over attacks and seeds, and says what it rests on
and what it does not prove. Nothing here is measured; all numbers come from records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from undelta.errors import ConfigError
from undelta.evaluation.measures import METRICS, QUALITIES
from undelta.evaluation.score import ImageScore
from undelta.schema import unknown
from undelta.trials.record import MEASURED, UNDEFENDED, UNFINISHED, Record
from undelta.trials.trial import Trial

Level = Literal["recognizable", "not recognized", "not measured"]


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """The values at which an image counts as recognizable.

    SSIM decides, since a flat grey already reaches a high PSNR on a picture of little contrast. PSNR takes its place
    where an image is too small to have an SSIM.
    """

    ssim: float = METRICS["ssim"].threshold or 0.0
    psnr: float = METRICS["psnr"].threshold or 0.0

    def __post_init__(self) -> None:
        if not 0 < self.ssim <= 1:
            raise ConfigError(f"expected 0 < ssim <= 1, got ssim={self.ssim}")
        if self.psnr <= 0:
            raise ConfigError(f"expected psnr > 0, got psnr={self.psnr}")

    def recognizes(self, image: ImageScore) -> bool:
        if image.ssim is not None:
            return image.ssim >= self.ssim
        return image.psnr is not None and image.psnr >= self.psnr


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A bound that no trial may pass, for use in continuous integration."""

    metric: str
    bound: float
    above: bool

    def passed_by(self, value: float) -> bool:
        """Whether a value is on the wrong side."""
        return value > self.bound if self.above else value < self.bound


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One scenario with one defense."""

    scenario: str
    defense: str
    level: Level | None = None
    """None: not judged, only measured."""
    text: str
    images: int | None = None
    """Of one trial."""
    recognizable: int | None = None
    """Of these, in the trial with most of them."""
    worst: dict[str, float | None] = field(default_factory=dict)
    """The worst image of all trials, per metric; for fraction_recovered the worst trial."""
    worst_trial: dict[str, Any] | None = None
    """Where most images are recognizable: key, attack, arguments, seed, iterations."""
    trials: dict[str, int] = field(default_factory=dict)
    """How many ended how."""
    thresholds: dict[str, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.scenario if self.defense == UNDEFENDED else f"{self.scenario}, {self.defense}"


def judge(trials: Sequence[Trial], records: Mapping[str, Record], thresholds: Thresholds) -> list[Verdict]:
    """A verdict per scenario and defense, in the order of the trials."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.name, trial.defense), []).append(trial)
    return [_judge_group(*names, group, records, thresholds) for names, group in groups.items()]


def _judge_group(
    scenario: str, defense: str, trials: Sequence[Trial], records: Mapping[str, Record], thresholds: Thresholds
) -> Verdict:
    found = [records.get(trial.key) for trial in trials]
    counts = dict(Counter(record.status if record else UNFINISHED for record in found))
    measured = [record for record in found if record and record.status in MEASURED and record.images]
    recognizable = {record.key: sum(map(thresholds.recognizes, record.images)) for record in measured}
    worst = {metric: _worst(metric, measured) for metric in QUALITIES}
    top = max(measured, key=lambda record: (recognizable[record.key], _likeness(record)), default=None)
    names = ("key", "attack", "arguments", "seed", "iterations")
    level: Level = "not measured"
    if top:
        level = "recognizable" if recognizable[top.key] else "not recognized"
    return Verdict(
        scenario=scenario,
        defense=defense,
        level=level,
        text=_text(top, recognizable, worst, counts, trials, thresholds),
        images=len(top.images) if top else None,
        recognizable=recognizable[top.key] if top else None,
        worst=worst,
        worst_trial={name: getattr(top, name) for name in names} if top else None,
        trials=counts,
        thresholds=asdict(thresholds),
    )


def _worst(metric: str, records: Sequence[Record]) -> float | None:
    """The value that is worst for privacy, of any image in any trial."""
    if metric == "fraction_recovered":
        values = [record.fraction_recovered for record in records]
    else:
        values = [getattr(image, metric) for record in records for image in record.images]
    known = [value for value in values if value is not None]
    if not known:
        return None
    return float(max(known) if METRICS[metric].rises else min(known))


def _likeness(record: Record) -> float:
    """Orders trials with equally many recognizable images."""
    value = _worst("ssim", [record])
    value = _worst("psnr", [record]) if value is None else value
    return -1.0 if value is None else value


def _text(
    top: Record | None,
    recognizable: Mapping[str, int],
    worst: Mapping[str, float | None],
    counts: Mapping[str, int],
    trials: Sequence[Trial],
    thresholds: Thresholds,
) -> str:
    if top is None:
        return f"Nothing was measured ({_coverage(counts)}), so nothing is known of this scenario."
    images, count = len(top.images), recognizable[top.key]
    rule = f"SSIM >= {thresholds.ssim:g}" if worst["ssim"] is not None else f"PSNR >= {thresholds.psnr:g} dB"
    numbers = [f"SSIM {worst['ssim']:.2f}"] if worst["ssim"] is not None else []
    numbers += [f"PSNR {worst['psnr']:.1f} dB"] if worst["psnr"] is not None else []
    attacks = len({(trial.attack, str(trial.arguments)) for trial in trials})
    seeds = len({trial.seed for trial in trials})
    sentences = [
        f"Recognizable: {count} of {images} images ({rule}; attack {top.attack}, {top.iterations} iterations, "
        f"seed {top.seed}).",
        f"Worst of any image: {', '.join(numbers) or 'no number, since every image diverged'}.",
        f"Worst case of {times(attacks, 'attack')} and {times(seeds, 'seed')} ({_coverage(counts)}).",
        *_diagnosis(top, images, count),
        _limits(images, count),
    ]
    return " ".join(sentences)


def _diagnosis(top: Record, images: int, count: int) -> list[str]:
    """What the floor says of the attack that came closest, unless it found everything anyway."""
    words = [f"By its own objective this attack {top.floor.text}."] if top.floor else []
    notes = [f"Note: {note}." for note in top.notes]
    return [] if count == images else [*words, *notes]


def _coverage(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{times(count, 'trial')} {status}" for status, count in counts.items())


def times(count: int, noun: str) -> str:
    """So many of something, in words."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _limits(images: int, count: int) -> str:
    if count == images:
        return "This shows leakage."
    if count:
        return "This shows leakage; it does not prove that the other images are safe."
    return (
        "This does not prove absence of leakage: these attacks, with these settings and iterations, did not succeed, "
        "but others may."
    )


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
            gates.append(Gate(metric=metric, bound=float(bound), above=is_above))
    return gates


def offenses(verdicts: Sequence[Verdict], gates: Sequence[Gate]) -> list[str]:
    """A line for every scenario and gate that it does not pass; a metric that was not measured does not pass."""
    lines = []
    for verdict in verdicts:
        for gate in gates:
            value = verdict.worst[gate.metric]
            if value is None:
                lines.append(f"{verdict.title}: {gate.metric} was not measured, so the gate cannot be passed")
            elif gate.passed_by(value):
                side = "above" if gate.above else "below"
                lines.append(f"{verdict.title}: {gate.metric} {value:.4g} is {side} {gate.bound:g}")
    return lines
