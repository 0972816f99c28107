"""NVFlare: filters from a site's own policy, and the example in a real simulation of two sites."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare", reason='NVFlare is not installed: pip install "undelta[nvflare]"')

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.utils.task_utils import apply_filters
from nvflare.apis.workspace import Workspace
from nvflare.app_common.app_constant import AppConstants
from nvflare.private.fed.app.fl_conf import create_privacy_manager

from undelta.client.private import Private
from undelta.models import build
from undelta.observation import ImageSpec
from undelta.observation.file import load_observation
from undelta.studies.single import attack_job
from undelta.trials.judgment import read_judgment

EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare"
FILTERS = "undelta.integrations.nvflare"
IMAGE = ImageSpec(shape=(1, 4, 4), mean=(0.5,), std=(0.25,), classes=3)
HOW: dict[str, Any] = {
    "model": "mlp",
    "model_arguments": {"hidden": [5]},
    "image": {"shape": [1, 4, 4], "mean": [0.5], "std": [0.25], "classes": 3},
    "training": {"epochs": 1, "batch_size": 1, "learning_rate": 0.1},
}
CLOSED_FORM = {"attack": "analytic", "arguments": {}}
PICTURE = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(1))


def own_picture() -> Private:
    """The truth, by the name that a policy gives."""
    return Private(images=PICTURE, labels=torch.tensor([1]))


def missing_picture() -> Private:
    raise OSError("the disk is gone")


def weights() -> tuple[dict[str, Any], dict[str, Any]]:
    """Before and after one step on one picture, of which the closed form reveals every pixel."""
    torch.manual_seed(0)
    model = build("mlp", HOW["model_arguments"], shape=IMAGE.shape, classes=IMAGE.classes)
    before = {name: value.detach().numpy().copy() for name, value in model.named_parameters()}
    torch.nn.functional.cross_entropy(model(IMAGE.normalize(PICTURE)), torch.tensor([1])).backward()
    after = {name: before[name] - 0.1 * value.grad.numpy() for name, value in model.named_parameters()}  # type: ignore[union-attr]
    return before, after


def drowned(after: dict[str, Any]) -> dict[str, Any]:
    noise = np.random.default_rng(0)
    return {name: value + noise.normal(size=value.shape).astype(np.float32) for name, value in after.items()}


class Site:
    """A site with a policy in its local folder, as NVFlare itself reads and applies it."""

    def __init__(self, folder: Path, name: str, arguments: dict[str, Any], *, keep: bool = True) -> None:
        for place in ("local", "startup"):
            (folder / place).mkdir(parents=True)
        result = {"path": f"{FILTERS}.{name}", "args": arguments}
        data = [{"path": f"{FILTERS}.KeepSent"}] if keep else []
        scope = {"name": "only", "task_data_filters": data, "task_result_filters": [result]}
        policy = {"scopes": [scope], "default_scope": "only"}
        (folder / "local" / "privacy.json").write_text(json.dumps(policy))
        self.scope = create_privacy_manager(Workspace(str(folder), "site-1"), names_only=False).get_scope("")

    def send(self, result: Shareable | DXO, before: dict[str, Any] | None = None) -> Any:
        """What leaves the site at the end of a task that began with these weights."""
        context = FLContext()
        for key, value in (
            (FLContextKey.SCOPE_OBJECT, self.scope),
            (ReservedKey.IDENTITY_NAME, "site/1"),
            (ReservedKey.RUN_NUM, "job"),
        ):
            context.set_prop(key, value, private=True, sticky=False)
        task = DXO(DataKind.WEIGHTS, data=before or weights()[0]).to_shareable()
        task.set_header(AppConstants.CURRENT_ROUND, 3)
        apply_filters("task_data_filters", task, context, {}, "train", FilterKey.IN)
        for array in task["DXO"]["data"].values():
            array[:] = 0  # a trainer that works in place
        shareable = result.to_shareable() if isinstance(result, DXO) else result
        return apply_filters("task_result_filters", shareable, context, {}, "train", FilterKey.OUT)


def result_of(data: dict[str, Any], kind: Any = DataKind.WEIGHTS, **meta: Any) -> DXO:
    return DXO(kind, data=data, meta={"num_samples": 1, **meta})


def with_header(result: Shareable | DXO, value: Any) -> Shareable:
    """A result whose picture travels among the headers."""
    shareable = result.to_shareable() if isinstance(result, DXO) else result
    shareable.set_header("note", value)
    return shareable


def beside_the_data(result: DXO, value: Any) -> Shareable:
    """A result whose picture travels in the DXO, where nobody reads it."""
    shareable = result.to_shareable()
    shareable["DXO"]["note"] = value
    return shareable


@pytest.fixture
def site(tmp_path: Path) -> Callable[..., Site]:
    return lambda name, *, keep=True, **changes: Site(tmp_path / "site", name, {**HOW, **changes}, keep=keep)


def here(name: str) -> str:
    return f"{__name__}:{name}"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])


def test_weights_and_their_differences_are_recorded_as_the_same_update(
    tmp_path: Path, site: Callable[..., Site]
) -> None:
    before, after = weights()
    recording = site("RecordUpdate", into=str(tmp_path / "own"), truth=here("own_picture"))
    path = tmp_path / "own" / "job-round-3-site_1.safetensors"
    passed = recording.send(result_of(dict(after)))
    assert all(np.array_equal(value, after[name]) for name, value in passed["DXO"]["data"].items())
    seen = load_observation(path)
    assert (seen.num_samples, seen.training.learning_rate, seen.unknown, seen.labels) == (1, 0.1, (), None)
    assert all(np.array_equal(seen.initial[name].numpy(), value) for name, value in before.items())
    assert all(np.array_equal(seen.received[name].numpy(), value) for name, value in after.items())
    assert (tmp_path / "own" / f"truth-{path.name}").is_file()
    recording.send(result_of({name: after[name] - before[name] for name in after}, DataKind.WEIGHT_DIFF))
    again = load_observation(path)
    for name, value in after.items():
        assert np.allclose(again.received[name].numpy(), value, atol=1e-7)


@pytest.mark.parametrize(
    ("changes", "meta", "reason"),
    [
        ({"keep": False}, {}, "KeepSent among the task_data_filters"),
        ({}, {"num_samples": "many"}, "got 'many'; name another key"),
        ({"model": "mlpp"}, {}, "unknown model 'mlpp'"),
        ({"truth": here("missing_picture")}, {}, "the disk is gone"),
    ],
)
def test_a_failure_to_record_is_a_warning_and_the_update_goes_on(
    tmp_path: Path,
    site: Callable[..., Site],
    changes: dict[str, Any],
    meta: dict[str, Any],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, after = weights()
    passed = site("RecordUpdate", into=str(tmp_path / "own"), **changes).send(result_of(dict(after), **meta))
    assert all(np.array_equal(value, after[name]) for name, value in passed["DXO"]["data"].items())
    said = [line.getMessage() for line in caplog.records if line.name == "nvflare.undelta"]
    assert len(said) == 1
    assert reason in said[0]
    assert "training continues" in said[0]


@pytest.mark.parametrize(
    "bounds", [{"truth": here("own_picture"), "fail_above": {"psnr": 30.0}}, {"truth": here("own_picture")}, {}]
)
def test_an_update_that_reveals_its_picture_is_blocked_and_a_drowned_one_goes(
    site: Callable[..., Site], bounds: dict[str, Any]
) -> None:
    _, after = weights()
    guarded = site("GuardUpdate", **CLOSED_FORM, **bounds)
    with pytest.raises(ContentBlockedException, match="the owner of the data keeps this update back"):
        guarded.send(result_of(dict(after)))
    noisy = drowned(after)
    passed = guarded.send(result_of(dict(noisy)))
    assert all(np.array_equal(value, noisy[name]) for name, value in passed["DXO"]["data"].items())


@pytest.mark.parametrize(
    ("changes", "result"),
    [
        ({"keep": False}, result_of(drowned(weights()[1]))),
        ({}, result_of(drowned(weights()[1]), num_samples=None)),
        ({"model_arguments": {"hidden": [6]}}, result_of(drowned(weights()[1]))),
        ({"truth": here("missing_picture")}, result_of(drowned(weights()[1]))),
        ({}, result_of({"picture": PICTURE.numpy()}, DataKind.ANALYTIC)),
        ({}, result_of({"a": DXO(DataKind.WEIGHTS, data=weights()[1])}, DataKind.COLLECTION)),
        ({}, result_of({"accuracy": 0.5, "picture": PICTURE.tolist() * 200}, DataKind.METRICS)),
        ({}, result_of({"rows": [[0.5] * 20] * 20}, DataKind.METRICS)),
        ({}, result_of({"number": 10**400}, DataKind.METRICS)),
        ({}, result_of(drowned(weights()[1]), picture=PICTURE.tolist() * 10)),
        ({}, result_of({"accuracy": 0.5}, DataKind.METRICS, picture=PICTURE.numpy())),
        ({}, Shareable({"picture": PICTURE.numpy()})),
        ({}, with_header(result_of(drowned(weights()[1])), PICTURE.numpy())),
        ({}, with_header(result_of(drowned(weights()[1])), PICTURE.tolist() * 10)),
        ({}, with_header(result_of({"accuracy": 0.5}, DataKind.METRICS), PICTURE)),
        ({}, with_header(make_reply(ReturnCode.EXECUTION_EXCEPTION), PICTURE.numpy().tobytes() * 40)),
        ({}, beside_the_data(result_of(drowned(weights()[1])), PICTURE.numpy())),
        ({"passing": ["STATISTICS"]}, with_header(result_of({"a": 1}, DataKind.STATISTICS), PICTURE.numpy())),
    ],
)
def test_what_cannot_be_measured_is_blocked(
    site: Callable[..., Site], changes: dict[str, Any], result: Shareable | DXO
) -> None:
    with pytest.raises(ContentBlockedException):
        site("GuardUpdate", **{**CLOSED_FORM, **changes}).send(result)


def test_plain_numbers_errors_and_named_kinds_pass(site: Callable[..., Site]) -> None:
    guarded = site("GuardUpdate", **CLOSED_FORM, passing=["STATISTICS"])
    guarded.send(result_of({"accuracy": 0.5}, DataKind.METRICS))
    guarded.send(result_of({"histogram": np.ones(5)}, DataKind.STATISTICS))
    usual = with_header(result_of(drowned(weights()[1])), {"current_round": 3, "start_round": 0})
    assert guarded.send(usual).get_header("note") == {"current_round": 3, "start_round": 0}
    reply = guarded.send(make_reply(ReturnCode.EXECUTION_EXCEPTION))
    assert reply.get_return_code() == ReturnCode.EXECUTION_EXCEPTION


def test_a_task_with_strange_data_still_reaches_the_trainer(site: Callable[..., Site]) -> None:
    guarded = site("GuardUpdate", **CLOSED_FORM)
    with pytest.raises(ContentBlockedException):  # but nothing leaves that could not be compared
        guarded.send(result_of(drowned(weights()[1])), before={"words": np.array(["a", "b"], dtype=object)})


@contextmanager
def audits_of(site: Site) -> Iterator[Any]:
    """The audits of the recording filter in the site's policy; none is left running."""
    (recording,) = site.scope.task_result_filters[FilterKey.OUT]
    try:
        yield recording._audits
    finally:
        if process := recording._audits.process:
            process.kill()
            process.wait()


