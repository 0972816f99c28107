"""Bounds as part of an audit: once per update, resumed, judged beside the attacks, and never in the way."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from undelta.cli.console import print_judgment
from undelta.errors import DataError
from undelta.evaluation.lanczos import Krylov
from undelta.report import write_report
from undelta.studies import bounds
from undelta.studies.audit import judge_job, plan_recorded
from undelta.studies.bound_case import Question
from undelta.studies.bounds import Bounds, bound_all
from undelta.studies.products import Kept
from undelta.studies.screen import SILENT
from undelta.studies.single import simulate_job
from undelta.trials.bound_file import bound_key, read_bound, read_bounds
from undelta.trials.directory import RunDirectory
from undelta.trials.judgment import Judgment
from undelta.trials.leases import Leases
from undelta.trials.plan import Plan, load_plan
from undelta.trials.pool import Workers
from undelta.trials.worker import Trials

TOML = """
name = "Digits"
seeds = [0, 1]
noise = false

[scenario]
data = "digits"
num_samples = 2
model_arguments = { width = 2, hidden = 8 }
epochs = 1
batches = 2
learning_rate = 0.05

[[attacks]]
attack = "awa"
steps = 2

[[attacks]]
attack = "ig"
steps = 2

[[defenses]]
name = "noisy"
defenses = [{ defense = "noise", scale = 0.01 }]

