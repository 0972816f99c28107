"""The check of a traced network against its module: what it finds, on which images, and with how much memory."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from undelta.attacker import remember
from undelta.attacker.remember import network_of
from undelta.attacker.replays import observed_update
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.engine import Network, network
from undelta.engine.network import AutogradTape
from undelta.models import build
from undelta.models.sketch import sketched
from undelta.training import LocalTraining
from undelta.trials.record import peak_memory_mb, reset_peak_memory
from undelta.updates import parameters_of

LOCAL = LocalTraining(epochs=1, batches=1, learning_rate=0.1, norm_mode="eval")


class Blocking(nn.Module):
    """Its first layer gets no gradient, which no trace shows; or only its second derivative is another."""

    def __init__(self, *, second: bool) -> None:
        super().__init__()
        self.first, self.last, self.second = nn.Linear(12, 6), nn.Linear(6, 3), second

    def forward(self, images: Tensor) -> Tensor:
        if self.second:
            hidden: Any = torch.tanh(self.first(images.flatten(1)))
            if not isinstance(hidden, fx.Proxy) and hidden.requires_grad:
                hidden.register_hook(lambda gradient: gradient.detach())
        else:
            with torch.no_grad():
                hidden = torch.tanh(self.first(images.flatten(1)))
        outputs: Tensor = self.last(hidden)
        return outputs


@pytest.mark.parametrize("second", [False, True], ids=["first derivative", "second derivative"])
def test_a_trace_with_other_derivatives_is_given_up(second: bool) -> None:
    model = Blocking(second=second)
    found = Network(model, LOCAL)
    assert found.known.program is not None
    tape = found.tape(parameters_of(model), torch.rand(2, 3, 2, 2), torch.tensor([0, 1]))
    assert isinstance(tape, AutogradTape)


@pytest.mark.parametrize(
    ("norm_mode", "model", "expected"),
    [("eval", "resnet8", (2, 16)), ("train", "resnet18", (2, 32)), ("eval", "cnn", (3, 40))],
)
def test_a_trace_is_checked_on_images_as_small_as_the_model_takes(
    norm_mode: str, model: str, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = list[tuple[int, ...]]()

    def agrees(*given: Any) -> bool:
        shapes.append(given[-1].shape)
        return True

    monkeypatch.setattr(network, "agrees", agrees)
    local = LocalTraining(epochs=1, batches=1, learning_rate=0.1, norm_mode=norm_mode)  # type: ignore[arg-type]
    Network(build(model, {"width": 4}, shape=(3, 40, 40), classes=3), local).couples(torch.rand(3, 3, 40, 40))
    assert shapes == [(expected[0], 3, expected[1], expected[1])]


@pytest.mark.skipif(sys.platform != "linux", reason="the peak can be reset on Linux only")
def test_a_check_holds_few_copies_of_the_model() -> None:
    model = build("mlp", {"hidden": [700] * 9}, shape=(3, 16, 16), classes=10)
    size = sum(value.numel() * value.element_size() for value in model.parameters()) / 2**20
    found = Network(model, LOCAL)
    Network(build("mlp", {}, shape=(3, 4, 4), classes=3), LOCAL).couples(
        torch.rand(2, 3, 4, 4)
    )  # loads what torch needs
    reset_peak_memory()
    before = peak_memory_mb()
    found.couples(torch.rand(2, 3, 16, 16))
    assert found.known.program is not None
    assert peak_memory_mb() - before < 10 * size  # two copies in float64, their heap


def test_a_network_and_its_start_are_the_observed_tensors_themselves() -> None:
    scenario = Scenario(data="digits", num_samples=2, model_arguments={"width": 4, "hidden": 8}, epochs=1, batches=1)
    observation = disclose(scenario.draw(seed=0), scenario, seed=0)
    prepared, start, _ = observed_update(observation)
    places = {name: value.data_ptr() for name, value in observation.initial.items()}
    assert {name: value.data_ptr() for name, value in start.items()} == places
    assert {name: value.data_ptr() for name, value in prepared.model.state_dict().items()} == places
    assert all(value.data_ptr() != places[name] for name, value in observation.model().state_dict().items())


def test_a_sketch_draws_nothing() -> None:
    with sketched():  # torch imports a compiler for normal numbers there
        values = torch.empty(2).normal_(std=-1)  # not even looked at
    assert values.is_meta


def test_a_built_in_model_is_checked_once_whatever_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, asked = [True, False, True, True], list[int]()

    def agrees(*given: Any) -> bool:
        asked.append(1)
        return answers[len(asked) - 1]

    monkeypatch.setattr(network, "agrees", agrees)
    monkeypatch.setattr(remember, "_known", {})
    for seed, hidden, expected in ((0, 8, 1), (1, 8, 1), (2, 9, 2), (3, 9, 3), (4, 8, 4)):
        arguments = {"width": 4, "hidden": hidden}
        scenario = Scenario(data="digits", num_samples=2, model_arguments=arguments, epochs=1, batches=1)
        observation = disclose(scenario.draw(seed=seed), scenario, seed=seed)
        for _ in range(2):
            network_of(observation).couples(torch.rand(2, *observation.image.shape))
        assert len(asked) == expected, seed  # a refusal counts for that observation alone
