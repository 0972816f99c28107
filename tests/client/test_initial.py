"""A network's own weights: scenarios that start from a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from undelta.client.disclose import disclose
from undelta.client.federation import initial_model
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError, ObservationError
from undelta.models import build

SCENARIO = Scenario(
    data="digits", num_samples=2, model="convnet", model_arguments={"width": 4}, epochs=1, batches=1, classes=20
)


def trained(classes: int = 20) -> dict[str, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = build("convnet", {"width": 4}, shape=(1, 8, 8), classes=classes)
    return {name: value.clone() + (name.endswith("running_mean")) for name, value in model.state_dict().items()}


def save(path: Path, state: dict[str, torch.Tensor]) -> str:
    if path.suffix == ".safetensors":
        save_file(state, path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: value.numpy() for name, value in state.items()})  # type: ignore[arg-type]
    else:
        torch.save({"state_dict": state, "epoch": 3}, path)
    return str(path)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".npz"])
def test_the_server_sends_the_checkpoints_weights(tmp_path: Path, suffix: str) -> None:
    state = trained()
    scenario = replace(SCENARIO, initial=save(tmp_path / f"net{suffix}", state))
    observation = disclose(scenario.draw(0), scenario, seed=0)
    assert observation.image.classes == 20
    for name, value in state.items():
        assert torch.equal(observation.initial[name], value)


def test_prefixes_and_missing_counters_are_mended(tmp_path: Path) -> None:
    state = trained()
    bare = {f"module.{name}": value for name, value in state.items() if not name.endswith("num_batches_tracked")}
    scenario = replace(SCENARIO, initial=save(tmp_path / "net.safetensors", bare))
    observation = disclose(scenario.draw(0), scenario, seed=0)
    for name, value in state.items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(observation.initial[name], value)


def test_the_models_own_precision_is_kept(tmp_path: Path) -> None:
    scenario = replace(SCENARIO, initial=save(tmp_path / "net.safetensors", trained()))
    model = initial_model(scenario, scenario.image_spec(), seed=0, dtype=torch.float64)
    assert {value.dtype for value in model.parameters()} == {torch.float64}


def test_another_number_of_classes_is_refused_with_a_hint(tmp_path: Path) -> None:
    scenario = replace(SCENARIO, initial=save(tmp_path / "net.safetensors", trained(classes=15)))
    with pytest.raises(ConfigError, match="Set classes"):
        disclose(scenario.draw(0), scenario, seed=0)


def test_a_file_that_is_not_there_is_refused() -> None:
    scenario = replace(SCENARIO, initial="nowhere.safetensors")
    with pytest.raises(ObservationError, match="no such file"):
        disclose(scenario.draw(0), scenario, seed=0)


def test_a_model_may_have_more_classes_than_the_data_but_not_fewer() -> None:
    assert SCENARIO.image_spec().classes == 20
    with pytest.raises(ConfigError, match="10 classes"):
        replace(SCENARIO, classes=9).image_spec()
    with pytest.raises(ConfigError, match="expected 1 <= classes"):
        replace(SCENARIO, classes=0)