[[defenses]]
name = "mixed up"
defenses = [{ defense = "mixup", alpha = 1.0 }]
"""


def tasks_of(directory: Path, plan: Plan) -> Bounds:
    wanted = {bound_key(trial.unmeasured()): trial for trial in reversed(plan.trials)}
    tasks = Bounds(directory=str(directory), keys=tuple(wanted), trials=wanted)
    for key in wanted:
        tasks.folder(key).mkdir(parents=True, exist_ok=True)
    return tasks


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan, Judgment]:
    """An audit with bounds, all in this process."""
    directory = tmp_path_factory.mktemp("audit")
    (directory / "audit.toml").write_text(TOML)
    plan, store = load_plan(directory / "audit.toml"), RunDirectory(directory / "out")
    store.prepare(plan.text, plan.trials, Leases(worker="start"), title=plan.name)
    Trials(directory=str(store.directory), keys=plan.keys).work()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "QUESTION", Question(products=20))
        tasks_of(store.directory, plan).work()
    return store.directory, plan, judge_job(plan, store).judgment


def test_each_update_is_bounded_once_and_compared_with_the_attacks_on_it(audited: tuple[Path, Plan, Judgment]) -> None:
    directory, plan, judgment = audited
    assert len(plan.keys) == 12
    assert len(list(directory.glob("bounds/*/bound.json"))) == 6, "two attacks share an update"
    none, noisy, mixed = (verdict.bound for verdict in judgment.verdicts)
    assert noisy is not None
    assert noisy.row is not None
    files = read_bounds(directory, [trial.unmeasured() for trial in plan.trials if trial.defense == "noisy"])
    assert len(files) == 4
    assert noisy.row.ceiling == max(row.ceiling for file in files.values() for row in file.rows)
    records = [RunDirectory(directory).record(trial.key) for trial in plan.trials if trial.defense == "noisy"]
    same = [record.psnr for record in records if record and record.seed == noisy.row.seed and record.psnr is not None]
    assert noisy.row.reached == max(same)
    verdict = judgment.verdicts[1]
    assert "no attack is expected to exceed about" in verdict.text
    assert f"reached {max(same):.1f}: {noisy.row.headroom:.1f} dB are left to attackers (mean PSNR, " in verdict.text
    assert none is not None
    assert none.row is not None
    assert none.row.bound > noisy.row.bound
    assert (mixed and mixed.reason) == "expected defenses that act on the update as a map and noise, got mixup"
    assert "No bound: expected defenses" in judgment.verdicts[2].text


def test_nobody_computes_what_is_there_and_failures_are_tried_again(
    audited: tuple[Path, Plan, Judgment], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, plan, _ = audited
    monkeypatch.setattr(bounds, "determine", lambda *_, **__: pytest.fail("computed again"))
    bound_all(directory, plan.trials, Workers(count=1), say=pytest.fail, screen=SILENT)
    begun: list[list[str]] = []
    monkeypatch.setattr(Workers, "work_off", lambda _, tasks, *__, **___: begun.append(tasks.unfinished()))
    kept = {path: path.read_bytes() for path in directory.glob("bounds/*/bound.json")}
    bound_all(directory, plan.trials, Workers(count=1), say=lambda _: None, screen=SILENT, retry=True)
    assert [len(keys) for keys in begun] == [2], "the two that were refused"
    for path, content in kept.items():
        path.write_bytes(content)


@pytest.fixture
def one(tmp_path: Path) -> Bounds:
    """One task of the audit: the last one, since its undefended update costs the most."""
    (tmp_path / "audit.toml").write_text(TOML)
    tasks = tasks_of(tmp_path, load_plan(tmp_path / "audit.toml"))
    return Bounds(directory=tasks.directory, keys=tasks.keys[-1:], trials=tasks.trials)


def test_a_stopped_one_resumes_to_the_same_numbers(
    audited: tuple[Path, Plan, Judgment], one: Bounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    (key,) = one.keys
    monkeypatch.setattr(bounds, "QUESTION", Question(products=20))
    monkeypatch.setattr(Kept, "SECONDS", 0.0)
    save, saved = Kept.save, list[str]()

    def stop(self: Kept, name: str, found: Krylov) -> None:
        save(self, name, found)
        saved.append(name)
        if len(saved) == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(Kept, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        one.work()
    assert sorted(path.name for path in one.folder(key).iterdir()) == ["products.safetensors"]
    assert one.unfinished() == [key]
    one.work()
    whole, again = read_bound(audited[0] / "bounds" / key), read_bound(one.folder(key))
    assert whole is not None
    assert again is not None
    assert again.rows == whole.rows
    assert sorted(path.name for path in one.folder(key).iterdir()) == ["bound.json", "pictures.safetensors"]


def test_what_goes_wrong_is_written_down(one: Bounds, monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(problem: BaseException) -> Callable[..., Any]:
        def fail(*_: object, **__: object) -> None:
            raise problem

        return fail

    monkeypatch.setattr(bounds, "determine", raising(ArithmeticError("no\nroot")))
    one.work()
    found = read_bound(one.folder(one.keys[0]))
    assert found is not None
    assert found.error == "ArithmeticError: no root"
    assert "ArithmeticError" in (one.folder(one.keys[0]) / "error.txt").read_text()
    assert not found.rows


def test_the_report_shows_ceilings_estimates_and_reasons(
    audited: tuple[Path, Plan, Judgment], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _, judgment = audited
    monkeypatch.setenv("COLUMNS", "120")
    print_judgment(judgment)
    shown = capsys.readouterr().out
    assert "headroom" in shown
    assert "Ceiling: the mean PSNR in dB that no attack is expected to exceed" in shown
    page = write_report(directory).read_text()
    section = page[page.index('<section id="bound"') : page.index('<section id="repeat"')]
    assert section.count("<tr") == 1 + 6
    assert "no bound: expected defenses that act on the update" in section
    assert "Assumptions: local" in section
    assert page.count("linear estimate, granted the derivative") >= 4
    assert "Whatever the attack" in page
    rows = list(csv.DictReader((directory / "report.csv").read_text().splitlines()))
    assert [bool(row["ceiling"]) for row in rows] == [row["defense"] != "mixed up" for row in rows]
    for row in rows:
        if row["ceiling"]:
            assert float(row["headroom"]) == pytest.approx(float(row["ceiling"]) - float(row["psnr"]))
    assert "## What no attack is expected to exceed" in (directory / "report.md").read_text()


def test_a_recorded_update_has_a_reason_in_place_of_a_bound(tmp_path: Path) -> None:
    scenario, seen, truth = (tmp_path / name for name in ("s.toml", "seen.safetensors", "truth.safetensors"))
    scenario.write_text('data = "digits"\nnum_samples = 2\nmodel_arguments = { width = 2, hidden = 8 }\nbatches = 1\n')
    simulate_job(scenario, observation_path=seen, truth_path=truth, seed=0)
    plan = plan_recorded([seen], attacks=["ig"], truths=[truth])
    tasks = tasks_of(tmp_path / "out", plan)
    tasks.work()
    store = RunDirectory(tmp_path / "out")
    store.prepare(plan.text, plan.trials, Leases(worker="start"), title=plan.name)
    (verdict,) = judge_job(plan, store).judgment.verdicts
    assert verdict.bound is not None
    assert verdict.bound.reason == "a recorded update does not tell its client's mini-batches"
    assert verdict.bound.ceiling is None


def test_a_damaged_bound_is_one_line_that_names_its_file(audited: tuple[Path, Plan, Judgment]) -> None:
    directory, plan, _ = audited
    path = next(directory.glob("bounds/*/bound.json"))
    content = path.read_bytes()
    path.write_text(json.dumps({**json.loads(content), "rows": 3}))
    with pytest.raises(DataError, match=r"bounds/[0-9a-f]{16}/bound\.json: rows: expected"):
        judge_job(plan, RunDirectory(directory))
    path.write_bytes(content)
