"""The only writers: bytes, folders and sealed tensors; every file appears whole or not at all.

Files have the rights that the user's umask leaves; those that hold private images are the user's alone. Tensors are
a safetensors file with JSON metadata, sealed with a digest that finds accidents (a truncated download, a flipped bit),
not forgeries.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import stat
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from undelta.errors import ConfigError, DataError, NoRoom, UndeltaError

FORMAT = 1
DEEPEST = 64  # brackets within each other
MOST_TEXT = 2**24  # bytes of JSON or TOML; a record has some thousand
MOST_VALUES = 500_000  # in it, which take some 100 bytes each once read; a record of 1,000 images has about 10,000
MOST_TENSORS = 100_000  # in a file
UNPACKED_BYTES, UNPACKED_RATIO = 2**26, 100  # what may come out of an archive, and of each of its bytes
LEFT_SECONDS = 3600.0  # for which a file that is being written may lie there
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What a system says where nothing more can be written."""


@contextmanager
def refused(what: str, error: type[UndeltaError]) -> Iterator[None]:
    """Say what the system refuses within the block, and why."""
    try:
        yield
    except OSError as problem:
        raise (NoRoom if problem.errno in FULL else error)(f"{what}: {problem.strerror}") from problem


def write_tensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], *, private: bool = False
) -> None:
    """Write tensors and JSON metadata as a sealed safetensors file, atomically."""
    plain, text = _plain(tensors, metadata)
    places = Counter(tensor.data_ptr() for tensor in plain.values())
    for name, tensor in plain.items():  # safetensors refuses the same one twice, as where a client froze a layer
        if places[tensor.data_ptr()] > 1:
            plain[name] = tensor.clone()
    # One key only: safetensors keeps no order of several, and equal content should give equal bytes.
    write_bytes(path, to_bytes(plain, metadata={"undelta": f"{_digest(plain, text)} {text}"}), private=private)


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
        with open_tensors(path) as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError, LookupError, AttributeError) as problem:
        raise error(f"{path}: not a readable safetensors file, or truncated ({problem})") from problem
    if "undelta" not in header:
        raise error(f"{path}: a safetensors file, but not one that undelta wrote (no metadata)")
    digest, _, text = header["undelta"].partition(" ")
    if len(text) > MOST_TEXT:
        raise error(f"{path}: its metadata has {len(text):,} characters, and at most {MOST_TEXT:,} are read")
    if _digest(tensors, text) != digest:
        raise error(f"{path}: damaged: its content does not match its checksum; copy or record it again")
    try:
        values = parsed(text)
    except (ValueError, RecursionError) as problem:
        raise error(f"{path}: its metadata is not JSON ({problem})") from problem
    if not isinstance(values, dict) or values.get("kind") != kind:
        found = values.get("kind") if isinstance(values, dict) else values
        raise error(f"{path}: expected a file of kind {kind!r}, got {str(found)[:80]!r}")
    if values.get("format") != FORMAT or type(values["format"]) is not int:
        raise error(
            f"{path}: format {repr(values.get('format'))[:80]} is not known to this version (it reads {FORMAT})"
        )
    return tensors, values


@contextmanager
def open_tensors(path: str | Path) -> Iterator[Any]:
    """A safetensors file; ValueError where its header alone would take much memory."""
    with Path(path).open("rb") as file:
        if (size := int.from_bytes(file.read(8), "little")) > MOST_TEXT + 2**16:  # metadata has a limit of its own
            raise ValueError(f"its header has {size:,} bytes")
    with safe_open(str(path), framework="pt") as opened:
        if (count := len(opened.keys())) > MOST_TENSORS:
            raise ValueError(f"it has {count:,} tensors, and at most {MOST_TENSORS:,} are read")
        yield opened


