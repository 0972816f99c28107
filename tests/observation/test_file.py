"""Observation files: what was written comes back, and nothing else is ever believed."""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from undelta.client.disclose import disclose
from undelta.client.private import save_private
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError, DataError, ObservationError, UndeltaError
from undelta.files import FORMAT, read_tensors, write_bytes, write_tensors
from undelta.observation import Observation
from undelta.observation.file import digest_of, import_builder, load_observation, save_observation

pytestmark = pytest.mark.usefixtures("bounded_memory")

TINY = Scenario(
    data="faces", image_size=4, num_samples=2, model="mlp", model_arguments={"hidden": [2]}, epochs=1, batches=1
)
WITH_NORMS = Scenario(
    data="faces",
    image_size=8,
    num_samples=4,
    model="cnn",
    model_arguments={"width": 2, "hidden": 3, "norm": "batch"},
    epochs=2,
    batches=2,
    learning_rate=0.1,
    norm_mode="train",
)
WITHOUT_LABELS = Scenario(
    data="faces",
    image_size=4,
    num_samples=3,
    model="mlp",
    model_arguments={"hidden": []},
    epochs=1,
    batches=2,
    loss="l2",
    norm_mode="eval",
    grant_labels=False,
)

Tensors = dict[str, Tensor]
Metadata = dict[str, Any]


def observe(scenario: Scenario, dtype: torch.dtype = torch.float32) -> Observation:
    return disclose(scenario.draw(0), scenario, dtype=dtype)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.safetensors"
    save_observation(observe(TINY), path)
    return path


@pytest.fixture(scope="module")
def normed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("normed") / "normed.safetensors"
    save_observation(observe(WITH_NORMS), path)
    return path


