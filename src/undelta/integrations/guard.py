"""Guarding a client's own updates: measured before they leave, and kept back if they reveal too much, or on any doubt.

A guard fails closed: an update that cannot be measured stays. What it lets through has resisted one attack with these
settings, and no more than that. Frameworks (`flower`, `nvflare`) hand over two states and act on the answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from undelta.attacker.resolution import fit_of
from undelta.client.private import Private
from undelta.engine import MEMORY
from undelta.errors import ConfigError, DataError
from undelta.observation import ImageSpec, Observation
from undelta.observation.assemble import Missing, observe, training_from
from undelta.observation.file import digest_of
from undelta.schema import parse
from undelta.trials.config import make_attack
from undelta.trials.gates import apply_gates, parse_gates
from undelta.trials.judgment import judge_records
from undelta.trials.record import COMPLETED, Record, describe_observation, with_result
from undelta.trials.trial import Recorded, Trial, evaluate, scored

WITHHELD = "undelta: the owner of the data keeps this update back"
"""All that a server is told; why is in the client's own log."""


MOST_NUMBERS, MOST_LETTERS = 100, 2000
"""What may leave beside an update without a look; more could be an image in other clothes."""


def is_small(value: object) -> bool:
    """Whether something is made of a few numbers and words, all in all.

    Examples:
        >>> is_small({"accuracy": 0.5, "site": "a"}), is_small({"losses": [[0.5] * 20] * 20})
        (True, False)
    """
    parts = list(_parts(value))
    if not all(isinstance(part, str | bytes | int | float | np.number | np.bool_ | None) for part in parts):
        return False
    letters = sum(len(part) for part in parts if isinstance(part, str | bytes))
    return len(parts) <= MOST_NUMBERS and letters <= MOST_LETTERS and all(map(_is_short, parts))


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _parts(key)
            yield from _parts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item)
    else:
        yield value


def _is_short(part: object) -> bool:
    """No whole number of a thousand digits."""
    return not isinstance(part, int) or part.bit_length() <= 64


class Guard:
    """Attacks an update before it is sent, and says whether it must stay.

    Without bounds, an update stays if private images can be recognized; or, where the truth is not known, if the found
    images explain it.
    """

    def __init__(
        self,
        *,
        model: str,
        image: ImageSpec | Mapping[str, object],
        model_arguments: Mapping[str, object] | None = None,
        missing: Missing | None = None,
        attack: str = "strongest",
        arguments: Mapping[str, Any] | None = None,
        fail_above: Mapping[str, float] | None = None,
        fail_below: Mapping[str, float] | None = None,
        seed: int = 0,
        with_truth: bool,
        log: logging.Logger,
    ) -> None:
        self._gates = parse_gates(fail_above or {}, fail_below or {})
        if self._gates and not with_truth:
            raise ConfigError("expected truth beside fail_above or fail_below, got none: nothing could be compared")
        self._attack, self._arguments, self._seed = attack, dict(arguments or {}), seed
        make_attack(attack, self._arguments)  # complains now, rather than at every update
        parsed = image if isinstance(image, ImageSpec) else parse(ImageSpec, image, where="image", error=ConfigError)
        self._model: dict[str, Any] = {
            "model": model,
            "model_arguments": model_arguments,
            "image": parsed,
            "missing": missing,
        }
        self._truth, self._log = with_truth, log

    def stays(
        self,
        name: str,
        before: Mapping[str, Tensor],
        after: Mapping[str, Tensor],
        *,
        settings: Mapping[str, object],
        num_samples: int,
        private: Private | None,
    ) -> bool:
        """Whether the update must stay; raises on anything that keeps it from being measured (see `blocks`)."""
        start = time.monotonic()
        training, unknown, notes = training_from(settings, num_samples)
        observation, more = observe(
            before,
            after,
            **self._model,
            training=training,
            num_samples=num_samples,
            unknown=unknown,
            names=("what was sent", "what would be returned"),
        )
        for note in (*notes, *more):
            self._log.info(f"undelta: {name}: {note}")
        record = self._measure(observation, private)
        reason = self._reason(record)
        seconds = f"{time.monotonic() - start:.1f} s of {self._attack}"
        if reason is None:
            self._log.info(f"undelta: {name} is sent: {seconds} found nothing that keeps it here")
        else:
            self._log.warning(f"undelta: {name} stays here ({seconds}): {reason}")
        return reason is not None

    def blocks(self, name: str, problem: BaseException) -> None:
        """Say why an update stays that could not be measured."""
        why = " ".join(str(problem).split()) or type(problem).__name__
        self._log.warning(f"undelta: {name} stays here, since it could not be measured: {why}")

    def _measure(self, observation: Observation, private: Private | None) -> Record:
        if self._truth and private is None:
            raise DataError("expected the truth that this guard compares with, got none")
        if private is not None and len(private) != observation.num_samples:
            raise DataError(f"expected the truth of {observation.num_samples} images, got {len(private)}")
        found = make_attack(self._attack, self._arguments)(observation, seed=self._seed)
        source = Recorded(observation="", digest=digest_of(observation), about=describe_observation(observation))
        trial = Trial(scenario=source, attack=self._attack, arguments=self._arguments, seed=self._seed)
        record = with_result(trial.unmeasured(), found, observation, fit_of(found, observation, MEMORY))
        return record if private is None else scored(record, found, private, evaluate(found, private, None))

    def _reason(self, record: Record) -> str | None:
        """Why the update stays; None if it may go."""
        if record.status != COMPLETED:
            return f"the attack ended as {record.status}"
        (verdict,) = judge_records([record]).verdicts
        if self._gates:
            gated = apply_gates([verdict], self._gates)
            return "; ".join(gated.offenses) if gated and not gated.passed else None
        return None if verdict.level == "attack failed" else verdict.text
