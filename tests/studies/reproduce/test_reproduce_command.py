"""`undelta reproduce` from outside: all eight at smoke scale, killed and resumed; tables of what is there; mistakes."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from undelta.attacker.weights import PAPER_Q
from undelta.cli import app, main
from undelta.errors import ConfigError, UndeltaError
from undelta.files import to_json
from undelta.report import write_report
from undelta.studies.reproduce import job
from undelta.studies.reproduce.job import make_plan, reproduce_job
from undelta.studies.reproduce.published import AWA
from undelta.studies.reproduce.reproductions import REPRODUCTIONS, TUNED, Asked, cells_of
from undelta.studies.reproduce.scales import SCALES, Scale
from undelta.studies.reproduce.tuned import MARKS, TUNING_SEED, check_tuned, tune
from undelta.studies.tuning import jobs
from undelta.studies.tuning.storage import DATABASE
from undelta.trials.config import load_scenario
from undelta.trials.directory import PLAN, RunDirectory
from undelta.trials.leases import Leases
from undelta.trials.plan import Plan
from undelta.trials.pool import Workers

CLOCK = ("seconds", "peak_memory_mb", "date")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDELTA_LPIPS", "")
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)


def start(out: Path) -> subprocess.Popen[bytes]:
    words = [
        "reproduce",
        "all",
        "--scale",
        "smoke",
        "--out",
        str(out),
        "--workers",
        "1",
        "--checkpoint-seconds",
        "0.02",
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "undelta", *words],
        start_new_session=True,  # a process group of its own, to be killed as a whole
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "UNDELTA_LPIPS": "", "XDG_CACHE_HOME": os.devnull},
    )


def records(out: Path) -> dict[str, dict[str, Any]]:
    return {path.parent.name: json.loads(path.read_text()) for path in out.glob("trials/*/record.json")}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All eight, killed in the middle and resumed."""
    out = tmp_path_factory.mktemp("smoke") / "out"
    process = start(out)
    deadline = time.monotonic() + 200
    while len(list(out.glob("trials/*/record.json"))) < 5 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = {path: path.stat().st_mtime_ns for path in out.glob("trials/*/record.json")}
    wanted = len(list(out.glob("trials/*/trial.json")))
    assert 5 <= len(before) < wanted
    assert not (out / "comparison.md").exists()

    process = start(out)
    printed = process.communicate(timeout=500)[0].decode()
    assert process.returncode == 0, printed
    assert {path: path.stat().st_mtime_ns for path in before} == before  # what was done is not done again
    assert len(records(out)) >= wanted  # more where weights were tuned first
    assert "comparison: " in printed
    assert "Nothing follows from the smoke scale" in printed
    return out


def test_all_eight_run_at_smoke_scale_and_leave_tables_figures_and_claims(smoke: Path) -> None:
    assert {record["status"] for record in records(smoke).values()} == {"completed"}
    for name in REPRODUCTIONS:
        page = (smoke / f"{name}.md").read_text()
        assert "## Which of the paper's claims hold here" in page
        assert f"undelta reproduce {name} --scale smoke" in page
        assert (smoke / f"{name}.tex").read_text().count("\\begin{tabular}") == 1
        for metric in ("psnr", "ssim"):
            root = ET.fromstring((smoke / f"{name}-{metric}.svg").read_text())  # noqa: S314 (our own file)
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            assert f"{name}-{metric}.svg" in page
        with Image.open(smoke / f"{name}.png") as picture:
            assert picture.width > 100
    assert (smoke / "findings.md").read_text().count("\n## ") == 8
    assert not list(smoke.glob("*-lpips.svg"))  # its weights are not there