def forge(source: Path, path: Path, change: Callable[[Tensors, Metadata], None]) -> Path:
    """A copy of an observation file with something changed, sealed with the right digest."""
    tensors, metadata = read_tensors(source, kind="observation", error=ObservationError)
    change(tensors, metadata)
    write_tensors(path, tensors, metadata)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ObservationError) as caught:
        load_observation(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def equal(left: Tensors, right: Tensors) -> bool:
    return left.keys() == right.keys() and all(
        tensor.dtype == right[name].dtype and torch.equal(tensor, right[name]) for name, tensor in left.items()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scenario", [TINY, WITH_NORMS, WITHOUT_LABELS], ids=["tiny", "norms", "no labels"])
def test_an_observation_comes_back_bit_for_bit(tmp_path: Path, scenario: Scenario, dtype: torch.dtype) -> None:
    observation = observe(scenario, dtype)
    save_observation(observation, tmp_path / "observation")
    loaded = load_observation(tmp_path / "observation")
    assert equal(dict(loaded.initial), dict(observation.initial))
    assert equal(dict(loaded.received), dict(observation.received))
    for field in fields(Observation):
        if field.name not in ("initial", "received", "labels", "builder"):
            assert getattr(loaded, field.name) == getattr(observation, field.name)
    assert loaded.dtype == dtype
    if observation.labels is None:
        assert loaded.labels is None
    else:
        assert loaded.labels is not None
        assert torch.equal(loaded.labels, observation.labels)


def test_tensors_that_the_client_sent_back_as_they_were_are_written_twice(tmp_path: Path) -> None:
    observation = observe(TINY)
    same = replace(observation, received=observation.initial)
    save_observation(same, tmp_path / "same")
    loaded = load_observation(tmp_path / "same")
    assert equal(dict(loaded.received), dict(observation.initial))
    assert digest_of(loaded) == digest_of(same)


def test_batchnorm_buffers_are_part_of_the_file(normed: Path) -> None:
    loaded = load_observation(normed)
    assert int(loaded.initial["norm1.num_batches_tracked"]) == 0
    assert int(loaded.received["norm1.num_batches_tracked"]) == 4
    assert not torch.equal(loaded.received["norm1.running_mean"], loaded.initial["norm1.running_mean"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_loaded_model_computes_the_same(tmp_path: Path, dtype: torch.dtype) -> None:
    observation = observe(WITH_NORMS, dtype)
    save_observation(observation, tmp_path / "observation")
    original, rebuilt = observation.model(), load_observation(tmp_path / "observation").model()
    assert equal(original.state_dict(), rebuilt.state_dict())
    images = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=dtype)
    assert torch.equal(original.eval()(images), rebuilt.eval()(images))


def test_saving_again_gives_the_same_content(tmp_path: Path, tiny: Path) -> None:
    save_observation(load_observation(tiny), tmp_path / "again")
    tensors, metadata = read_tensors(tiny, kind="observation", error=ObservationError)
    again, metadata_again = read_tensors(tmp_path / "again", kind="observation", error=ObservationError)
    assert equal(tensors, again)
    assert metadata == metadata_again


# Accidents


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_any_flipped_bit_is_noticed(tiny: Path, data: st.DataObject) -> None:
    content = bytearray(tiny.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(content) - 1), label="bit")
    content[bit // 8] ^= 1 << (bit % 8)
    damaged = tiny.with_name("flipped")
    damaged.write_bytes(content)
    refusal(damaged)


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_any_truncation_is_noticed(tiny: Path, data: st.DataObject) -> None:
    content = tiny.read_bytes()
    damaged = tiny.with_name("truncated")
    damaged.write_bytes(content[: data.draw(st.integers(0, len(content) - 1), label="length")])
    refusal(damaged)


@settings(deadline=None, max_examples=50)
@given(content=st.binary(max_size=300))
def test_random_bytes_are_refused(tiny: Path, content: bytes) -> None:
    path = tiny.with_name("random")
    path.write_bytes(content)
    refusal(path)


def test_appended_bytes_are_noticed(tmp_path: Path, tiny: Path) -> None:
    (tmp_path / "longer").write_bytes(tiny.read_bytes() + b"\0")
    refusal(tmp_path / "longer")


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent")
    (tmp_path / "directory").mkdir()
    refusal(tmp_path / "directory")


# Files that are whole, but wrong


def test_a_wrong_shape_is_named(tmp_path: Path, tiny: Path) -> None:
    def change(tensors: Tensors, _: Metadata) -> None:
        tensors["received/1.weight"] = tensors["received/1.weight"][:, :-1]

    message = refusal(forge(tiny, tmp_path / "forged", change))
    assert "received state, '1.weight': expected shape (2, 16), got (2, 15)" in message


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_are_named_and_counted(tmp_path: Path, tiny: Path, value: float) -> None:
    def change(tensors: Tensors, _: Metadata) -> None:
        tensors["initial/1.weight"][0, :3] = value

    message = refusal(forge(tiny, tmp_path / "forged", change))
    assert "initial state, '1.weight': 3 of 32 values are NaN or infinite" in message


def test_a_missing_entry_is_named(tmp_path: Path, tiny: Path) -> None:
    def change(tensors: Tensors, _: Metadata) -> None:
        del tensors["initial/3.bias"]

    assert "initial state lacks '3.bias'" in refusal(forge(tiny, tmp_path / "forged", change))


def test_an_extra_entry_is_named(tmp_path: Path, tiny: Path) -> None:
    def change(tensors: Tensors, _: Metadata) -> None:
        tensors["initial/extra"] = torch.zeros(1)

    message = refusal(forge(tiny, tmp_path / "forged", change))
    assert "initial state has the unknown entry 'extra'" in message


@pytest.mark.parametrize("name", ["images", "initial/", "/1.weight", "secret/1.weight"])
def test_a_tensor_that_belongs_to_no_state_is_named(tmp_path: Path, tiny: Path, name: str) -> None:
    def change(tensors: Tensors, _: Metadata) -> None:
        tensors[name] = torch.zeros(1)

    assert f"unknown tensor {name!r}" in refusal(forge(tiny, tmp_path / "forged", change))


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.complex64],
    ids=str,
)
def test_a_wrong_dtype_is_named(tmp_path: Path, tiny: Path, dtype: torch.dtype) -> None:
    def change(tensors: Tensors, _: Metadata) -> None:
        tensors["received/1.weight"] = tensors["received/1.weight"].to(dtype)

    message = refusal(forge(tiny, tmp_path / "forged", change))
    assert "1.weight" in message
    assert "expected" in message
    assert "float32" in message
    assert str(dtype).removeprefix("torch.") in message


def test_a_counter_that_is_no_integer_is_named(tmp_path: Path, normed: Path) -> None:
    def change(tensors: Tensors, _: Metadata) -> None:
        tensors["received/norm1.num_batches_tracked"] = torch.tensor(4 + 1j)

    message = refusal(forge(normed, tmp_path / "forged", change))
    assert "norm1.num_batches_tracked" in message
    assert "complex64" in message


def test_states_of_two_precisions_are_refused(tmp_path: Path, tiny: Path) -> None:
    def change(tensors: Tensors, _: Metadata) -> None:
        for name in tensors:
            if name.startswith("received/"):
                tensors[name] = tensors[name].double()

    message = refusal(forge(tiny, tmp_path / "forged", change))
    assert "all of float32 or all of float64, got float32, float64" in message


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        (torch.tensor([1, 0]), "sorted"),
        (torch.tensor([0, 2]), "expected classes 0 to 1, got 0 to 2"),
        (torch.tensor([-1, 0]), "expected classes 0 to 1, got -1 to 0"),
        (torch.tensor([0, 1, 1]), "expected 2 int64 values"),
        (torch.tensor([[0], [1]]), "expected 2 int64 values"),
        (torch.tensor([0.0, 1.0]), "expected 2 int64 values"),
        (torch.tensor([0, 1], dtype=torch.int32), "expected 2 int64 values"),
        (torch.tensor([], dtype=torch.int64), "expected 2 int64 values"),
    ],
    ids=["unsorted", "too large", "negative", "too many", "nested", "float", "int32", "none"],
)
def test_labels_that_are_no_sorted_multiset_are_refused(
    tmp_path: Path, tiny: Path, labels: Tensor, complaint: str
) -> None:
    def change(tensors: Tensors, _: Metadata) -> None:
        tensors["labels"] = labels

    message = refusal(forge(tiny, tmp_path / "forged", change))
    assert "labels" in message
    assert complaint in message


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("format", 2, "format 2 is not known"),
        ("format", "1", "format '1' is not known"),
        ("kind", "truth", "expected a file of kind 'observation', got 'truth'"),
        ("num_samples", 10**9, "too many"),
        ("num_samples", 10**30, "num_samples: expected a number, got one too large"),
        ("num_samples", 10**8, "num_samples <= 10,000,000"),
        ("num_samples", 0, "num_samples"),
        ("num_samples", -1, "num_samples"),
        ("num_samples", 2.0, "expected a whole number"),
        ("num_samples", True, "expected a whole number"),
        ("num_samples", "2", "expected a whole number"),
        ("num_sample", 2, "did you mean 'num_samples'?"),
        ("images", [], "unknown key 'images'"),
        ("architecture", {"name": "transformer9000"}, "unknown model"),
        ("architecture", {"name": "mlp", "arguments": {"hidden": [10**9]}}, "hidden"),
        ("architecture", {"name": "mlp", "arguments": {"hidden": [16_384] * 32}}, "parameters"),
        ("architecture", {"name": "mlp", "arguments": {"hidden": "2"}}, "hidden"),
        ("architecture", {"name": "mlp", "arguments": {"shape": [1, 4, 4]}}, "shape"),
        ("architecture", {"name": "mlp", "arguments": {"__class__": 1}}, "__class__"),
        ("architecture", {"name": "cnn", "arguments": {"width": 10**6}}, "width"),
        ("architecture", {"name": ["mlp"]}, "expected a text"),
        ("architecture", "mlp", "expected a table"),
        ("training", {"epochs": 1, "batches": 1, "learning_rate": 0.1, "loss": "hinge"}, "unknown value 'hinge'"),
        ("training", {"epochs": 0, "batches": 1, "learning_rate": 0.1}, "epochs"),
        ("training", {"epochs": 1, "batches": 3, "learning_rate": 0.1}, "cannot fill 3 mini-batches"),
        ("training", {"epochs": 1, "batches": 1, "learning_rate": -0.1}, "learning_rate"),
        ("training", {"epochs": 1, "batches": 1, "learning_rate": 10**400}, "learning_rate"),
        ("training", {"epochs": 1, "batches": 1}, "missing learning_rate"),
        ("training", {"epochs": 1, "batches": 2 * 10**8, "learning_rate": 0.1}, "epochs x batches <= 10,000,000"),
        ("training", {"epochs": 10**9, "batches": 1, "learning_rate": 0.1}, "epochs x batches <= 10,000,000"),
        ("image", {"shape": [1, 4, 4], "mean": [0.5], "std": [0.0], "classes": 2}, "std"),
        ("image", {"shape": [1, 4, 4], "mean": [0.5, 0.5], "std": [1.0], "classes": 2}, "mean"),
        ("image", {"shape": [1, 4], "mean": [0.5], "std": [1.0], "classes": 2}, "expected 3 entries, got 2"),
        ("image", {"shape": [1, 10**6, 10**6], "mean": [0.5], "std": [1.0], "classes": 2}, "2,147,483,648 pixels"),
        ("image", {"shape": [1, 4, 4], "mean": [0.5], "std": [1.0], "classes": 10**9}, "at most 100,000 classes"),
        (
            "image",
            {"shape": [1, 4, 4], "mean": [0.5], "std": [1.0], "classes": 10**30},
            "classes: expected a number, got one too large",
        ),
    ],
)
def test_metadata_that_makes_no_sense_is_refused(
    tmp_path: Path, tiny: Path, key: str, value: object, complaint: str
) -> None:
    def change(_: Tensors, metadata: Metadata) -> None:
        metadata[key] = value

    message = refusal(forge(tiny, tmp_path / "forged", change))
    assert complaint in message
    assert len(message) < len(str(tmp_path)) + 400


