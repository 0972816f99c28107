"""MLflow: a real audit's records in a real local store."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.trials.directory import RunDirectory
from undelta.trials.leases import Leases
from undelta.trials.trial import Trial
from undelta.trials.worker import attempt

mlflow = pytest.importorskip("mlflow", reason='MLflow is not installed: pip install "undelta[mlflow]"')
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)
SCENARIO = Scenario(
    data="faces",
    image_size=12,
    num_samples=1,
    model="mlp",
    model_arguments={"hidden": [8]},
    epochs=1,
    batches=1,
    learning_rate=0.05,
)
TRIALS = [
    Trial(scenario=SCENARIO, attack="analytic", name="one face"),
    Trial(scenario=SCENARIO, attack="sme", arguments={"steps": 12}, name="one face"),
]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished audit."""
    directory = tmp_path_factory.mktemp("audit")
    store, leases = RunDirectory(directory), Leases(worker="test")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNDELTA_LPIPS", "")
        patch.setenv("XDG_CACHE_HOME", os.devnull)
        store.prepare("name = 'faces'", TRIALS, leases, title="faces")
        for trial in TRIALS:
            lease = leases.acquire(store.folder(trial.key))
            assert lease is not None
            with lease:
                attempt(store, trial, lease)
    return directory


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store in a file, with its experiment's artifacts beside it."""
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = mlflow.MlflowClient(tracking_uri=uri)
    for name in ("plain", "pictured"):
        client.create_experiment(name, artifact_location=(folder / name).as_uri())
    return uri


def test_records_become_runs_once(audited: Path, database: str) -> None:
    from undelta.integrations.mlflow import export

    assert export(audited, tracking_uri=database, experiment="plain") == 2
    assert export(audited, tracking_uri=database, experiment="plain") == 0
    client = mlflow.MlflowClient(tracking_uri=database)
    runs = client.search_runs([client.get_experiment_by_name("plain").experiment_id])
    assert len(runs) == 2
    by_attack = {run.data.params["attack"]: run for run in runs}
    record = RunDirectory(audited).record(TRIALS[0].key)
    assert record is not None
    run = by_attack["analytic"]
    assert run.info.status == "FINISHED"
    assert run.data.metrics["psnr"] == pytest.approx(record.psnr)
    assert run.data.metrics["psnr"] > 30  # the closed form reveals the face
    assert (run.data.tags["undelta.diagnosis"], run.data.tags["undelta.key"]) == ("leaks", record.key)
    assert (run.data.params["scenario.model"], run.data.params["scenario.epochs"]) == ("mlp", "1")
    assert by_attack["sme"].data.params["attack.steps"] == "12"
    history = client.get_metric_history(by_attack["sme"].info.run_id, "mismatch")
    assert len({point.step for point in history}) > 1
    names = [item.path for item in client.list_artifacts(run.info.run_id)]
    assert names == ["record.json"]  # no picture that nobody asked for
    local = Path(client.download_artifacts(run.info.run_id, "record.json"))
    assert json.loads(local.read_text())["key"] == record.key


def test_pictures_are_stored_where_they_are_asked_for(
    audited: Path, database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from undelta.integrations.mlflow import main

    words = [str(audited), "--tracking-uri", database, "--experiment", "pictured", "--pictures"]
    monkeypatch.setattr(sys, "argv", ["mlflow", *words])
    main()
    assert "2 new runs in the experiment 'pictured'" in capsys.readouterr().out
    client = mlflow.MlflowClient(tracking_uri=database)
    (run, _) = client.search_runs([client.get_experiment_by_name("pictured").experiment_id])
    local = Path(client.download_artifacts(run.info.run_id, "reconstruction.png"))
    assert local.read_bytes().startswith(b"\x89PNG")


def test_what_is_no_run_directory_is_refused(tmp_path: Path, database: str) -> None:
    from undelta.integrations.mlflow import export

    with pytest.raises(ConfigError, match="expected a directory that undelta audit"):
        export(tmp_path, tracking_uri=database)
