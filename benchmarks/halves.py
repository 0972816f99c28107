"""Every second image of a .npz: tune on one half, report on the other.

python benchmarks/halves.py cifar10-1000.npz odd --out cifar10-odd.npz
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

ROWS = {"all": slice(None), "even": slice(0, None, 2), "odd": slice(1, None, 2)}


def rows_of(data: str, rows: str) -> str:
    """The path of a .npz that holds these rows of ``data`` only."""
    if rows == "all":
        return data
    path = Path(tempfile.mkdtemp()) / f"{Path(data).stem}-{rows}.npz"
    write_rows(data, rows, path)
    return str(path)


def write_rows(data: str, rows: str, path: Path) -> None:
    with np.load(data) as content:
        arrays = {name: content[name][ROWS[rows]] for name in ("images", "labels")}
    np.savez(path, **arrays)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("rows", choices=ROWS)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    write_rows(options.data, options.rows, options.out)