@pytest.mark.parametrize("key", ["architecture", "training", "num_samples", "image"])
def test_a_missing_metadata_key_is_named(tmp_path: Path, tiny: Path, key: str) -> None:
    def change(_: Tensors, metadata: Metadata) -> None:
        del metadata[key]

    assert f"missing {key}" in refusal(forge(tiny, tmp_path / "forged", change))


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", "1", '"observation"', "[" * 100_000, "9" * 5_000, '{"kind": NaN}'],
    ids=["empty", "half", "null", "list", "number", "text", "deep", "long number", "NaN"],
)
def test_metadata_that_is_no_json_table_is_refused(tmp_path: Path, text: str) -> None:
    digest = hashlib.sha256(text.encode()).hexdigest()
    save_file({}, tmp_path / "forged", metadata={"undelta": text, "sha256": digest})
    refusal(tmp_path / "forged")


def test_a_safetensors_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, tmp_path / "foreign", metadata={"format": "pt"})
    assert "not one that undelta wrote" in refusal(tmp_path / "foreign")


def test_the_truth_is_no_observation_and_an_observation_is_no_truth(tmp_path: Path, tiny: Path) -> None:
    save_private(TINY.draw(0), tmp_path / "truth", {}, load_observation(tiny))
    assert "expected a file of kind 'observation', got 'truth'" in refusal(tmp_path / "truth")
    with pytest.raises(DataError, match="expected a file of kind 'truth', got 'observation'"):
        read_tensors(tiny, kind="truth", error=DataError)


