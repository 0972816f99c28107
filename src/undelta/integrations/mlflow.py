"""MLflow: an audit's records, and its pictures if you want them there, as runs of an experiment.

    python -m undelta.integrations.mlflow audit --tracking-uri sqlite:///mlflow.db

A run per trial, known by the trial's key: exporting a directory again adds what is new and leaves the rest.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from undelta.errors import ConfigError, UndeltaError
from undelta.files import to_json
from undelta.integrations.exported import Exported, exported
from undelta.trials.directory import VERDICT

KEY = "undelta.key"
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
    trials, client = list(exported(directory)), MlflowClient(tracking_uri=tracking_uri)
    try:
        found = client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else client.create_experiment(experiment)
        new = 0
        for trial in trials:
            there = client.search_runs([number], filter_string=f"tags.`{KEY}` = '{trial.record.key}'", max_results=1)
            if there and there[0].info.status != "RUNNING":  # one that was cut short is written again
                continue
            for half in there:
                client.delete_run(half.info.run_id)
            _write(client, number, trial, pictures=pictures)
            new += 1
    except MlflowException as problem:
        raise ConfigError(f"MLflow refuses: {' '.join(str(problem).split())[:300]}") from problem
    return new


def _write(client: MlflowClient, experiment: str, trial: Exported, *, pictures: bool) -> None:
    record, store = trial.record, trial.store
    tags = {
        KEY: record.key,
        "undelta.diagnosis": trial.level,
        "undelta.scenario": record.name,
        "undelta.defense": record.defense,
        "undelta.status": record.status,
        "undelta.title": store.contents().title,
    }
    run = client.create_run(experiment, tags=tags, run_name=trial.title[:250])
    identity = run.info.run_id
    parameters = [Param(key, value[:MOST_LETTERS]) for key, value in trial.settings().items()]
    for start in range(0, len(parameters), 100):
        client.log_batch(identity, params=parameters[start : start + 100])
    now = int(time.time() * 1000)
    metrics = [Metric(key, value, now, step) for key, value, step in trial.points()]
    for start in range(0, len(metrics), BATCH):
        client.log_batch(identity, metrics=metrics[start : start + BATCH])
    client.log_text(identity, to_json(record).decode(), "record.json")
    verdict = store.directory / VERDICT
    if verdict.is_file():
        client.log_artifact(identity, str(verdict))
    if pictures:
        with tempfile.TemporaryDirectory() as folder:
            if trial.write_pictures(sheet := Path(folder) / "reconstruction.png"):
                client.log_artifact(identity, str(sheet))
    client.set_terminated(identity, "FINISHED" if record.measured else "FAILED")


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
