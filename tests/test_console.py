"""What the terminal shows: help that is whole, progress that is true, tables that fit."""

from __future__ import annotations

import shutil
import typing
from dataclasses import replace
from pathlib import Path

import pytest
from rich.text import Text
from typer.testing import CliRunner

from undelta.attacker.attack import Run
from undelta.attacker.attacks import awa, strongest
from undelta.attacker.reconstruction import Moment
from undelta.cli import app, progress
from undelta.cli.console import print_compared, print_judgment, print_table
from undelta.cli.progress import Pace, Terminal, watching
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.evaluation.score import ImageScore
from undelta.report.pdf import write_pdf
from undelta.studies.comparison import Compared
from undelta.trials.gates import apply_gates, parse_gates
from undelta.trials.judgment import judge_records
from undelta.trials.record import Record
from undelta.trials.tasks import Progress

SMALL = Scenario(data="digits", num_samples=1, model_arguments={"width": 4, "hidden": 16}, epochs=2, batches=1)


def record(name: str, defense: str = "none") -> Record:
    return Record(
        key="0" * 16,
        name=name,
        defense=defense,
        scenario={},
        attack="gradinversion",
        seed=0,
        status="completed",
        psnr=12.34,
        ssim=0.2,
        lpips=0.3,
        mismatch=0.0123,
        iterations=10000,
        seconds=1234.5,
        images=(ImageScore(label=0, psnr=12.34, ssim=0.2, lpips=0.3, mse=0.1),),
    )


# Help


def test_no_help_loses_words_to_markup() -> None:
    for command in app.registered_commands:
        assert command.callback is not None
        for name, hint in typing.get_type_hints(command.callback, include_extras=True).items():
            for info in getattr(hint, "__metadata__", ()):
                text = info.help or ""
                assert Text.from_markup(text).plain == text.replace("\\[", "["), (command.callback.__name__, name)


def test_init_writes_a_scenario_that_can_be_simulated_and_overwrites_nothing(tmp_path: Path) -> None:
    path = tmp_path / "my scenario.toml"
    done = CliRunner().invoke(app, ["init", str(path)])
    assert done.exit_code == 0
    assert f"undelta simulate '{path}'" in done.output  # as a shell wants it
    again = CliRunner().invoke(app, ["init", str(path)])
    assert isinstance(again.exception, ConfigError)


def test_a_pdf_without_a_browser_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="--pdf needs Chromium or Chrome on the PATH"):
        write_pdf(tmp_path / "report.html")


def test_a_pdf_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = tmp_path / "chromium"
    browser.write_text('#!/bin/sh\nfor word; do case $word in --print-to-pdf=*) echo x > "${word#*=}";; esac; done\n')
    browser.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert write_pdf(tmp_path / "report.html").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium on the PATH")
def test_a_page_becomes_a_pdf(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("<!doctype html><title>x</title><p>x</p>")
    assert write_pdf(page).read_bytes().startswith(b"%PDF-")


# Progress


def totals(attack: object) -> set[int]:
    heard: set[int] = set()
    observation = disclose(SMALL.draw(0), SMALL, seed=0)
    attack(observation, seed=0, run=Run(watch=lambda _, total: heard.add(total)))  # type: ignore[operator]
    return heard


def test_totals_are_right_from_the_start_or_open() -> None:
    assert totals(awa(steps=12, restarts=2)) == {24}
    assert totals(strongest(steps=11, rollout_steps=2)) == {0}  # nobody knows what its later phases will need


def test_a_plain_line_is_written_now_and_then_where_there_is_no_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with watching() as start:
        start("awa")(Moment(9, 1.0, 0.5, 0.6), 120)
        start("strongest")(Moment(9, 1.0, 0.5, 0.6), 0)
    with Terminal().trials({}) as show:
        show(Progress(total=4, done=0, not_applicable=0, failed=0, running={}))
        show(Progress(total=4, done=1, not_applicable=0, failed=0, running={}))
    with Terminal().tuning(3) as line:
        line.update(1, 0.25)
    printed = capfd.readouterr().err.splitlines()
    assert [line.partition(" ")[2] for line in printed] == [
        "awa: iteration 10 of 120, mismatch 0.5000",
        "strongest: iteration 10, mismatch 0.5000",
        "0 of 4 trials done, 0 failed, 0 running",
        "1 of 4 trials done, 0 failed, 0 running, about 0:00:00 left",
        "1 trial done  best 0.25",
    ]


def test_the_first_plain_line_knows_the_time_left(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Terminal().trials({}) as show:
        show(Progress(total=4, done=0, not_applicable=0, failed=0, running={}))  # nobody is told yet
        monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
        show(Progress(total=4, done=1, not_applicable=0, failed=0, running={}))
    assert "1 of 4 trials done, 0 failed, 0 running, about 0:00:00 left" in capfd.readouterr().err


def test_the_time_left_counts_what_was_done_since_somebody_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace()
    resumed = Progress(total=10, done=5, not_applicable=0, failed=0, running={})
    assert pace.left(resumed) == []
    monkeypatch.setattr(Pace, "seconds", 60.0)
    assert pace.left(Progress(total=10, done=6, not_applicable=0, failed=1, running={})) == ["about 0:01:30 left"]


# Tables


def test_names_from_files_reach_the_terminal_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    records = [record("[red]a\x1b[2Jb")]
    judgment = judge_records(records)
    gate = apply_gates(judgment.verdicts, parse_gates({"psnr": 1}, {}), closed=True)
    print_judgment(replace(judgment, headline="[bold]c\x07", gate=replace(gate, rules=("\x1b[2J",)) if gate else None))
    shown = capsys.readouterr().out
    assert "\x1b[2J" not in shown
    assert "\x07" not in shown
    for text in ("[red]a\\x1b[2Jb", "[bold]c\\x07", "Gate failed (\\x1b[2J)."):
        assert text in shown


@pytest.mark.parametrize("width", [60, 80, 200])
def test_tables_fit_and_leave_out_what_can_be_spared(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    records = [record("8 images of photos, cnn, 10 epochs"), record("8 images of photos, cnn, 10 epochs", "noise")]
    print_table(records)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    for word in ("gradinversion", "12.34", "0.200", "0.0123", "completed"):
        assert word in shown
    print_judgment(judge_records(records))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    for word in ("photos", "noise", "attack failed", "0 of 1", "0.200"):
        assert word in shown
    assert ("LPIPS" in shown.partition("Numbers are")[0]) == (width == 200)
    (verdict, *_) = judge_records(records).verdicts
    print_compared([Compared(title="8 images of photos", before=verdict, after=verdict, change="unclear")])
    table = capsys.readouterr().out.partition("1 unclear.")[0]
    assert table.count("attack failed") == 2
    assert ("SSIM before" in table) == (width > 60)
