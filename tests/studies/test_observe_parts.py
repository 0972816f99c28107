"""`undelta observe` for clients that return a part of the model, and for models that return more than logits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from undelta.attacker.attacks import sme, strongest
from undelta.attacker.replays import FullRollout
from undelta.cli import main
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError, ObservationError
from undelta.observation import ImageSpec, Observation
from undelta.observation.assemble import observe, training_from
from undelta.observation.file import load_observation
from undelta.updates import inner

MODULE = '''
from collections import namedtuple

import torch
from torch import nn

Output = namedtuple("Output", ["logits", "features"])


class Adapted(nn.Module):
    """A frozen layer with a low-rank one beside it, named as PEFT names them."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.base_layer = nn.Linear(inputs, outputs).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inputs, 3, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(3, outputs, bias=False)})
        nn.init.normal_(self.lora_B["default"].weight, std=0.3)

    def forward(self, values):
        return self.base_layer(values) + self.lora_B["default"](self.lora_A["default"](values))


class Classifier(nn.Module):
    """Returns its logits and more, as models of other libraries do."""

    def __init__(self, first, kind):
        super().__init__()
        self.first, self.head, self.kind = first, nn.Linear(8, 3), kind

    def forward(self, values):
        features = torch.sigmoid(self.first(values.flatten(1)))
        logits = self.head(features)
        return {"logits": logits} if self.kind == "dict" else Output(logits, features)


def classifier(kind="tuple"):
    return Classifier(nn.Linear(16, 8), kind)


def pretrained():
    """Its frozen layer is always the same, as if it came from a file; its adapter is drawn."""
    model = Classifier(Adapted(16, 8), "tuple")
    with torch.no_grad():
        for number, value in enumerate(model.first.base_layer.parameters()):
            value.copy_(torch.randn(value.shape, generator=torch.Generator().manual_seed(number)) / 4)
    return model


def adrift():
    """Its frozen layer is drawn anew: nobody can rebuild it."""
    return Classifier(Adapted(16, 8), "tuple")


class Pair(nn.Linear):
    def forward(self, values):
        return values, values


def pair():
    return Pair(1, 1)


