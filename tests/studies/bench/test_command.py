"""`undelta bench` as a user calls it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from undelta.cli import app
from undelta.errors import ConfigError, DataError
from undelta.studies.bench import job
from undelta.studies.bench.cases import frozen, load_benchmark
from undelta.studies.bench.row import leaderboard, ranked


def test_without_options_it_shows_the_leaderboard() -> None:
    done = CliRunner().invoke(app, ["bench"])
    assert done.exit_code == 0
    best = ranked(leaderboard(), load_benchmark())[0]
    assert best.name == "strongest"
    assert "strongest" in done.stdout
    assert f"{best.score(load_benchmark()):.2f}" in done.stdout
    assert "short: " in done.stdout


@pytest.mark.parametrize("words", [["--set", "steps=3"], ["--name", "Mine"], ["--cases", "short"]])
def test_options_of_a_run_need_an_attack(words: list[str]) -> None:
    done = CliRunner().invoke(app, ["bench", *words])
    assert isinstance(done.exception, ConfigError)
    assert "go with --attack" in str(done.exception)


def test_a_run_needs_a_file_for_its_row() -> None:
    done = CliRunner().invoke(app, ["bench", "--attack", "sme"])
    assert isinstance(done.exception, ConfigError)
    assert "--attack needs --out" in str(done.exception)


def test_verify_makes_the_updates_again(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_benchmark()
    small = replace(whole, cases={"short": replace(whole.cases["short"], seeds=(0,))})
    monkeypatch.setattr(job, "load_benchmark", lambda: small)
    done = CliRunner().invoke(app, ["bench", "--verify"])
    assert done.exit_code == 0
    assert " of 1 updates came out bit for bit" in done.stdout
    others = {name: replace(one, digest="", images=(1.0,)) for name, one in frozen().items()}
    monkeypatch.setattr(job, "frozen", lambda: others)
    problem = CliRunner().invoke(app, ["bench", "--verify"]).exception
    assert isinstance(problem, DataError)
    assert "case short-0 did not come out as it was frozen" in str(problem)
