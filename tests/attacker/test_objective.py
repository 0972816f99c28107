"""An objective as a value: written down as plain values, restored, evaluated anywhere."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from undelta.attacker.attacks import ATTACKS
from undelta.attacker.attacks.gias import gias
from undelta.attacker.method import GradientMatching
from undelta.attacker.objective import Objective, Problem, decode, encode
from undelta.attacker.priors import Penalty, TotalVariation, total_variation
from undelta.attacker.replay import Replay
from undelta.attacker.replays import CoarseRollout, OneStep
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.seeding import stream

METHODS = {name: made for name, make in ATTACKS.items() if isinstance(made := make(), GradientMatching)}


@pytest.mark.parametrize("name", METHODS)
def test_every_attacks_objective_survives_json(name: str) -> None:
    written = encode(METHODS[name])
    assert written is not None
    restored = decode(json.loads(json.dumps(written)))
    for key in ("replay", "distance", "weights", "priors", "canvas", "masked"):
        assert getattr(restored, key) == getattr(METHODS[name], key)


def test_a_reconstruction_says_what_it_is_the_minimum_of(observation: Observation) -> None:
    method = GradientMatching(replay=CoarseRollout(steps=3), priors=(TotalVariation(weight=0.5),), steps=7)
    result = method(observation)
    assert result.objective is not None
    problem = Problem(decode(result.objective), observation, stream("any"))
    images = observation.image.normalize(result.images)
    value, _ = problem.value(images, result.labels)
    assert value.terms == pytest.approx(result.terms, rel=1e-4)
    assert value.terms["total_variation"] == pytest.approx(0.5 * float(total_variation(images)))
    assert result.history[-1].loss == pytest.approx(sum(result.terms.values()))
    assert value.mismatch == pytest.approx(result.mismatch, rel=1e-3)


@dataclass(frozen=True, kw_only=True)
class Brightness:
    weight: float

    def __call__(self, observation: Observation, replay: Replay) -> Penalty:
        return lambda images, labels: self.weight * images.mean().square()


def test_a_part_of_the_users_own_is_found_again(observation: Observation) -> None:
    method = GradientMatching(replay=OneStep(), priors=(Brightness(weight=2.0),), steps=1)
    written = encode(method)
    assert written is not None
    assert decode(written).priors == (Brightness(weight=2.0),)
    assert set(method(observation).terms) == {"distance", "brightness"}


def test_what_is_no_plain_value_is_not_written_down() -> None:
    generator = torch.nn.Linear(4, 64)

    class Generator(torch.nn.Module):
        def forward(self, latents: Tensor) -> Tensor:
            pictures: Tensor = generator(latents)
            return pictures

    phases = gias(generator=Generator(), dim=4).phases
    assert isinstance(phases[0], GradientMatching)
    assert encode(phases[0]) is None


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"replay": {"part": "Nonsense"}},
        {"replay": {"part": "CoarseRollout", "steps": 0}},
        {"replay": {"part": "CoarseRollout", "depth": 1}},
        {"replay": {"part": "OneStep"}, "distance": {"function": "eval"}},
        {"replay": {"part": "OneStep"}, "unknown": 1},
    ],
)
def test_what_encode_did_not_write_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        decode(values)


def test_the_default_objective_has_no_priors() -> None:
    assert Objective(replay=OneStep()).priors == ()
