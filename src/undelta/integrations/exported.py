"""What trackers are told of a run directory: its finished trials, as numbers, settings and pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undelta.errors import ConfigError, DataError
from undelta.files import read_tensors
from undelta.trials.diagnosis import Level, diagnose
from undelta.trials.directory import RUN, RunDirectory
from undelta.trials.pictures import write_sheet
from undelta.trials.record import Record

NUMBERS = (
    *("psnr", "ssim", "lpips", "mse", "fraction_recovered", "mismatch", "resolution"),
    *("epsilon", "delta", "seconds", "iterations", "peak_memory_mb"),
)


@dataclass(frozen=True, kw_only=True)
class Exported:
    """One finished trial."""

    store: RunDirectory
    record: Record
    level: Level

    @property
    def title(self) -> str:
        return f"{self.record.attack}, seed {self.record.seed}: {self.record.name}"

    def settings(self) -> dict[str, str]:
        """The attack and the scenario, field by field."""
        record = self.record
        given = {"attack": record.attack, "seed": str(record.seed)}
        return {**given, **_flat("attack", record.arguments), **_flat("scenario", record.scenario)}

    def points(self) -> Iterator[tuple[str, float, int]]:
        """Final values, the attack's history, and single images: name, value, and iteration or number of the image."""
        record, last = self.record, self.record.iterations or 0
        for key in NUMBERS:
            if (value := getattr(record, key)) is not None:
                yield key, float(value), last
        for step in record.history:
            if step.mismatch is not None and step.iteration < last:
                yield "mismatch", step.mismatch, step.iteration
        for index, image in enumerate(record.images):
            for key in ("psnr", "ssim"):
                if (value := getattr(image, key)) is not None:
                    yield f"image_{key}", float(value), index

    def write_pictures(self, path: Path) -> bool:
        """Write originals and reconstruction as one picture; says whether there are any. They are private."""
        found = self.store.pictures(self.record.key)
        if found is None:
            return False
        images, _ = read_tensors(found, kind="pictures", error=DataError)
        rows = [(key, images[key].float() / 255) for key in ("originals", "reconstruction") if len(images[key])]
        write_sheet(path, rows)
        return True


def exported(directory: str | Path) -> Iterator[Exported]:
    """The finished trials of what `undelta audit`, `attack`, `demo` or `defend` wrote."""
    place = Path(directory)
    if not (place / RUN).is_file():
        raise ConfigError(f"expected a directory that undelta audit or attack wrote, got {str(place)!r}")
    store = RunDirectory(place)
    thresholds = store.contents().thresholds
    for record in store.results():
        yield Exported(store=store, record=record, level=diagnose(record, thresholds).level)


def _flat(prefix: str, values: Mapping[str, Any]) -> dict[str, str]:
    return {
        f"{prefix}.{key}": value if isinstance(value, str) else json.dumps(value)
        for key, value in values.items()
        if value not in (None, [], {}, "")
    }