def test_a_recorded_update_is_audited_aside(tmp_path: Path, site: Callable[..., Site]) -> None:
    recording = site("RecordUpdate", into=str(tmp_path / "own"), truth=here("own_picture"), audit=CLOSED_FORM)
    (tmp_path / "own" / "audits" / ".killed.new" / "trials").mkdir(parents=True)
    with audits_of(recording) as audits:
        recording.send(result_of(weights()[1]))
        assert audits.process.wait(120) == 0
    folder = tmp_path / "own" / "audits" / "job-round-3-site_1"
    judgment = read_judgment(folder)
    assert judgment is not None
    assert judgment.verdicts[0].level == "leaks"
    assert (folder / "report.html").is_file()
    said = folder.with_name(f"{folder.name}.log").read_text()
    assert "with analytic, niceness 19, 3600 s at most" in said
    assert judgment.headline in said
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, f"{folder.name}.log", ".lock"}


def test_one_audit_runs_at_a_time_and_a_killed_one_leaves_no_lock_and_no_result(
    tmp_path: Path, site: Callable[..., Site], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="nvflare.undelta")
    endless = {"attack": "sme", "arguments": {"steps": 10**6}}
    recording = site("RecordUpdate", into=str(tmp_path / "own"), audit=endless)
    with audits_of(recording) as audits:
        recording.send(result_of(weights()[1]))
        first = audits.process
        recording.send(result_of(weights()[1]))
        assert audits.process is first
        assert "is not audited, since another audit is under way" in caplog.text
        assert first.poll() is None
        first.kill()
        first.wait()
        assert [path.name for path in (tmp_path / "own" / "audits").iterdir() if not path.name.startswith(".")] == [
            "job-round-3-site_1.log"
        ]
        recording.send(result_of(weights()[1]))
        assert audits.process is not first