def kind_of(path: Path) -> str | None:
    """What kind of file of ours it says it is; None if it is none. Its content is not read."""
    if not path.is_file():  # a pipe would keep us waiting
        return None
    try:
        with open_tensors(path) as file:
            text = (file.metadata() or {}).get("undelta", "").partition(" ")[2]
        values = parsed(text)
    except (SafetensorError, OSError, ValueError, RecursionError):
        return None
    return str(values.get("kind")) if isinstance(values, dict) else None


def write_bytes(path: str | Path, content: bytes, *, private: bool = False) -> None:
    """Write a file atomically: readers see the old content or the new, never half of it."""
    path = Path(path)
    with refused(f"cannot write {path}", ConfigError):
        temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}"
        # A new file, never somebody's link; the system takes what the umask says from its rights.
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if private else 0o666)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sweep(path.parent, path.name)


def sweep(folder: Path, name: str, *, seconds: float = LEFT_SECONDS) -> None:
    """Remove what processes left that were killed while they wrote this file, and that is older than this."""
    leftover = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{16}}")
    with suppress(OSError):  # a folder that may be written to, but not listed
        for path in [path for path in folder.iterdir() if leftover.fullmatch(path.name)]:
            with suppress(OSError):  # another one sweeps, too, or it is somebody else's
                if time.time() - path.stat().st_mtime >= seconds:
                    path.unlink()


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
            check_file(path)
            return parsed(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{path}: not valid JSON ({problem})") from problem


def parsed(text: str) -> Any:
    """The plain values of some JSON; ValueError where it is none, or holds too many of them."""
    check_text(text, marks=",[{")
    return plain_values(json.loads(text))


def check_text(text: str, *, marks: str) -> None:
    """Refuse text whose values would take much memory; ``marks`` are the characters that values begin or end with."""
    if len(text) > MOST_TEXT:
        raise ValueError(f"it has {len(text):,} characters, and at most {MOST_TEXT:,} are read")
    if (count := sum(map(text.count, marks))) > MOST_VALUES:
        raise ValueError(f"it may hold {count:,} values, and at most {MOST_VALUES:,} are read")


def plain_values(values: Any) -> Any:
    """The values, if they are such as our files hold: ValueError for dates, NaN, huge numbers, towers of brackets."""
    within: list[Iterator[tuple[str, Any]]] = [iter([("", values)])]
    while within:
        for key, value in within[-1]:
            if len(within) > DEEPEST:
                raise ValueError(f"more than {DEEPEST} brackets within each other")
            where = f"{key[:80]}: " if key else ""
            if isinstance(value, int) and not -(2**63) <= value < 2**64:
                raise ValueError(f"{where}expected a number, got one too large ({value.bit_length()} bits)")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{where}expected a finite number, got {value}")
            if not isinstance(value, str | int | float | list | dict | None):
                raise ValueError(f"{where}expected text or a number, got a {type(value).__name__}")
            if isinstance(value, dict | list):
                within.append(iter(value.items()) if isinstance(value, dict) else zip(repeat(key), value))
                break
        else:
            within.pop()
    return values


def check_file(path: Path) -> None:
    """Refuse what is not a plain file of a size that one reads at once; a pipe would keep us waiting forever."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is not a file")
    if found.st_size > MOST_TEXT:
        raise ValueError(f"it has {found.st_size:,} bytes")


def check_unpacked(packed: int, unpacked: int) -> None:
    """Refuse a bomb, before it is unpacked: ValueError for what grows as no honest archive does."""
    if unpacked > (most := UNPACKED_BYTES + UNPACKED_RATIO * packed):
        raise ValueError(f"its {packed:,} bytes unpack to {unpacked:,}, and at most {most:,} are believed")


def make_way(path: Path) -> None:
    """Make the folder of a file that is to be written when work is done; refuse now what would be refused then."""
    make_folder(path.parent)
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"cannot write {path}: {'it is a folder' if path.is_dir() else 'its folder is read-only'}")


def make_folder(folder: Path) -> None:
    """Make a folder, and those that it is in."""
    with refused(f"cannot make the directory {folder}", ConfigError):
        folder.mkdir(parents=True, exist_ok=True)
