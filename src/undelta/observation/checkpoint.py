"""Reading checkpoints of any framework into named tensors: safetensors, PyTorch files, NumPy archives.

The stage before `fitting`. A file from outside is never trusted: no pickle but PyTorch's restricted one,
which makes tensors and nothing else, and archives say how large they are before they are unpacked.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from torch import Tensor

from undelta.errors import ObservationError, UndeltaError
from undelta.files import check_unpacked, open_tensors
from undelta.schema import unknown

WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net")
"""Keys under which training scripts put a model's state, beside optimizers and epochs."""

Notes = list[str]
"""What the user should know of how a file was read; no reason to refuse it."""


def read_checkpoint(path: str | Path) -> tuple[dict[str, Tensor], Notes]:
    """The tensors of a checkpoint by name, and notes on what was left out.

    Raises:
        ObservationError: if the file is missing, damaged, too large to be true, or holds no named tensors.
    """
    path = Path(path)
    if not path.is_file():
        raise ObservationError(f"{path}: no such file")
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ObservationError(f"{path}: {unknown('kind of checkpoint', path.suffix, READERS)}")
    tensors, notes = reader(path)
    if not tensors:
        raise ObservationError(f"{path}: holds no named tensors; save model.state_dict(), or arrays by name")
    return tensors, notes


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], Notes]:
    try:
        with open_tensors(path) as file:
            return {name: file.get_tensor(name) for name in file.keys()}, []  # noqa: SIM118
    except (SafetensorError, OSError, UnicodeDecodeError, ValueError, RuntimeError) as problem:
        raise ObservationError(f"{path}: not a readable safetensors file, or truncated ({_line(problem)})") from problem


def _read_torch(path: Path) -> tuple[dict[str, Tensor], Notes]:
    check_stored(path, ObservationError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of formats that torch no longer likes; they are read all the same
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as problem:
        # The restricted unpickler follows the file's bytes; damaged ones end it in any error whatever.
        if "weights_only" in str(problem).lower() or "Unsupported" in str(problem):
            raise ObservationError(
                f"{path}: holds more than tensors, or is damaged; unpickling it could run code. Save "
                "model.state_dict() instead of the model, or a safetensors file"
            ) from problem
        raise ObservationError(f"{path}: not a readable PyTorch file, or truncated ({_line(problem)})") from problem
    return _unwrapped(content, path)


def _unwrapped(content: object, path: Path) -> tuple[dict[str, Tensor], Notes]:
    """A state dict, be it at the top or one level down, beside what a training script also saved."""
    if not isinstance(content, Mapping):
        raise ObservationError(f"{path}: expected named tensors (a state_dict), got {type(content).__name__}")
    notes: Notes = []
    for key in WRAPPERS:
        inner = content.get(key)
        if isinstance(inner, Mapping) and any(isinstance(value, Tensor) for value in inner.values()):
            content = inner
            notes.append(f"{path}: took the state under {key!r}")
            break
    tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    left = [str(key) for key, value in content.items() if not isinstance(value, Tensor)]
    if tensors and left:
        notes.append(f"{path}: left out what is not a tensor ({', '.join(left[:3])}{', ...' if len(left) > 3 else ''})")
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            raise ObservationError(f"{path}: {name!r} is sparse, quantized or without data; save it as a plain tensor")
    return {name: tensor.detach() for name, tensor in tensors.items()}, notes


def _read_npz(path: Path) -> tuple[dict[str, Tensor], Notes]:
    return {name: torch.from_numpy(array) for name, array in read_arrays(path, ObservationError).items()}, []


def read_arrays(
    path: Path, error: type[UndeltaError], names: Collection[str] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an .npz file by name, all or some; its directory says how much is unpacked, and is checked."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted = {name: info for name, info in members.items() if names is None or name in names}
            check_unpacked(path.stat().st_size, sum(info.file_size for info in wanted.values()))
            return {name: _read_member(archive, info) for name, info in wanted.items()}
    except Exception as problem:
        # Headers of arrays are Python literals, read by Python's tokenizer and parser: these fail in many ways, too.
        raise error(f"{path}: not a readable .npz file, or truncated ({_line(problem)})") from problem


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> npt.NDArray[Any]:
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(stream)
        # NumPy would allocate what the header claims before it reads.
        if int(np.prod(shape, dtype=object)) * dtype.itemsize > info.file_size:
            raise ValueError(f"{info.filename} claims the shape {shape}, which its {info.file_size} bytes cannot hold")
    with archive.open(info) as stream:
        array = np.lib.format.read_array(stream, allow_pickle=False)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{info.filename} holds {array.dtype}, no numbers")
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))).reshape(array.shape)


def check_stored(path: Path, error: type[UndeltaError]) -> None:
    """Refuse a PyTorch file that packs its tensors, which PyTorch never does: it may unpack to anything."""
    try:
        if not zipfile.is_zipfile(path):  # PyTorch's old format, whose tensors are as long as the file says
            return
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
        if sum(info.file_size for info in members) > path.stat().st_size:
            raise ValueError("its members are compressed, or larger than the file")
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as problem:
        raise error(f"{path}: a damaged archive ({_line(problem)})") from problem


def _line(problem: BaseException) -> str:
    text = " ".join(str(problem).split()).rstrip(".")
    return text[:200] or type(problem).__name__


READERS: dict[str, Callable[[Path], tuple[dict[str, Tensor], Notes]]] = {
    ".safetensors": _read_safetensors,
    ".npz": _read_npz,
    **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), _read_torch),
}
"""By the file's suffix."""
