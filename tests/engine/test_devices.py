"""Where attacks run: names of devices, moved observations, and the same attack on a GPU where there is one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from undelta.attacker.attacks import awa
from undelta.engine.devices import device_of
from undelta.errors import ConfigError
from undelta.observation import Observation


def test_auto_is_the_gpu_where_there_is_one_else_the_cpu() -> None:
    assert device_of("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert device_of("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["tpu", "cuda:99", "meta", "mps", ""])
def test_a_device_that_is_not_there_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match="device"):
        device_of(name)


def test_a_moved_observation_is_the_same_one(observation: Observation) -> None:
    moved = observation.to("cpu")
    assert moved is not observation
    assert all(torch.equal(moved.initial[name], value) for name, value in observation.initial.items())
    assert torch.equal(awa(steps=2)(moved).images, awa(steps=2)(observation).images)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
def test_an_attack_on_the_gpu_ends_where_one_on_the_cpu_does(observation: Observation) -> None:
    double = replace(
        observation,
        initial={name: value.double() for name, value in observation.initial.items()},
        received={name: value.double() for name, value in observation.received.items()},
    )
    method = awa(steps=5, tv=0.0)
    mixed = replace(double, received=double.to("cuda").received)
    assert mixed.device.type == "cpu"  # states on two devices meet where the first one is
    for where in (double.to("cuda"), mixed):
        result = method(where)
        torch.testing.assert_close(result.images.cpu(), method(double).images, rtol=0, atol=1e-6)
