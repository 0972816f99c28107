"""Where private images come from: named sources that need no download, and the user's own files.

Nothing here opens a pickle or the network, but for the libraries that ``hf:`` and ``torchvision:`` name (`hub`). A name
in `SOURCES` wins over a file of the same name; write ``./photos`` for a folder called photos.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from undelta.client.datasets.arrays import open_npz, open_tensors
from undelta.client.datasets.bundled import digits, faces, patches, photos
from undelta.client.datasets.dataset import Dataset, pick
from undelta.client.datasets.folders import open_folder
from undelta.client.datasets.hub import HUB, VISION, has_tables, open_hub, open_vision
from undelta.errors import DataError
from undelta.schema import import_part, is_import

__all__ = ["SOURCES", "Dataset", "open_dataset", "origin_of", "pick"]

SOURCES: dict[str, Callable[[], Dataset]] = {
    "photos": photos,
    "patches": patches,
    "faces": faces,
    "digits": digits,
}

_ORIGINS = {"patches": "photos"}
"""Sources that are cut from the pictures of another one."""


def origin_of(source: str) -> str:
    """Where a source's pictures are from in the end: two sources of one origin show the same things.

    Examples:
        >>> origin_of("patches"), origin_of("faces")
        ('photos', 'faces')
    """
    if source in SOURCES:
        return _ORIGINS.get(source, source)
    if source.startswith((HUB, VISION)):
        return source.rpartition(":")[0] if source.count(":") > 1 else source  # another split shows the same things
    try:
        return str(Path(source).expanduser().resolve())
    except (OSError, RuntimeError, ValueError):  # nothing that could be opened
        return source


@functools.cache
def _bundled(source: str) -> Dataset:
    """Read once: many small trials would spend their time on it."""
    return SOURCES[source]()


def open_dataset(source: str) -> Dataset:
    """The data set of that name or at that path.

    Args:
        source: a name in `SOURCES`; ``package.module:function``, which returns a `Dataset`; ``hf:name[:split]`` or
            ``torchvision:Name[:split]``; an ``.npz`` or ``.pt`` file with `images` and `labels`; a Parquet file; or a
            folder with pictures, Parquet files, MNIST's or Fashion-MNIST's idx files, or CIFAR's binary files.

    Raises:
        DataError: if there is no such source or it cannot be read.
    """
    if source in SOURCES:
        return _bundled(source)
    for prefix, opened in ((HUB, open_hub), (VISION, open_vision)):
        if source.startswith(prefix):
            return opened(source.removeprefix(prefix))
    if is_import(source) and not Path(source).exists():
        found = import_part(source, "data source")()
        if not isinstance(found, Dataset):
            raise DataError(f"expected {source!r} to return a Dataset, got {type(found).__name__}")
        return found
    try:
        path = Path(source).expanduser()
        there = bool(source) and path.exists()
        if there and path.is_dir():
            if has_tables(path):
                return open_hub(str(path.resolve()))
            return open_folder(path.resolve())
        if path.suffix == ".npz" and path.is_file():  # a pipe of that name would keep us waiting
            return open_npz(path)
        if path.suffix in (".pt", ".pth") and path.is_file():
            return open_tensors(path)
        if path.suffix == ".parquet" and path.is_file():
            return open_hub(str(path.resolve()))
    except (OSError, RuntimeError, ValueError) as error:  # no such home, a name too long, a loop of links
        raise DataError(f"cannot open {source!r}: {error}") from error
    names = ", ".join(SOURCES)
    if there:
        raise DataError(
            f"{source!r} is neither a folder nor an .npz, .pt or .parquet file; use one of these, or {names}."
        )
    raise DataError(
        f"no data source {source!r}: use {names}, hf:NAME, torchvision:NAME, or the path of a folder or of an .npz, "
        ".pt or .parquet file."
    )
