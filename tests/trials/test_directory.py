"""A run directory belongs to one command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.studies.demo import demo_job
from undelta.trials.directory import RunDirectory
from undelta.trials.leases import Leases
from undelta.trials.outcomes import write_outcomes
from undelta.trials.trial import Trial

TRIAL = Trial(scenario=Scenario(data="digits"), attack="awa")


def prepared(folder: Path, kind: str) -> RunDirectory:
    store = RunDirectory(folder)
    store.prepare("text", [TRIAL], Leases(worker="test"), kind=kind)
    return store


@pytest.mark.parametrize(
    "begin",
    [
        lambda folder: prepared(folder, "audit"),
        lambda folder: prepared(folder, "defend"),
        lambda folder: demo_job(folder),
        lambda folder: write_outcomes(folder, [], []),
    ],
    ids=["audit", "defend", "demo", "write_outcomes"],
)
@pytest.mark.parametrize("there", ["reproduce", "tune", "attack"])
def test_no_command_mixes_its_results_into_another_ones_directory(
    tmp_path: Path, there: str, begin: Callable[[Path], object]
) -> None:
    if there == "reproduce":
        prepared(tmp_path, there)
    elif there == "tune":
        (tmp_path / "plan.json").write_text("{}")
    else:
        RunDirectory(tmp_path).add(TRIAL)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(ConfigError, match=rf"holds what `undelta {there}` wrote; choose another --out"):
        begin(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_the_command_itself_comes_back_to_its_directory(tmp_path: Path) -> None:
    for _ in range(2):
        assert prepared(tmp_path, "defend").contents().kind == "defend"
