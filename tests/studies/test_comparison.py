"""Two audits side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from undelta.cli import app
from undelta.errors import DataError
from undelta.files import to_json
from undelta.studies.comparison import compare_jobs
from undelta.trials.diagnosis import Diagnosis, Level, Thresholds
from undelta.trials.judgment import Judgment
from undelta.trials.verdict import Verdict


def write(folder: Path, ssim_from: float = 0.5, **scenarios: tuple[Level, int, float]) -> Path:
    folder.mkdir()
    verdicts = tuple(
        Verdict(
            scenario=name,
            defense="none",
            diagnosis=Diagnosis(level=level, text=""),
            text="",
            images=4,
            recognizable=count,
            worst={"ssim": ssim, "psnr": 10.0},
            thresholds=Thresholds(ssim=ssim_from),
        )
        for name, (level, count, ssim) in scenarios.items()
    )
    (folder / "verdict.json").write_bytes(to_json(Judgment(headline="", verdicts=verdicts)))
    return folder


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (("leaks", 2, 0.8), ("leaks", 3, 0.8), "worse"),
        (("leaks", 2, 0.8), ("leaks", 1, 0.9), "better"),
        (("leaks", 2, 0.8), ("leaks", 2, 0.82), "same"),
        (("leaks", 2, 0.8), ("leaks", 2, 0.9), "worse"),
        (("leaks", 2, 0.8), ("resisted", 0, 0.1), "better"),
        (("resisted", 0, 0.1), ("leaks", 1, 0.6), "worse"),
        (("attack failed", 0, 0.1), ("leaks", 1, 0.6), "worse"),
        (("leaks", 1, 0.6), ("attack failed", 0, 0.1), "unclear"),  # which is no progress
        (("leaks", 1, 0.6), ("not compared", 0, 0.0), "unclear"),
        (("not compared", 0, 0.0), ("leaks", 1, 0.6), "unclear"),
        (("not compared", 0, 0.0), ("not compared", 0, 0.0), "same"),
        (("attack failed", 0, 0.1), ("attack failed", 0, 0.4), "same"),
        (("attack failed", 0, 0.1), ("resisted", 0, 0.1), "better"),
    ],
)
def test_what_got_better_or_worse(
    tmp_path: Path, before: tuple[Level, int, float], after: tuple[Level, int, float], change: str
) -> None:
    (row,) = compare_jobs(write(tmp_path / "a", one=before), write(tmp_path / "b", one=after))
    assert row.change == change


def test_scenarios_come_and_go_and_the_command_can_fail(tmp_path: Path) -> None:
    old = write(tmp_path / "a", kept=("resisted", 0, 0.1), old=("leaks", 1, 0.6))
    new = write(tmp_path / "b", fresh=("leaks", 1, 0.6), kept=("leaks", 4, 0.9))
    assert [(row.title, row.change) for row in compare_jobs(old, new)] == [
        ("fresh", "new"),
        ("kept", "worse"),
        ("old", "gone"),
    ]
    done = CliRunner().invoke(app, ["compare", str(old), str(new)])
    assert done.exit_code == 0
    assert "1 new, 1 worse, 1 gone." in done.output
    assert CliRunner().invoke(app, ["compare", str(old), str(new), "--fail-worse"]).exit_code == 1
    rows = json.loads(CliRunner().invoke(app, ["compare", str(old), str(new), "--json"]).stdout)
    assert [row["change"] for row in rows] == ["new", "worse", "gone"]


@pytest.mark.parametrize(
    ("after", "code"),
    [
        ({"one": ("leaks", 1, 0.6)}, 0),
        ({"one": ("not measured", 0, 0.0)}, 1),
        ({"one": ("not compared", 0, 0.0)}, 1),
        ({"other": ("resisted", 0, 0.1)}, 1),
    ],
    ids=["same", "not measured", "not compared", "gone"],
)
def test_what_may_hide_a_leak_fails(tmp_path: Path, after: dict[str, tuple[Level, int, float]], code: int) -> None:
    old, new = write(tmp_path / "a", one=("leaks", 1, 0.6)), write(tmp_path / "b", 0.5, **after)
    done = CliRunner().invoke(app, ["compare", str(old), str(new), "--fail-worse"])
    assert done.exit_code == code
    assert ("no attack works now, or nothing was compared" in done.output) == ("1 unclear" in done.output)


def test_audits_with_other_thresholds_are_refused(tmp_path: Path) -> None:
    old = write(tmp_path / "a", one=("leaks", 1, 0.6))
    new = write(tmp_path / "b", ssim_from=0.9, one=("attack failed", 0, 0.6))
    with pytest.raises(DataError, match="one: expected the same thresholds in both audits"):
        compare_jobs(old, new)


@pytest.mark.parametrize("thresholds", [{"recovered": 1.0}, {"ssim": 0}, {}, None, {"ssim": "0.5"}])
def test_thresholds_that_are_none_are_one_clear_error(tmp_path: Path, thresholds: object) -> None:
    folder = write(tmp_path / "audit", one=("leaks", 1, 0.9))
    judgment = json.loads((folder / "verdict.json").read_text())
    judgment["verdicts"][0]["thresholds"] = thresholds
    (folder / "verdict.json").write_text(json.dumps(judgment))
    if thresholds == {}:
        compare_jobs(folder, folder)
        return
    with pytest.raises(DataError, match=r"verdict\.json: verdicts\[0\]: thresholds"):
        compare_jobs(folder, folder)


def test_a_directory_without_a_verdict_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no verdict\.json"):
        compare_jobs(tmp_path / "nowhere", tmp_path)