def test_the_table_has_the_papers_figures_and_the_records_means(smoke: Path) -> None:
    with (smoke / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10 * 8 * 3
    mine = {(row["paper_case"], row["method"], row["metric"]): row for row in rows}
    cell = mine["N=8, E=16, B=4", "GENG", "psnr"]
    assert (cell["paper"], cell["case"], cell["scale"]) == ("10.07", "N=2, E=4, B=2", "smoke")
    found = [
        record["psnr"]
        for record in records(smoke).values()
        if (record["attack"], record["name"]) == ("geng_epoch", "N=2, E=4, B=2")
    ]
    assert [float(cell["mean"])] == found
    page = (smoke / "comparison.md").read_text()
    assert f"| 10.07 | {found[0]:.2f} |" in page
    dash = mine["N=128, E=32, B=8", "iDLG", "ssim"]
    assert (dash["paper"], dash["mean"], dash["trials"]) == ("", "", "0")
    assert dash["note"] == "not run: impractical (paper too)"
    assert page.count("\n| N=") == 4 * 3 + 4  # the cases that were run: a row for each metric, and one of floors
    left_out = "\nLeft out: N=32, E=8, B=4; N=32, E=16, B=4; N=64, E=32, B=4; N=64, E=32, B=8; N=128, E=32, B=4; N="
    assert left_out in page
    assert "Reasons: more than 3 images take too long here; impractical (paper too).\n" in page
    baselines = page.partition("## Baselines and floors")[2]
    assert baselines.count("\n| N=") == 4  # the cases that were run
    assert "| AWA, paper | AWA, ours | AWA, Q tuned here | strongest (ours) |" in page  # the paper has no such figures
    assert "Nothing follows from the smoke scale" in page


def test_every_table_has_baselines_and_floors(smoke: Path) -> None:
    page = (smoke / "ablation.md").read_text()
    header, _, line = page.partition("## Baselines and floors")[2].strip().splitlines()[3:6]
    assert header.startswith("| Case | Mean color | Pure noise | approximation only |")
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    found = [record for record in records(smoke).values() if record["name"] == cells[0] and record["attack"] == "awa"]
    plain = next(record for record in found if record["arguments"].get("form") == "approximation")
    (noise,) = [record["baselines"]["pure noise"] for record in found if "pure noise" in record["baselines"]]
    assert cells[1:3] == [f"{one['psnr']:.2f}" for one in (plain["baselines"]["mean color"], noise)]
    assert cells[3] == f"{plain['mismatch']:.4f} ({plain['floor']['mismatch']:.4f})"
    assert "Iterations: approximation only 6, linear weights 6, AWA 6" in page


def test_an_ordinary_report_of_the_directory_works(smoke: Path) -> None:
    page = write_report(smoke).read_text()
    assert "The paper&#39;s experiments at smoke scale" in page
    order = [line.split("|")[1].strip() for line in (smoke / "report.md").read_text().splitlines() if "| idlg" in line]
    assert order[0] == "N=2, E=2, B=2"


def test_rendering_again_runs_nothing_and_changes_nothing(smoke: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "run_plan", None)
    before = (smoke / "ablation.md").read_bytes()
    (smoke / "ablation.md").unlink()
    done = reproduce_job("ablation", out=smoke, render_only=True)
    assert list(done.findings) == ["ablation"]
    assert (smoke / "ablation.md").read_bytes() == before


# Rendering what is there


@pytest.fixture
def plan() -> Plan:
    """The ablation, before anything is tuned."""
    return make_plan(Asked(scale="smoke", data="faces", seeds=(0, 1), names=("ablation",)))


@pytest.fixture
def half_done(plan: Plan, smoke: Path, tmp_path: Path) -> Path:
    """The ablation with two seeds: seed 0 as it ran, of seed 1 one trial failed, and the others are not there yet."""
    store = RunDirectory(tmp_path)
    store.prepare(plan.text, plan.trials, Leases(worker="test"), title=plan.name, kind=plan.kind)
    done = records(smoke)
    first = next(trial for trial in plan.trials if trial.seed == 1)
    for trial in plan.trials:
        folder = store.folder(trial.key)
        if trial.seed == 0:
            (folder / "record.json").write_text(json.dumps(done[trial.key]))
        elif trial is first:
            (folder / "record.json").write_bytes(to_json(trial.unmeasured("failed", "RuntimeError: it | broke")))
    return tmp_path


def test_missing_and_failed_trials_are_said_and_not_averaged(half_done: Path) -> None:
    done = reproduce_job("ablation", out=half_done, render_only=True)
    page = (half_done / "ablation.md").read_text()
    assert "3 of 6 trials have numbers." in page
    assert page.count("(1 of 2 seeds)") >= 9
    assert "## Trials without numbers" in page
    assert "failed: RuntimeError: it \\| broke" in page
    assert "That is too few: a difference counts from 3 seeds on" in done.findings["ablation"][0].numbers
    assert not (half_done / "ablation.png").exists()  # no pictures were kept


def test_a_directory_without_any_result_is_rendered_too(plan: Plan, half_done: Path) -> None:
    for path in half_done.glob("trials/*/record.json"):
        path.unlink()
    done = reproduce_job("ablation", out=half_done, render_only=True)
    assert {claim.outcome for claim in done.findings["ablation"]} == {"not measured"}
    page = (half_done / "ablation.md").read_text()
    assert page.count("not finished") == 9
    assert "Baselines" not in page
    assert not list(half_done.glob("*.svg"))


def test_a_tunings_history_is_drawn_and_its_weights_stand_beside_the_papers(plan: Plan, half_done: Path) -> None:
    text = plan.text.replace('names = ["ablation"]', 'names = ["ablation", "tuning"]')
    (half_done / "audit.toml").write_text(text)
    trials = [{"number": n, "value": 0.5 - n / 100, "parameters": {"conv": 7.25 + n, "p_var": 0.125}} for n in range(4)]
    (half_done / "tuning.json").write_text(json.dumps({"trials": trials}))
    done = reproduce_job("tuning", out=half_done, render_only=True)
    page = (half_done / "tuning.md").read_text()
    assert "| conv | 1 to 1000 | 694.99 | 10.25 |" in page
    assert "| norm | 1 to 1000 | 898.67 | n/a |" in page.replace("\\", "")
    assert "tuning-minimum.svg" in page
    assert "not tuned yet" in page
    assert done.findings["tuning"][0].outcome == "holds in part"  # lower, but a single one


def test_a_tunings_trials_are_shown_whatever_ended_the_run_that_made_them(plan: Plan, half_done: Path) -> None:
    (half_done / "audit.toml").write_text(plan.text.replace('names = ["ablation"]', 'names = ["ablation", "tuning"]'))
    trials = [{"number": n, "value": 0.5 - n / 100, "parameters": {"conv": 7.25 + n}} for n in range(4)]
    (half_done / "tuning").mkdir()
    made, shown = half_done / "tuning" / "tuning.json", half_done / "tuning.json"
    made.write_text(json.dumps({"trials": trials}))
    done = reproduce_job("tuning", out=half_done, render_only=True)
    assert shown.read_bytes() == made.read_bytes()
    assert done.findings["tuning"][0].outcome == "holds in part"  # lower, but a single one
    written = shown.stat().st_mtime_ns
    reproduce_job("tuning", out=half_done, render_only=True)
    assert shown.stat().st_mtime_ns == written
    made.write_text(json.dumps({"trials": trials[:3]}))  # of which the last is random
    assert reproduce_job("tuning", out=half_done, render_only=True).findings["tuning"][0].outcome == "not measured"


# Tuning before the trials


class Enough(Exception):
    """Instead of work."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a tuning is asked for; none is run, and no trial either."""
    options: dict[str, Any] = {}

    def stop(*words: object, **_: object) -> None:
        raise Enough

    monkeypatch.setattr(jobs, "tune_job", lambda source, **given: options.update(given, source=source))
    monkeypatch.setattr(job, "run_plan", stop)
    return options


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_a_tuning_is_the_papers_procedure_with_the_scales_numbers(
    asked: dict[str, Any], tmp_path: Path, scale: Scale
) -> None:
    planned = Asked(scale=scale.name, data="faces", seeds=(3,), names=("tuning",))
    tune(planned, tmp_path, workers=Workers(count=2), checkpoint_seconds=5.0)
    assert asked["prune"] is False  # the paper evaluates every trial in full
    assert (asked["trials"], asked["random"]) == (scale.tuning_trials, scale.tuning_random)
    assert (asked["steps"], asked["seed"], asked["workers"].count) == (scale.tuning_iterations, TUNING_SEED, 2)
    assert asked["kernel"] == "matern"
    assert asked["arguments"] == {"setting": "paper", "learning_rate": scale.attack_rate, **scale.priors}
    assert not {"box", "objective", "attack"} & set(asked)  # f(Q) of AWA in the paper's box, unless said otherwise
    # As the trials of the paper's Q in the same scenario, but for the iterations.
    cells = cells_of(REPRODUCTIONS["tuning"], scale, data="faces", seeds=(3,))
    (trial,) = next(cell.trials for cell in cells if cell.method == AWA)
    assert load_scenario(asked["source"]) == replace(trial.simulated, data=scale.tuning_data or "faces")
    assert {**asked["arguments"], "steps": trial.arguments["steps"]} == trial.arguments


def test_a_tunings_settings_are_those_that_awa_has_and_its_file_tells_them(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    planned = Asked(
        scale="smoke",
        data="faces",
        seeds=(3,),
        names=("comparison",),
        settings={"tv": 0.2, "steps": 9, "depth_weight": 2.0},
        kernel="gaussian",
    )
    tune(planned, tmp_path, workers=Workers(count=1), checkpoint_seconds=5.0)
    assert asked["kernel"] == "gaussian"
    assert asked["arguments"]["tv"] == 0.2
    assert not {"steps", "depth_weight"} & set(asked["arguments"])
    (tmp_path / "tuning").mkdir()
    q = "\n".join(f"{key} = {value}" for key, value in vars(PAPER_Q).items())
    (tmp_path / "tuning" / "weights.toml").write_text(f"[q]\n{q}\n")
    check_tuned(planned, tmp_path)
    for other in (replace(planned, kernel="matern"), replace(planned, settings={"tv": 0.3})):
        with pytest.raises(UndeltaError, match="layer weights tuned at another scale"):
            check_tuned(other, tmp_path)


@pytest.mark.parametrize(("workers", "used"), [(None, 1), (3, 3)])
def test_a_tuning_is_repeatable_unless_more_workers_are_asked_for(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int | None, used: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    with pytest.raises(Enough):
        reproduce_job("tuning", out=tmp_path / "out", scale="smoke", workers=Workers(count=workers))
    assert asked["workers"].count == used


def test_weights_that_were_tuned_for_something_else_are_refused(asked: dict[str, Any], tmp_path: Path) -> None:
    planned = Asked(scale="smoke", data="faces", seeds=(0,), names=("tuning",))
    tune(planned, tmp_path, workers=Workers(count=1), checkpoint_seconds=5.0)
    (tmp_path / "tuning").mkdir()
    q = "\n".join(f"{key} = {value}" for key, value in vars(PAPER_Q).items())
    (tmp_path / "tuning" / "weights.toml").write_text(f"[q]\n{q}\n")  # and killed before the audit began
    with pytest.raises(Enough):
        reproduce_job("tuning", out=tmp_path, scale="smoke", data="faces")
    with pytest.raises(UndeltaError, match="holds layer weights tuned at another scale"):
        reproduce_job("tuning", out=tmp_path, scale="smoke", data="digits")


# A part of a table


def test_a_part_of_a_table_runs_alone(half_done: Path) -> None:
    before = records(half_done)
    done = reproduce_job("ablation", out=half_done, methods=["linear weights"], workers=Workers(count=1))
    after = records(half_done)
    ((ran, record),) = ((key, one) for key, one in after.items() if key not in before)
    assert (record["arguments"]["form"], record["seed"]) == ("linear", 1)
    assert {key: one for key, one in after.items() if key != ran} == before
    assert not (half_done / "tuning").exists()  # that column was not asked for
    assert not (half_done / "verdict.json").exists()  # some trials are not there yet
    assert "4 of 6 trials have numbers." in (half_done / "ablation.md").read_text()
    assert not done.failed  # one did, which was not asked for


def test_a_part_is_one_of_cases_and_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(scale="smoke", data="faces", seeds=(0,), names=("comparison",))
    wanted = {"N=2, E=2, B=2", "N=3, E=2, B=2"}
    chosen = [cell for cell in asked.cells("comparison", None) if cell.here in wanted and cell.method == AWA]

    class Stopped(Exception):
        pass

    def stop(plan: Plan, *, only: tuple[str, ...], **others: object) -> None:
        assert set(only) == {trial.key for cell in chosen for trial in cell.trials}
        assert len(only) == 2 < len(plan.trials)
        raise Stopped

    monkeypatch.setattr(job, "run_plan", stop)
    with pytest.raises(Stopped):
        reproduce_job("comparison", out=tmp_path, scale="smoke", cases=sorted(wanted), methods=[AWA])


def test_a_part_tunes_only_if_it_needs_tuned_weights(asked: dict[str, Any], half_done: Path) -> None:
    with pytest.raises(Enough):
        reproduce_job("ablation", out=half_done, seeds=[0], methods=[AWA])
    assert not asked
    with pytest.raises(Enough):
        reproduce_job("ablation", out=half_done, seeds=[0], methods=[TUNED])
    assert asked["workers"].count == 1


# Mistakes


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["ablatoin", "--scale", "smoke"], "unknown reproduction 'ablatoin'; did you mean 'ablation'?"),
        (["ablation", "--scale", "gpu"], "--scale: unknown scale 'gpu'; did you mean 'cpu'?"),
        (["ablation"], "--scale: expected one of smoke, cpu, resnet18, paper"),
        (["ablation", "--scale", "paper"], "--data: the paper scale needs a folder of ImageNet pictures"),
        (["ablation", "--scale", "paper", "--data", "nowhere"], "no data source 'nowhere'"),
        (["large", "--scale", "cpu", "--data", "photos"], "expected at most the 8 pictures of photos"),
        (["ablation", "--scale", "smoke", "--seeds", "0,x"], "--seeds: expected whole numbers separated by commas"),
        (["ablation", "--scale", "smoke", "--seeds", "1,1"], "--seeds: expected at least one, each once"),
        (["ablation", "--scale", "smoke", "--seeds", "0,1000"], "--seeds: 1000 is the client on which layer weights"),
        (["ablation", "--scale", "smoke", "--backend", "slrum"], "did you mean 'slurm'?"),
        (["ablation", "--render-only"], "nothing to render"),
        (
            ["ablation", "--scale", "smoke", "--set", "sgned=true"],
            "--set: unknown setting 'sgned'; did you mean 'signed'?",
        ),
        (["ablation", "--scale", "smoke", "--model", "resnet9"], "unknown model 'resnet9'; choose one of"),
        (["ablation", "--scale", "smoke", "--norm-mode", "test"], "norm_mode"),
        (["ablation", "--scale", "smoke", "--kernel", "matren"], "--kernel: unknown kernel 'matren'"),
        (["ablation", "--scale", "smoke", "--case", "N=9"], "--case: expected one of 'N=3, E=4, B=1', got 'N=9'"),
        (["ablation", "--scale", "smoke", "--method", "awa"], "'AWA', 'AWA, Q tuned here', got 'awa'"),
        (
            ["comparison", "--scale", "smoke", "--case", "N=6, E=8, B=2", "--method", "iDLG"],
            "nothing to run (not run: impractical (paper too))",
        ),
    ],
)
def test_a_mistake_is_one_line_before_any_work(tmp_path: Path, words: list[str], complaint: str) -> None:
    done = CliRunner().invoke(app, ["reproduce", *words, "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, UndeltaError)  # which `main` prints on one line
    assert complaint in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_keeps_its_scale_and_its_data(half_done: Path) -> None:
    with pytest.raises(UndeltaError, match="--out holds the smoke scale, --scale asks for cpu"):
        reproduce_job("ablation", out=half_done, scale="cpu")
    with pytest.raises(UndeltaError, match="--out holds results on faces, --data asks for digits"):
        reproduce_job("ablation", out=half_done, data="digits")
    with pytest.raises(UndeltaError, match=r"--out holds results with scenario \{\}, not \{'image_size': 24\}"):
        reproduce_job("ablation", out=half_done, scenario={"image_size": 24})
    with pytest.raises(UndeltaError, match="--out holds results with kernel matern, not gaussian"):
        reproduce_job("ablation", out=half_done, kernel="gaussian")
    (half_done / "audit.toml").write_text('name = "mine"\n')
    with pytest.raises(UndeltaError, match="holds an audit of something else"):
        reproduce_job("ablation", out=half_done, scale="smoke")


def test_the_directory_of_a_tuning_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(MARKS) == {PLAN, DATABASE}
    for name in MARKS:
        out = tmp_path / name.partition(".")[0]
        out.mkdir()
        (out / name).touch()
        monkeypatch.setattr(sys, "argv", ["undelta", "reproduce", "ablation", "--scale", "smoke", "--out", str(out)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert "holds a tuning (`undelta tune`); choose another --out" in capsys.readouterr().err
        assert [path.name for path in out.iterdir()] == [name]


def test_only_what_the_directory_holds_can_be_rendered(half_done: Path) -> None:
    with pytest.raises(ConfigError, match="holds ablation, not epochs; run `undelta reproduce epochs --out"):
        reproduce_job("epochs", out=half_done, render_only=True)
    assert not (half_done / "epochs.md").exists()
    assert list(reproduce_job("all", out=half_done, render_only=True).findings) == ["ablation"]


def test_the_command_lists_and_helps() -> None:
    listed = CliRunner().invoke(app, ["reproduce", "--list"])
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.output.splitlines()] == list(REPRODUCTIONS)
    helped = CliRunner().invoke(app, ["reproduce", "--help"])
    assert helped.exit_code == 0
    nothing = CliRunner().invoke(app, ["reproduce"])
    assert "expected NAME and --out DIR" in str(nothing.exception)