def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Sigmoid(), nn.Linear(8, 3))
'''
SPEC = ImageSpec(shape=(1, 4, 4), mean=(0.5,), std=(0.25,), classes=3)
IMAGES = torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(1)).double()
LABELS = torch.tensor([0, 2, 1, 2])
STATED = {"epochs": 1, "batch-size": 3, "lr": 0.1}
State = dict[str, Tensor]


@pytest.fixture(autouse=True)
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module that the models come from, importable by its name."""
    (tmp_path / "observed_parts.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import observed_parts  # type: ignore[import-not-found]

    yield observed_parts
    del sys.modules["observed_parts"]


def trained(model: nn.Module) -> tuple[State, State]:
    """A round with a data loader's mini-batches of three images and one, by torch alone; before and after."""
    model.double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.1)
    for part in (slice(0, 3), slice(3, 4)):
        optimizer.zero_grad()
        output = model(SPEC.normalize(IMAGES[part]))
        logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
        nn.functional.cross_entropy(output["logits"] if logits is None else logits, LABELS[part]).backward()
        optimizer.step()
    return before, {name: value.clone() for name, value in model.state_dict().items()}


def look(before: State, after: State, model: str, **options: Any) -> tuple[Observation, list[str]]:
    training, unknown, _ = training_from(options.pop("training", STATED), 4)
    return observe(before, after, model=model, image=SPEC, training=training, num_samples=4, unknown=unknown, **options)


def error(observation: Observation) -> float:
    """How far the replay of the truth ends from the observed update, relative to it."""
    replay = FullRollout()(observation, torch.Generator())
    update = replay(SPEC.normalize(IMAGES.to(observation.dtype)), LABELS).update
    off = {name: update[name] - value for name, value in replay.target.items()}
    return float((inner(off, off) / inner(replay.target, replay.target)).sqrt())


def only(state: State, *words: str) -> State:
    return {name: value for name, value in state.items() if any(word in name for word in words)}


@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_a_model_that_returns_an_object_with_logits_is_replayed_exactly(parts: Any, kind: str) -> None:
    before, after = trained(parts.classifier(kind))
    observation, notes = look(before, after, "observed_parts:classifier", model_arguments={"kind": kind})
    assert notes == []
    assert observation.training.sizes(4) == (3, 1)  # as the loader cut them, not 2 and 2
    assert error(observation) < 1e-9


def test_a_scenario_trains_a_model_that_returns_an_object_with_logits() -> None:
    small = Scenario(data="faces", image_size=4, num_samples=2, model="observed_parts:classifier", classes=3, batches=1)
    observation = disclose(small.draw(0), small)
    assert torch.isfinite(sme(steps=3)(observation).images).all()


def test_a_model_without_logits_is_refused_with_what_it_returned() -> None:
    with pytest.raises(ConfigError, match=r"or an object with such \.logits, got tuple"):
        look({}, {}, "observed_parts:pair")


def test_an_adapter_alone_is_enough_where_the_models_function_loads_the_rest(parts: Any) -> None:
    before, after = trained(parts.pretrained())
    words = ("lora", "head")
    observation, notes = look(only(before, *words), only(after, *words), "observed_parts:pretrained")
    assert len(notes) == 1
    assert "'first.base_layer.bias' and 1 more; taken from the model's function" in notes[0]
    assert set(observation.received) == set(only(after, *words))
    assert error(observation) < 1e-4  # the function's own weights are in single precision
    found = strongest(steps=40, rollout_steps=40)(observation)
    assert torch.isfinite(found.images).all()


def test_the_short_names_of_a_peft_file_are_understood(parts: Any) -> None:
    before, after = trained(parts.pretrained())
    short = {name.replace(".default", ""): value for name, value in only(after, "lora", "head").items()}
    assert "first.lora_A.weight" in short
    observation, notes = look(before, short, "observed_parts:pretrained")
    assert notes == ["after: names of a PEFT adapter, taken for those of the adapter 'default'"]
    assert error(observation) < 1e-9


def test_frozen_weights_that_the_models_function_draws_are_refused(parts: Any) -> None:
    before, after = trained(parts.adrift())
    with pytest.raises(ConfigError, match="adrift draws it at random; save all of the model's state"):
        look(only(before, "lora", "head"), only(after, "lora", "head"), "observed_parts:adrift")
    observation, _ = look(before, only(after, "lora", "head"), "observed_parts:adrift")  # the whole state tells
    assert error(observation) < 1e-9


def test_trained_parameters_that_the_server_did_not_send_are_asked_for(parts: Any) -> None:
    before, after = trained(parts.pretrained())
    with pytest.raises(ObservationError, match=r"before does not fit the model: it lacks 'head\.bias' and 1 more"):
        look(only(before, "lora"), only(after, "lora", "head"), "observed_parts:pretrained")


@pytest.fixture
def last_block(parts: Any) -> tuple[State, State]:
    """A client that trains and returns the last layer."""
    model = parts.plain()
    model[1].requires_grad_(False)
    before, after = trained(model)
    return before, only(after, "3.")


def test_a_part_of_the_model_is_refused_until_somebody_says_what_the_rest_is(last_block: tuple[State, State]) -> None:
    with pytest.raises(ObservationError, match=r"\(missing\): frozen or withheld"):
        look(*last_block, "observed_parts:plain")
    with pytest.raises(ConfigError, match="expected missing to be frozen or withheld, got 'lost'"):
        look(*last_block, "observed_parts:plain", missing="lost")
    with pytest.raises(ConfigError, match="trained or missing, got both"):
        look(*last_block, "observed_parts:plain", missing="frozen", training={**STATED, "trained": "3"})


def test_the_last_block_alone_is_replayed_exactly_if_the_rest_is_frozen(last_block: tuple[State, State]) -> None:
    observation, notes = look(*last_block, "observed_parts:plain", missing="frozen")
    assert notes == []
    assert observation.training.trained == ("3.weight", "3.bias")
    assert error(observation) < 1e-9


def test_a_client_that_keeps_trained_layers_to_itself_is_another_one(parts: Any) -> None:
    before, after = trained(parts.plain())
    observation, notes = look(before, only(after, "1."), "observed_parts:plain", missing="withheld")
    assert notes == ["after: no '3.bias' and 1 more, so attacks do not use it"]
    assert observation.training.trained == ()
    assert error(observation) < 1e-9  # the head is replayed, though not compared
    frozen, _ = look(before, only(after, "1."), "observed_parts:plain", missing="frozen")
    assert error(frozen) > 1e-3


def test_the_command_says_which_part_came_back(
    last_block: tuple[State, State], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = last_block
    save_file(before, tmp_path / "before.safetensors")
    save_file(after, tmp_path / "after.safetensors")

    def run(*more: str) -> str:
        words = ["--before", "before.safetensors", "--after", "after.safetensors", "--model", "observed_parts:plain"]
        words += ["--samples=4", "--shape=1,4,4", "--mean=0.5", "--std=0.25", "-o", "seen.safetensors", *more]
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["undelta", "observe", *words])
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr().err

    assert "(missing): frozen or withheld" in run()
    said = run("--missing=frozen")  # nobody knows epochs, mini-batches or the learning rate, and nobody has to
    assert "no batches and no epochs and no learning_rate" in said
    seen = load_observation(tmp_path / "seen.safetensors", model="observed_parts:plain")
    assert (seen.unknown, seen.training.trained) == (("batches", "epochs", "learning_rate"), ("3.weight", "3.bias"))
