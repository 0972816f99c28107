"""Checkpoints from outside: every format gives the same tensors, and no bytes give a traceback."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from undelta.errors import ObservationError
from undelta.observation.checkpoint import READERS, read_checkpoint

pytestmark = pytest.mark.usefixtures("bounded_memory")

State = dict[str, Tensor]


def some_state() -> State:
    generator = torch.Generator().manual_seed(0)
    return {
        "conv.weight": torch.randn(2, 1, 3, 3, generator=generator),
        "fc.bias": torch.randn(3, generator=generator),
        "norm.num_batches_tracked": torch.tensor(4),
    }


def write_npz(path: Path, state: State) -> None:
    np.savez(path, **{name: tensor.numpy() for name, tensor in state.items()})  # type: ignore[arg-type]


def write_packed_npz(path: Path, state: State) -> None:
    np.savez_compressed(path, **{name: tensor.numpy() for name, tensor in state.items()})  # type: ignore[arg-type]


def write_torch(path: Path, state: State) -> None:
    torch.save(state, path)


def write_old_torch(path: Path, state: State) -> None:
    torch.save(state, path, _use_new_zipfile_serialization=False)


WRITERS: dict[str, tuple[str, Callable[[Path, State], None]]] = {
    "safetensors": ("state.safetensors", lambda path, state: save_file(state, path)),
    "torch": ("state.pt", write_torch),
    "torch before 1.6": ("state.pth", write_old_torch),
    "npz": ("state.npz", write_npz),
    "packed npz": ("packed.npz", write_packed_npz),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, write in WRITERS.values():
        write(folder / name, some_state())
    return folder


def refusal(path: Path) -> str:
    with pytest.raises(ObservationError) as caught:
        read_checkpoint(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_gives_the_same_tensors(folder: Path, kind: str) -> None:
    tensors, notes = read_checkpoint(folder / WRITERS[kind][0])
    expected = some_state()
    assert notes == []
    assert set(tensors) == set(expected)
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    assert all(tensors[name].dtype == expected[name].dtype for name in expected)


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict", "net"])
def test_a_state_one_level_down_is_found_and_said(tmp_path: Path, key: str) -> None:
    path = tmp_path / "wrapped.pt"
    torch.save({key: some_state(), "epoch": 3, "optimizer": {"state": {}}}, path)
    tensors, notes = read_checkpoint(path)
    assert set(tensors) == set(some_state())
    assert any(repr(key) in note for note in notes)


def test_what_is_no_tensor_is_left_out_and_said(tmp_path: Path) -> None:
    torch.save({**some_state(), "epoch": 3}, tmp_path / "mixed.pt")
    tensors, notes = read_checkpoint(tmp_path / "mixed.pt")
    assert set(tensors) == set(some_state())
    assert "epoch" in notes[0]


def test_parameters_are_read_without_their_gradients(tmp_path: Path) -> None:
    torch.save(dict(nn.Linear(2, 1).named_parameters()), tmp_path / "parameters.pt")
    tensors, _ = read_checkpoint(tmp_path / "parameters.pt")
    assert not any(tensor.requires_grad for tensor in tensors.values())


def test_numbers_in_the_other_byte_order_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "big.npz", weight=np.array([1.5, -2.0], dtype=">f4"), scalar=np.array(3.0, dtype=">f8"))
    tensors, _ = read_checkpoint(tmp_path / "big.npz")
    assert tensors["weight"].tolist() == [1.5, -2.0]
    assert tensors["scalar"].shape == ()


# Refused


class Code:
    """What unpickling would run."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("touched"),))  # type: ignore[return-value]


def test_code_in_a_pickle_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": torch.zeros(1), "code": Code()}, tmp_path / "code.pt")
    assert "holds more than tensors" in refusal(tmp_path / "code.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Code()))
    refusal(tmp_path / "plain.pt")
    np.savez(tmp_path / "code.npz", weight=np.array([Code()], dtype=object))
    refusal(tmp_path / "code.npz")
    assert not (tmp_path / "touched").exists()


def test_a_whole_model_is_refused_with_advice(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 1), tmp_path / "model.pt")
    assert "model.state_dict()" in refusal(tmp_path / "model.pt")


@pytest.mark.parametrize("content", [torch.zeros(3), [torch.zeros(3)], {}, {"epoch": 3}], ids=str)
def test_what_holds_no_named_tensors_is_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "state.pt")
    assert "named tensors" in refusal(tmp_path / "state.pt")


