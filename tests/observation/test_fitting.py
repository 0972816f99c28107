"""States from outside: fitted to the model where that is safe, and otherwise explained."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from undelta.errors import ConfigError, ObservationError
from undelta.models import build
from undelta.observation import ImageSpec
from undelta.observation.assemble import count_classes, observe, training_from
from undelta.observation.fitting import fit
from undelta.training import LocalTraining

pytestmark = pytest.mark.usefixtures("bounded_memory")

SPEC = ImageSpec(shape=(1, 8, 8), mean=(0.5,), std=(0.25,), classes=3)
NORMED = {"width": 2, "hidden": 3, "norm": "batch"}
TRAINING = LocalTraining(epochs=2, batches=2, learning_rate=0.1)

State = dict[str, Tensor]


def model(**changes: object) -> nn.Module:
    return build("cnn", {**NORMED, **changes}, shape=SPEC.shape, classes=SPEC.classes)


def moved(state: State, steps: int = 4) -> State:
    """After a training: parameters moved, mini-batches counted."""
    return {name: tensor + (0.01 if tensor.is_floating_point() else steps) for name, tensor in state.items()}


@pytest.fixture
def before() -> State:
    return model().state_dict()


def look(before: State, after: State, **changes: object) -> tuple[object, list[str]]:
    given = {"model": "cnn", "model_arguments": NORMED, "image": SPEC, "training": TRAINING, "num_samples": 4}
    return observe(before, after, **{**given, **changes})  # type: ignore[arg-type]


def refusal(before: State, after: State, **changes: object) -> str:
    with pytest.raises((ObservationError, ConfigError)) as caught:
        look(before, after, **changes)
    return str(caught.value)


# Fitted


def test_states_that_fit_are_taken_bit_by_bit_without_a_note(before: State) -> None:
    observation, notes = observe(
        before, moved(before), model="cnn", model_arguments=NORMED, image=SPEC, training=TRAINING, num_samples=4
    )
    assert notes == []
    assert all(torch.equal(observation.initial[name], before[name]) for name in before)
    assert all(torch.equal(observation.received[name], moved(before)[name]) for name in before)
    assert observation.labels is None


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod.", "_orig_mod.module."])
def test_prefixes_of_wrappers_are_removed_and_said(before: State, prefix: str) -> None:
    wrapped = {f"{prefix}{name}": tensor for name, tensor in before.items()}
    state, notes = fit(wrapped, model(), where="before")
    assert list(state) == list(before)
    assert len(notes) == prefix.count(".")


def test_a_prefix_of_the_models_own_stays() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(2, 2)

    outer = Outer()
    state, notes = fit(outer.state_dict(), outer, where="before")
    assert (list(state), notes) == (["model.weight", "model.bias"], [])


@pytest.mark.parametrize("name", ["{}", "arr_{}"])
def test_arrays_without_names_are_taken_in_the_models_order(before: State, name: str) -> None:
    # In the order of a text sort, "10" would come before "2".
    listed = {name.format(index): tensor for index, tensor in enumerate(before.values())}
    state, notes = fit(dict(sorted(listed.items())), model(), where="before")
    assert all(torch.equal(state[key], before[key]) for key in before)
    assert "without names" in notes[0]


def test_parameters_without_names_are_taken_without_buffers() -> None:
    network = model()
    parameters = dict(network.named_parameters())
    listed = {str(index): tensor for index, tensor in enumerate(parameters.values())}
    state, _ = fit(listed, network, where="after", received=True)
    assert list(state) == list(parameters)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_becomes_float32_with_a_note(before: State, dtype: torch.dtype) -> None:
    coarse = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in before.items()}
    state, notes = fit(coarse, model(), where="A")
    assert {tensor.dtype for tensor in state.values()} == {torch.float32, torch.int64}
    assert f"A: {str(dtype).removeprefix('torch.')} converted" in notes[0]


def test_two_precisions_meet_in_float32_and_double_stays_double(before: State) -> None:
    double = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in before.items()}
    assert look(double, moved(before))[0].dtype == torch.float32  # type: ignore[attr-defined]
    assert look(double, moved(double))[0].dtype == torch.float64  # type: ignore[attr-defined]


def test_counters_that_averaging_made_fractions_are_rounded(before: State) -> None:
    averaged = {name: tensor if tensor.is_floating_point() else torch.tensor(3.9999) for name, tensor in before.items()}
    state, _ = fit(averaged, model(), where="before")
    assert int(state["norm1.num_batches_tracked"]) == 4


def test_a_counter_of_truth_values_counts_zero_or_one(before: State) -> None:
    told = {name: tensor if tensor.is_floating_point() else torch.tensor(True) for name, tensor in before.items()}
    state, _ = fit(told, model(), where="before")
    counter = state["norm1.num_batches_tracked"]
    assert (int(counter), counter.dtype) == (1, torch.int64)


def test_counters_of_old_checkpoints_may_be_missing(before: State) -> None:
    old = {name: tensor for name, tensor in before.items() if tensor.is_floating_point()}
    state, notes = fit(old, model(), where="before")
    assert set(state) == set(before)
    assert "num_batches_tracked' and 1 more, taken as 0" in notes[0]


def test_a_client_may_keep_its_buffers(before: State) -> None:
    parameters = {name for name, _ in model().named_parameters()}
    after = {name: tensor for name, tensor in moved(before).items() if name in parameters}
    observation, notes = look(before, after)
    assert set(observation.received) == parameters  # type: ignore[attr-defined]
    assert "attacks do not use it" in notes[0]


def test_what_was_given_is_not_changed_by_what_is_done_with_the_observation(before: State) -> None:
    observation, _ = look(before, moved(before))
    kept = before["conv1.weight"].clone()
    observation.initial["conv1.weight"].zero_()  # type: ignore[attr-defined]
    assert torch.equal(before["conv1.weight"], kept)


def test_labels_are_sorted(before: State) -> None:
    observation, _ = look(before, moved(before), labels=torch.tensor([2, 0, 1, 0]))
    assert observation.labels.tolist() == [0, 0, 1, 2]  # type: ignore[attr-defined]


# Explained


def test_missing_and_unknown_names_are_counted_and_shown(before: State) -> None:
    other = dict(before)
    other["head.bias"] = other.pop("fc2.bias")
    message = refusal(before, other)
    assert "after does not fit the model: it lacks 'fc2.bias' and it has 'head.bias', unknown to the model" in message


def test_a_state_of_another_model_is_called_that(before: State) -> None:
    other = build("mlp", {"hidden": []}, shape=SPEC.shape, classes=3).state_dict()
    assert "no name fits; is it the state of another model?" in refusal(other, moved(before))


def test_buffers_that_the_server_must_know_are_asked_for(before: State) -> None:
    parameters = dict(model().named_parameters())
    message = refusal({name: value.detach() for name, value in parameters.items()}, moved(before))
    assert "save all of model.state_dict(), buffers included" in message


def test_an_observation_is_no_checkpoint(before: State) -> None:
    sealed = {f"initial/{name}": tensor for name, tensor in before.items()}
    assert "an observation already" in refusal(sealed, moved(before))


def test_another_number_of_classes_is_suspected_where_only_the_last_layer_differs(before: State) -> None:
    wider = build("cnn", NORMED, shape=SPEC.shape, classes=7).state_dict()
    message = refusal(wider, moved(wider))
    assert "before, 'fc2.weight': expected shape (3, 3), got (7, 3); is the number of classes right?" in message


def test_other_arguments_are_suspected_elsewhere(before: State) -> None:
    wider = model(width=4).state_dict()
    assert "'conv1.weight': expected shape (2, 1, 3, 3), got (4, 1, 3, 3); are the arch" in refusal(wider, moved(wider))


def test_nothing_trained_is_refused(before: State) -> None:
    assert "hold the same parameters" in refusal(before, dict(before))


def test_swapped_checkpoints_are_noticed_by_their_counters(before: State) -> None:
    assert "are the two swapped?" in refusal(moved(before), before)


def test_values_that_are_not_finite_are_refused(before: State) -> None:
    after = moved(before)
    after["fc1.bias"][0] = torch.nan
    assert "'fc1.bias': 1 of 3 values are NaN or infinite" in refusal(before, after)


@pytest.mark.parametrize(
    ("counter", "kind"),
    [
        (torch.tensor(1 + 0j), "complex64"),
        (torch.tensor(torch.nan), "NaN or infinity"),
        (torch.tensor(torch.inf, dtype=torch.float64), "NaN or infinity"),
    ],
)
def test_counters_that_count_nothing_are_refused(before: State, counter: Tensor, kind: str) -> None:
    after = {**moved(before), "norm1.num_batches_tracked": counter}
    assert f"after, 'norm1.num_batches_tracked': expected whole numbers, got {kind}" in refusal(before, after)


def test_integers_where_weights_belong_are_refused(before: State) -> None:
    after = {**moved(before), "fc1.bias": torch.zeros(3, dtype=torch.int64)}
    assert "'fc1.bias': expected floating-point values, got int64" in refusal(before, after)


def test_classes_that_the_model_does_not_have_are_refused(before: State) -> None:
    message = refusal(before, moved(before), model="torch.nn:Identity", model_arguments={})
    assert "expected the model to return logits of shape (1, classes) for one image" in message
    assert "got shape (1, 1, 8, 8)" in message


def test_an_image_that_the_model_does_not_take_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"refuses an image of shape \(1, 5, 5\)"):
        count_classes(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (1, 5, 5))


def test_arguments_that_the_model_does_not_take_are_refused(before: State) -> None:
    message = refusal(before, moved(before), model="torch.nn:Flatten", model_arguments={"depth": 3})
    assert "refuses its arguments" in message


@pytest.mark.parametrize(
    ("counted", "norm_mode", "words"),
    [(4, "train", None), (6, "train", "counted 6"), (0, "train", "no mini-batch"), (4, "eval", "was it 'train'?")],
)
def test_steps_that_batchnorm_counted_are_compared_with_those_told(
    before: State, counted: int, norm_mode: str, words: str | None
) -> None:
    training = LocalTraining(epochs=2, batches=2, learning_rate=0.1, norm_mode=norm_mode)  # type: ignore[arg-type]
    _, notes = look(before, moved(before, counted), training=training)
    assert (words in notes[0]) if words else notes == []


def test_what_is_said_to_be_trained_is_compared_with_what_moved(before: State) -> None:
    name = next(name for name in before if name.endswith("weight"))
    training = LocalTraining(epochs=2, batches=2, learning_rate=0.1, trained=(name,))
    _, notes = look(before, moved(before), training=training)
    assert any("moved, though not said to be trained; is that list (trained) right?" in note for note in notes)
    still = {**moved(before), name: before[name]}
    _, notes = look(before, still, training=replace(training, trained=()))
    assert f"{name!r} did not move; if the client freezes parameters, say which it trains (trained)" in notes
    _, notes = look(before, moved(before), training=replace(training, trained=()))
    assert not any("move" in note for note in notes)


# Hyperparameters out of a configuration


@pytest.mark.parametrize(
    "settings",
    [
        {"local-epochs": 3, "batch-size": 2, "lr": 0.5},
        {"epochs": 3, "batches": 4, "learning-rate": 0.5, "num-server-rounds": 9},
        {"epochs": 3, "local-epochs": 7, "batch_size": 2, "learning_rate": 0.5, "lr": None},
    ],
)
def test_hyperparameters_are_found_under_their_usual_names(settings: dict[str, object]) -> None:
    assert training_from(settings, 8) == (LocalTraining(epochs=3, batches=4, learning_rate=0.5), (), [])


@pytest.mark.parametrize(("samples", "size"), [(8, 2), (8, 3), (7, 2), (5, 8), (10, 4)])
def test_a_batch_size_that_undelta_cuts_as_a_loader_does_gives_no_note(samples: int, size: int) -> None:
    training, _, notes = training_from({"epochs": 1, "lr": 1, "batch-size": size}, samples)
    loader = DataLoader(TensorDataset(torch.arange(samples)), batch_size=size)
    assert training.sizes(samples) == tuple(len(batch) for (batch,) in loader)
    assert notes == []


def test_a_batch_size_that_undelta_would_cut_otherwise_is_kept() -> None:
    training, _, notes = training_from({"epochs": 1, "lr": 1, "batch-size": 32}, 50)
    assert (training.sizes(50), training.batch_size, notes) == ((32, 18), 32, [])
    dropped, _, _ = training_from({"epochs": 1, "lr": 1, "batch-size": 32, "drop-last": True}, 50)
    assert (dropped.sizes(50), dropped.batches) == ((32,), 1)


def test_how_a_client_trains_is_found_in_its_configuration() -> None:
    settings = {"batches": 1, "lr": 0.1, "epochs": 1, "optimizer": "AdamW", "betas": "0.8, 0.9", "trained": "fc, head"}
    training, _, _ = training_from({**settings, "wd": 0.01, "max-grad-norm": 1.0, "proximal-mu": 0.5}, 4)
    assert (training.optimizer, training.betas, training.trained) == ("adamw", (0.8, 0.9), ("fc", "head"))
    assert (training.weight_decay, training.clip_norm, training.proximal) == (0.01, 1.0, 0.5)
    assert training_from({**settings, "eps": 1e-6}, 4)[0].adam_epsilon == 1e-6
    plain, _, _ = training_from({**settings, "optimizer": "sgd", "eps": "8.0 in all"}, 4)  # of some budget
    assert plain.adam_epsilon == 1e-8
    with pytest.raises(ConfigError, match="unknown value 'rmsprop'"):
        training_from({**settings, "optimizer": "RMSprop"}, 4)


def test_what_is_not_said_is_unknown() -> None:
    training, unknown, notes = training_from({"batches": 2}, 8)
    assert unknown == ("epochs", "learning_rate")
    assert (training.epochs, training.learning_rate) == (1, 1.0)
    assert "no epochs and no learning_rate" in notes[0]


def test_mini_batches_that_nobody_states_are_unknown() -> None:
    training, unknown, notes = training_from({"epochs": 3, "lr": 0.1}, 8)
    assert (training.batches, unknown) == (1, ("batches",))
    assert "no batches" in notes[0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batches": 1, "batch-size": 2}, "got both"),
        ({"batch-size": 0}, "got 0"),
        ({"batch-size": "8"}, "got '8'"),
        ({"batches": 1, "epochs": 1.5}, "epochs: expected a whole number, got 1.5"),
        ({"batches": 1, "loss": "hinge"}, "loss: unknown value 'hinge'"),
        ({"batches": 1, "lr": -1.0}, "learning_rate"),
    ],
)
def test_hyperparameters_that_make_no_sense_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        training_from(settings, 8)
    assert words in str(caught.value)