# Nothing in a file is ever executed


class _Trap:
    """Unpickling this touches a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


def test_a_pickle_is_refused_unopened(tmp_path: Path) -> None:
    flag = tmp_path / "sprung"
    (tmp_path / "pickle").write_bytes(pickle.dumps(_Trap(flag)))
    torch.save({"trap": _Trap(flag)}, tmp_path / "checkpoint")
    refusal(tmp_path / "pickle")
    refusal(tmp_path / "checkpoint")
    assert not flag.exists()


@pytest.fixture
def evil(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that names a model in ``evil_module``, which is importable and remembers being imported."""
    (tmp_path / "evil_module.py").write_text(
        "from pathlib import Path\n"
        "from torch import nn\n"
        "Path(__file__).with_name('imported').touch()\n"
        "def boom(hidden):\n"
        "    Path(__file__).with_name('called').touch()\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(16, hidden[0]), nn.ReLU(), nn.Linear(hidden[0], 2))\n"
        "def number(hidden):\n"
        "    return 1\n"
        "constant = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "evil_module", raising=False)

    def change(_: Tensors, metadata: Metadata) -> None:
        metadata["architecture"]["name"] = "evil_module:boom"

    return forge(tiny, tmp_path / "evil", change)


@pytest.mark.parametrize("model", [None, "mlp"])
def test_a_file_never_makes_its_reader_import_anything(evil: Path, model: str | None) -> None:
    with pytest.raises(ObservationError, match="--model evil_module:boom"):
        load_observation(evil, model=model)
    assert "evil_module" not in sys.modules
    assert not evil.with_name("imported").exists()


def test_a_model_that_the_user_names_is_imported(evil: Path) -> None:
    observation = load_observation(evil, model="evil_module:boom")
    assert evil.with_name("called").exists()
    assert torch.equal(observation.model().state_dict()["1.weight"], observation.initial["1.weight"])
    assert load_observation(evil, model=sys.modules["evil_module"].boom).num_samples == 2


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ("evil_module:absent", "absent"),
        ("no_such_module_anywhere:boom", "no_such_module_anywhere"),
        (":boom", "cannot import"),
        ("evil_module:constant", "function"),
        ("evil_module:number", "nn.Module"),
    ],
)
def test_a_model_that_cannot_be_imported_is_one_clear_error(evil: Path, model: str, complaint: str) -> None:
    with pytest.raises(UndeltaError, match=complaint):
        load_observation(evil, model=model)


