"""Independent streams of random numbers from one seed.

The client's and the attacker's streams have different names, so equal seeds on both sides never let an attack
draw the very shuffle that it is supposed not to know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def stream(*names: object) -> torch.Generator:
    """A CPU generator for this stream; any printable names, such as ("client", seed, "shuffles")."""
    return torch.Generator().manual_seed(_number(names))


@contextmanager
def global_stream(*names: object) -> Iterator[None]:
    """Seed torch's global generator within the block, for code that takes no generator; restore it after."""
    with torch.random.fork_rng():
        torch.manual_seed(_number(names))
        yield


def _number(names: tuple[object, ...]) -> int:
    text = "/".join(map(str, names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
