"""MLflow: an audit's records, and its pictures if you want them there, as runs of an experiment.

    python -m undelta.integrations.mlflow audit --tracking-uri sqlite:///mlflow.db

A run per trial, known by the trial's key: exporting a directory again adds what is new and leaves the rest.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from undelta.errors import ConfigError, DataError, UndeltaError
from undelta.files import read_tensors, to_json
from undelta.trials.diagnosis import diagnose
from undelta.trials.directory import VERDICT, RunDirectory
from undelta.trials.pictures import write_sheet
from undelta.trials.record import Record

KEY = "undelta.key"
NUMBERS = (
    *("psnr", "ssim", "lpips", "mse", "fraction_recovered", "mismatch", "resolution"),
    *("epsilon", "delta", "seconds", "iterations", "peak_memory_mb"),
)
MOST_LETTERS = 500  # of a parameter; older servers take no more
BATCH = 900  # metrics at once; servers take 1000


def export(
    directory: str | Path, *, tracking_uri: str | None = None, experiment: str = "undelta", pictures: bool = False
) -> int:
    """Write the finished trials of a run directory as MLflow runs; returns how many are new.

    Args:
        directory: What `undelta audit`, `attack`, `demo` or `defend` wrote.
        tracking_uri: The store, such as ``sqlite:///mlflow.db``; by default, the one that MLflow is set to.
        experiment: The experiment's name; it is made if it is not there.
        pictures: Whether to store originals and reconstructions, too. They are private: whoever can read the store can
            see them.
    """
    place = Path(directory)
    if not (place / "run.json").is_file():
        raise ConfigError(f"expected a directory that undelta audit or attack wrote, got {str(place)!r}")
    store, client = RunDirectory(place), MlflowClient(tracking_uri=tracking_uri)
    thresholds = store.contents().thresholds
    try:
        found = client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else client.create_experiment(experiment)
        new = 0
        for record in store.results():
            there = client.search_runs([number], filter_string=f"tags.`{KEY}` = '{record.key}'", max_results=1)
            if there and there[0].info.status != "RUNNING":  # one that was cut short is written again
                continue
            for half in there:
                client.delete_run(half.info.run_id)
            level = diagnose(record, thresholds).level
            _write(client, number, store, record, level=level, pictures=pictures)
            new += 1
    except MlflowException as problem:
        raise ConfigError(f"MLflow refuses: {' '.join(str(problem).split())[:300]}") from problem
    return new


def _write(
    client: MlflowClient, experiment: str, store: RunDirectory, record: Record, *, level: str, pictures: bool
) -> None:
    tags = {
        KEY: record.key,
        "undelta.diagnosis": level,
        "undelta.scenario": record.name,
        "undelta.defense": record.defense,
        "undelta.status": record.status,
        "undelta.title": store.contents().title,
    }
    run = client.create_run(experiment, tags=tags, run_name=f"{record.attack}, seed {record.seed}: {record.name}"[:250])
    identity = run.info.run_id
    given = {"attack": record.attack, "seed": record.seed, **_flat("attack", record.arguments)}
    parameters = [
        Param(key, str(value)[:MOST_LETTERS]) for key, value in {**given, **_flat("scenario", record.scenario)}.items()
    ]
    for start in range(0, len(parameters), 100):
        client.log_batch(identity, params=parameters[start : start + 100])
    metrics = list(_metrics(record))
    for start in range(0, len(metrics), BATCH):
        client.log_batch(identity, metrics=metrics[start : start + BATCH])
    client.log_text(identity, to_json(record).decode(), "record.json")
    verdict = store.directory / VERDICT
    if verdict.is_file():
        client.log_artifact(identity, str(verdict))
    if pictures and (path := store.pictures(record.key)):
        with tempfile.TemporaryDirectory() as folder:
            images, _ = read_tensors(path, kind="pictures", error=DataError)
            rows = [(key, images[key].float() / 255) for key in ("originals", "reconstruction") if len(images[key])]
            write_sheet(Path(folder) / "reconstruction.png", rows)
            client.log_artifact(identity, str(Path(folder) / "reconstruction.png"))
    client.set_terminated(identity, "FINISHED" if record.measured else "FAILED")


def _metrics(record: Record) -> Iterator[Metric]:
    """Final values at the last iteration, and the attack's history on the way there."""
    now, last = int(time.time() * 1000), record.iterations or 0
    for key in NUMBERS:
        value = getattr(record, key)
        if value is not None:
            yield Metric(key, float(value), now, last)
    for step in record.history:
        if step.mismatch is not None and step.iteration < last:
            yield Metric("mismatch", step.mismatch, now, step.iteration)
    for index, image in enumerate(record.images):
        for key in ("psnr", "ssim"):
            if (value := getattr(image, key)) is not None:
                yield Metric(f"image_{key}", float(value), now, index)


def _flat(prefix: str, values: Mapping[str, Any]) -> dict[str, str]:
    return {
        f"{prefix}.{key}": value if isinstance(value, str) else json.dumps(value)
        for key, value in values.items()
        if value not in (None, [], {}, "")
    }


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(prog="python -m undelta.integrations.mlflow", description=__doc__)
    options.add_argument("directory", type=Path)
    options.add_argument("--tracking-uri", help="the store; by default, the one that MLflow is set to")
    options.add_argument("--experiment", default="undelta")
    options.add_argument("--pictures", action="store_true", help="store private pictures there, too")
    given = options.parse_args()
    try:
        new = export(
            given.directory,
            tracking_uri=given.tracking_uri,
            experiment=given.experiment,
            pictures=given.pictures,
        )
    except UndeltaError as problem:
        sys.exit(f"Error: {problem}")
    print(f"{new} new runs in the experiment {given.experiment!r}.")  # noqa: T201


if __name__ == "__main__":
    main()