def test_sparse_tensors_are_refused(tmp_path: Path) -> None:
    torch.save({"weight": torch.eye(2).to_sparse()}, tmp_path / "sparse.pt")
    assert "'weight' is sparse" in refusal(tmp_path / "sparse.pt")


def test_a_missing_file_a_folder_and_an_unknown_kind_are_refused(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.pt")
    (tmp_path / "folder.npz").mkdir()
    refusal(tmp_path / "folder.npz")
    (tmp_path / "state.pkl").write_bytes(b"")
    assert ".safetensors" in refusal(tmp_path / "state.pkl")


def npy(header: str, body: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


@pytest.mark.parametrize(
    "member",
    [
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,)}", b"\0" * 8),
        npy("{'descr': '<c8', 'fortran_order': False, 'shape': ()}", b"\0" * 8),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", b"\0" * 8),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", pickle.dumps([Code()])),
        npy("__import__('os')"),
        npy("(" * 5000),
        b"",
        b"\x93NUMPY\x09\x00",
    ],
    ids=["a terabyte", "half the data", "complex", "negative", "objects", "code", "deep", "empty", "version 9"],
)
def test_arrays_that_lie_are_refused(tmp_path: Path, member: bytes) -> None:
    with zipfile.ZipFile(tmp_path / "state.npz", "w") as archive:
        archive.writestr("weight.npy", member)
    refusal(tmp_path / "state.npz")


def test_an_array_that_claims_more_than_it_holds_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "state.npz", "w") as archive:
        archive.writestr("weight.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (65536, 4096)}"))
    assert "weight.npy claims the shape (65536, 4096)" in refusal(tmp_path / "state.npz")


@pytest.mark.parametrize(("name", "words"), [("bomb.npz", "unpack to 104,857,600"), ("bomb.pt", "are compressed")])
def test_an_archive_that_unpacks_to_too_much_is_refused_before_it_is_unpacked(
    tmp_path: Path, name: str, words: str
) -> None:
    with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(100 * 2**20))
    assert (tmp_path / name).stat().st_size < 2**18
    assert words in refusal(tmp_path / name)


def test_a_zip_on_several_disks_is_refused(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(2)}, tmp_path / "state.pt")
    content = (tmp_path / "state.pt").read_bytes()
    for suffix in (".pt", ".npz"):
        end = content.rindex(b"PK\x05\x06")
        spread = content[:end] + struct.pack("<IIQI", 0x07064B50, 0, 0, 9) + content[end:]
        (tmp_path / f"spread{suffix}").write_bytes(spread)
        refusal(tmp_path / f"spread{suffix}")


def test_a_bomb_that_lies_about_its_size_unpacks_to_no_more_than_it_says(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", npy("{'descr': '|u1', 'fortran_order': False, 'shape': (16,)}", b"\0" * 2**22))
    (tmp_path / "state.npz").write_bytes(buffer.getvalue().replace(struct.pack("<I", 2**22 + 71), b"\x57\0\0\0"))
    try:
        tensors, _ = read_checkpoint(tmp_path / "state.npz")
    except ObservationError:
        return
    assert tensors["w"].numel() == 16


@settings(deadline=None, max_examples=40)
@given(content=st.binary(max_size=200), suffix=st.sampled_from(sorted(READERS)))
def test_random_bytes_are_refused(folder: Path, content: bytes, suffix: str) -> None:
    path = folder / f"random{suffix}"
    path.write_bytes(content)
    refusal(path)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), kind=st.sampled_from(sorted(WRITERS)))
def test_truncated_files_are_refused(folder: Path, data: st.DataObject, kind: str) -> None:
    content = (folder / WRITERS[kind][0]).read_bytes()
    path = folder / f"truncated-{WRITERS[kind][0]}"
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1), label="length")])
    refusal(path)


@settings(deadline=None, max_examples=200)
@given(data=st.data(), kind=st.sampled_from(sorted(WRITERS)))
def test_flipped_bits_give_tensors_or_one_line(folder: Path, data: st.DataObject, kind: str) -> None:
    content = bytearray((folder / WRITERS[kind][0]).read_bytes())
    for _ in range(data.draw(st.integers(1, 3), label="flips")):
        bit = data.draw(st.integers(0, 8 * len(content) - 1), label="bit")
        content[bit // 8] ^= 1 << (bit % 8)
    path = folder / f"flipped-{WRITERS[kind][0]}"
    path.write_bytes(content)
    try:
        tensors, _ = read_checkpoint(path)
    except ObservationError as problem:
        assert "\n" not in str(problem)  # noqa: PT017
    else:
        assert all(isinstance(tensor, Tensor) for tensor in tensors.values())
