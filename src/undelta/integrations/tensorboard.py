"""TensorBoard: an audit's records, and its pictures if you want them there, as one run per trial.

    python -m undelta.integrations.tensorboard audit --logdir runs

A run is a folder named after the trial's key: exporting a directory again adds what is new and leaves the rest.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from undelta.errors import UndeltaError
from undelta.files import make_folder
from undelta.integrations.exported import Exported, exported


def export(directory: str | Path, *, logdir: str | Path, pictures: bool = False) -> int:
    """Write the finished trials of a run directory as TensorBoard runs; returns how many are new.

    Args:
        directory: What `undelta audit`, `attack`, `demo` or `defend` wrote.
        logdir: The folder that TensorBoard shows; it is made if it is not there.
        pictures: Whether to store originals and reconstructions, too. They are private: whoever can read the folder can
            see them.
    """
    new = 0
    make_folder(Path(logdir))
    for trial in exported(directory):
        folder = Path(logdir) / f"{trial.record.attack}-{trial.record.key}"
        if folder.exists():
            continue
        half = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(half, ignore_errors=True)  # of a process that was killed
        _write(trial, half, pictures=pictures)
        half.rename(folder)
        new += 1
    return new


def _write(trial: Exported, folder: Path, *, pictures: bool) -> None:
    with SummaryWriter(str(folder)) as writer:
        about = {"title": trial.title, "diagnosis": trial.level, "defense": trial.record.defense, **trial.settings()}
        rows = "\n".join(f"| {key} | {value} |" for key, value in about.items())
        writer.add_text("undelta", f"| | |\n|---|---|\n{rows}")
        for key, value, step in trial.points():
            writer.add_scalar(key, value, step)
        if pictures and trial.write_pictures(sheet := folder / "reconstruction.png"):
            with Image.open(sheet) as picture:
                writer.add_image("reconstruction", np.array(picture), dataformats="HWC")
            sheet.unlink()


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(prog="python -m undelta.integrations.tensorboard", description=__doc__)
    options.add_argument("directory", type=Path)
    options.add_argument("--logdir", type=Path, default=Path("runs"), help="the folder that TensorBoard shows")
    options.add_argument("--pictures", action="store_true", help="store private pictures there, too")
    given = options.parse_args()
    try:
        new = export(given.directory, logdir=given.logdir, pictures=given.pictures)
    except UndeltaError as problem:
        sys.exit(f"Error: {problem}")
    print(f"{new} new runs in {given.logdir}.")  # noqa: T201


if __name__ == "__main__":
    main()
