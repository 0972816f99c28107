"""The one command that repeats a trial."""

from __future__ import annotations

from undelta.report.templates import fill
from undelta.trials.config import toml_lines
from undelta.trials.record import Record


def command(record: Record) -> str:
    """What to paste into a shell to repeat a trial, with its whole configuration.

    Where only the update was seen there is no scenario to simulate. A defense is part of the scenario by now, so that
    none needs to be named.
    """
    drawn = record.scenario.get("seed", record.seed)  # a scored run says which seed its scenario had
    known = record.scenario.get("data") is not None
    model = record.scenario.get("model")
    return fill(
        "repeat.sh",
        record=record,
        scenario=toml_lines({key: value for key, value in record.scenario.items() if key != "seed"}) if known else [],
        drawn=drawn if record.observation_file is not None and drawn != record.seed else None,
        custom=model if isinstance(model, str) and ":" in model else None,
        arguments=toml_lines(record.arguments),
    )