def test_a_named_model_that_refuses_the_files_arguments_is_one_clear_error(tmp_path: Path, evil: Path) -> None:
    def change(_: Tensors, metadata: Metadata) -> None:
        metadata["architecture"]["arguments"] = {"depth": 3}

    path = forge(evil, tmp_path / "other arguments", change)
    with pytest.raises(UndeltaError, match="depth"):
        load_observation(path, model="evil_module:boom")


def test_the_name_of_a_built_in_model_needs_no_import() -> None:
    assert import_builder("cnn") is None


# Writing


def test_a_failure_during_writing_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"old")

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_metadata_that_cannot_be_serialized_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"old")
    with pytest.raises(ValueError, match="JSON"):
        write_tensors(path, {}, {"number": torch.nan})
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_writing_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"old")
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_directory_is_named_when_writing(tmp_path: Path, tiny: Path) -> None:
    path = tmp_path / "absent" / "observation"
    with pytest.raises(ConfigError, match="absent"):
        save_observation(load_observation(tiny), path)


def test_a_directory_in_the_files_place_is_named_when_writing(tmp_path: Path, tiny: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(ConfigError, match="taken"):
        save_observation(load_observation(tiny), tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_the_metadata_is_plain_json(tiny: Path) -> None:
    _, metadata = read_tensors(tiny, kind="observation", error=ObservationError)
    assert json.loads(json.dumps(metadata)) == metadata
    assert metadata["architecture"] == {"name": "mlp", "arguments": {"hidden": [2]}}


def test_a_format_that_is_no_whole_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "seen.safetensors"
    write_tensors(path, {"x": torch.zeros(1)}, {"format": float(FORMAT), "kind": "observation"})
    with pytest.raises(ObservationError, match=r"format 1\.0 is not known"):
        load_observation(path)


def test_how_a_client_trained_comes_back_and_plain_sgd_is_not_spelled_out(tmp_path: Path) -> None:
    for scenario in (TINY, replace(TINY, momentum=0.9)):
        path = tmp_path / "seen.safetensors"
        save_observation(observe(scenario), path)
        assert load_observation(path).training == scenario.training
        _, values = read_tensors(path, kind="observation", error=ObservationError)
        extra = {} if scenario == TINY else {"momentum": 0.9}
        plain: Metadata = {"epochs": 1, "learning_rate": 0.004, "loss": "cross_entropy", "norm_mode": "train"}
        assert values["training"] == {**plain, "batches": scenario.batches, **extra}
