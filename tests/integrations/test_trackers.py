"""MLflow and TensorBoard: a real audit's records in a real local store."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.trials.directory import RunDirectory
from undelta.trials.leases import Leases
from undelta.trials.trial import Trial
from undelta.trials.worker import attempt

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
def mlflow() -> Any:
    return pytest.importorskip("mlflow", reason="MLflow is not installed: pip install '.[mlflow]'")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, mlflow: Any) -> str:
    """A store in a file, with its experiment's artifacts beside it."""
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = mlflow.MlflowClient(tracking_uri=uri)
    for name in ("plain", "pictured"):
        client.create_experiment(name, artifact_location=(folder / name).as_uri())
    return uri


def test_records_become_runs_once(audited: Path, database: str, mlflow: Any) -> None:
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
    audited: Path, database: str, mlflow: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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


def test_records_become_tensorboard_runs_once_with_pictures_if_asked_for(
    audited: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install '.[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from undelta.integrations.tensorboard import export, main

    assert export(audited, logdir=tmp_path / "plain") == 2
    assert export(audited, logdir=tmp_path / "plain") == 0
    names = sorted(path.name for path in (tmp_path / "plain").iterdir())
    assert names == [f"{trial.attack}-{trial.key}" for trial in TRIALS]
    record = RunDirectory(audited).record(TRIALS[1].key)
    assert record is not None
    events = EventAccumulator(str(tmp_path / "plain" / names[1])).Reload()
    (point,) = events.Scalars("psnr")
    assert (point.step, point.value) == (record.iterations, pytest.approx(record.psnr))
    assert len(events.Scalars("mismatch")) > 1
    assert not events.Tags()["images"]
    (about,) = events.Tensors("undelta/text_summary")
    assert b"| attack.steps | 12 |" in about.tensor_proto.string_val[0]
    monkeypatch.setattr(sys, "argv", ["tensorboard", str(audited), "--logdir", str(tmp_path / "seen"), "--pictures"])
    main()
    assert "2 new runs in" in capsys.readouterr().out
    (picture,) = EventAccumulator(str(tmp_path / "seen" / names[0])).Reload().Images("reconstruction")
    assert picture.encoded_image_string.startswith(b"\x89PNG")
