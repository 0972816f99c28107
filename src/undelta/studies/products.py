"""What products with a client's Jacobian have found so far, in a file, for a command that was stopped.

It tells of private images, so it is the user's alone, and it goes when the work is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from undelta.errors import DataError
from undelta.evaluation.lanczos import Krylov
from undelta.files import FORMAT, read_tensors, write_tensors


class Kept:
    """Krylov spaces of one seed, and the file that keeps them; another setting's file is not read."""

    SECONDS = 30.0

    def __init__(
        self, path: Path | None, about: dict[str, Any], count: Callable[[int], None], device: torch.device
    ) -> None:
        self.path, self.about, self.count = path, about, count
        self.device = device
        self.spaces: dict[str, Krylov] = {}
        self.taken: dict[str, int] = {}
        self.last = time.monotonic()
        if path is not None and path.is_file():
            tensors, metadata = read_tensors(path, kind="products", error=DataError)
            if metadata.get("about") == about:
                names = metadata.get("names")
                parts = ("norm", "diagonal", "beside", "basis")
                expected = {f"{i} {key}" for i in range(len(names or [])) for key in parts}
                if not isinstance(names, list) or set(tensors) != expected:
                    raise DataError(f"{path}: not what a bound resumes from; remove it")
                self.spaces = {name: self._read(tensors, index) for index, name in enumerate(names)}
                self.taken = {name: len(space.diagonal) for name, space in self.spaces.items()}

    def load(self, name: str) -> Krylov | None:
        return self.spaces.get(name)

    def save(self, name: str, found: Krylov) -> None:
        self.taken[name] = len(found.diagonal)
        self.count(sum(self.taken.values()))
        if self.path is not None or len(found.diagonal) == 1:  # single products are asked for again
            self.spaces[name] = found
        if self.path is not None and time.monotonic() - self.last >= self.SECONDS:
            self.write()

    def write(self) -> None:
        """Write all that is known so far."""
        assert self.path is not None  # noqa: S101
        tensors: dict[str, Tensor] = {}
        for index, space in enumerate(self.spaces.values()):
            norm = torch.tensor(space.norm, dtype=torch.float64)
            parts = {"norm": norm, "diagonal": space.diagonal, "beside": space.beside, "basis": space.basis}
            tensors |= {f"{index} {key}": value for key, value in parts.items()}
        metadata = {"format": FORMAT, "kind": "products", "about": self.about, "names": list(self.spaces)}
        write_tensors(self.path, tensors, metadata, private=True)
        self.last = time.monotonic()

    def _read(self, tensors: dict[str, Tensor], index: int) -> Krylov:
        diagonal, beside, basis = (tensors[f"{index} {key}"].to(self.device) for key in ("diagonal", "beside", "basis"))
        return Krylov(norm=float(tensors[f"{index} norm"]), diagonal=diagonal, beside=beside, basis=basis)