def test_an_audit_ends_when_its_processor_time_is_used_up(tmp_path: Path, site: Callable[..., Site]) -> None:
    endless = {"attack": "sme", "arguments": {"steps": 10**6}, "seconds": 1}
    recording = site("RecordUpdate", into=str(tmp_path / "own"), audit=endless)
    with audits_of(recording) as audits:
        recording.send(result_of(weights()[1]))
        assert audits.process.wait(120) in (-signal.SIGXCPU, -signal.SIGKILL)
    assert not (tmp_path / "own" / "audits" / "job-round-3-site_1").exists()


@pytest.mark.parametrize(
    ("audit", "reason"),
    [({"attack": "strongset"}, "strongset"), ({"steps": 3}, "steps"), ({"seconds": 0}, "expected seconds >= 1")],
)
def test_a_mistake_in_the_audit_s_settings_is_a_warning_and_updates_are_recorded(
    tmp_path: Path, site: Callable[..., Site], audit: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    site("RecordUpdate", into=str(tmp_path / "own"), audit=audit).send(result_of(weights()[1]))
    assert (tmp_path / "own" / "job-round-3-site_1.safetensors").is_file()
    (said,) = [line.getMessage() for line in caplog.records if line.name == "nvflare.undelta"]
    assert said.startswith("undelta: recorded updates are not audited, training continues: ")
    assert reason in said


def test_two_simulated_sites_are_recorded_and_attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "UNDELTA_LPIPS": "", "XDG_CACHE_HOME": os.devnull}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "simulate_sites.py"), "--out", "out", "--rounds", "1"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    recorded = sorted((tmp_path / "out" / "recorded").iterdir())
    assert [path.name for path in recorded] == [f"simulate_job-round-0-site-{n}.safetensors" for n in (1, 2)]
    monkeypatch.syspath_prepend(str(EXAMPLE))
    task = importlib.import_module("site_data")
    for number, path in enumerate(recorded):
        seen = load_observation(path, model="site_data:SmallCNN")
        assert (seen.num_samples, seen.training.epochs, seen.training.batches) == (4, 2, 2)
        # The site's round again, by torch alone, on its own photographs.
        model, private = task.SmallCNN(), task.photographs(number)
        model.load_state_dict(seen.initial)
        inputs, generator = task.IMAGE.normalize(private.images), torch.Generator().manual_seed(0)
        for _ in range(2):
            for batch in torch.randperm(4, generator=generator).split(2):
                loss = torch.nn.functional.cross_entropy(model(inputs[batch]), private.labels[batch])
                slopes = torch.autograd.grad(loss, list(model.parameters()))
                with torch.no_grad():
                    for value, slope in zip(model.parameters(), slopes, strict=True):
                        value -= task.LEARNING_RATE * slope
        for name, value in model.state_dict().items():
            assert (seen.received[name] - value).abs().max() < 1e-6
            assert not torch.equal(seen.received[name], seen.initial[name])
    done_attack = attack_job(
        recorded[0],
        attack="sme",
        arguments={"steps": 3},
        out=tmp_path / "run",
        seed=0,
        model="site_data:SmallCNN",
    )
    assert done_attack.status == "completed"
