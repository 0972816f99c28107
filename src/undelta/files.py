"""The only writers: bytes, folders and sealed tensors; every file appears whole or not at all.

Tensors are a safetensors file with JSON metadata, sealed with a digest that finds accidents (a truncated download, a
flipped bit), not forgeries.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from undelta.errors import ConfigError, DataError, UndeltaError

FORMAT = 1


@contextmanager
def refused(what: str, error: type[UndeltaError]) -> Iterator[None]:
    """Say what the system refuses within the block, and why."""
    try:
        yield
    except OSError as problem:
        raise error(f"{what}: {problem.strerror}") from problem


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write tensors and JSON metadata as a sealed safetensors file, atomically."""
    plain, text = _plain(tensors, metadata)
    # One key only: safetensors keeps no order of several, and equal content should give equal bytes.
    write_bytes(path, to_bytes(plain, metadata={"undelta": f"{_digest(plain, text)} {text}"}))


def seal_of(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> str:
    """The digest that `write_tensors` would give this content."""
    return _digest(*_plain(tensors, metadata))


def _plain(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> tuple[dict[str, Tensor], str]:
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return plain, json.dumps(metadata, sort_keys=True, allow_nan=False)


def read_tensors(path: str | Path, *, kind: str, error: type[UndeltaError]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read and verify what `write_tensors` wrote."""
    if not Path(path).is_file():
        raise error(f"{path}: no such file")
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, UnicodeDecodeError) as problem:
        raise error(f"{path}: not a readable safetensors file, or truncated ({problem})") from problem
    if "undelta" not in header:
        raise error(f"{path}: a safetensors file, but not one that undelta wrote (no metadata)")
    digest, _, text = header["undelta"].partition(" ")
    if _digest(tensors, text) != digest:
        raise error(f"{path}: damaged: its content does not match its checksum; copy or record it again")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise error(f"{path}: its metadata is not JSON ({problem})") from problem
    if not isinstance(values, dict) or values.get("kind") != kind:
        found = values.get("kind") if isinstance(values, dict) else values
        raise error(f"{path}: expected a file of kind {kind!r}, got {found!r}")
    if values.get("format") != FORMAT or type(values["format"]) is not int:
        raise error(f"{path}: format {values.get('format')!r} is not known to this version (it reads {FORMAT})")
    return tensors, values


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file atomically: readers see the old content or the new, never half of it."""
    path = Path(path)
    with refused(f"cannot write {path}", ConfigError):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def to_json(values: Any) -> bytes:
    """Plain values and dataclasses as our JSON files have them."""
    return json.dumps(values, indent=1, allow_nan=False, default=asdict).encode()


def load_json(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        with refused(str(path), DataError):
            return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{path}: not valid JSON ({problem})") from problem


def make_folder(folder: Path) -> None:
    """Make a folder, and those that it is in."""
    with refused(f"cannot make the directory {folder}", ConfigError):
        folder.mkdir(parents=True, exist_ok=True)
