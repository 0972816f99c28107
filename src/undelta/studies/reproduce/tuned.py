"""Layer weights tuned at a scale: once, in the paper's tuning scenario, before the trials that use them run.

DIR/tuning.toml             the scenario
DIR/tuning/                 the tuning itself, as `undelta tune` leaves it
DIR/tuning.json             its trials, where a report looks for them
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from undelta.attacker.weights import Q
from undelta.errors import ConfigError, DataError
from undelta.files import write_bytes
from undelta.schema import parse
from undelta.studies.reproduce.reproductions import Asked, Weights
from undelta.studies.screen import SILENT, Screen
from undelta.trials.config import read_toml, toml_lines
from undelta.trials.pool import Workers
from undelta.trials.tuning_file import TUNING

SCENARIO = "tuning.toml"
WEIGHTS = Path("tuning", "weights.toml")
TUNING_SEED = 1000  # of a draw that no table reports
MARKS = ("plan.json", "study.db")
"""Files in the directory of an `undelta tune`; named here since its package asks for Optuna."""


def tuned_weights(directory: Path) -> Weights | None:
    """The weights that were tuned in a directory; None before that."""
    path = directory / WEIGHTS
    if not path.is_file():
        return None
    _, values = read_toml(path)
    return asdict(parse(Q, values.get("q"), where=f"{path}: [q]", error=DataError))


def tune(
    asked: Asked, directory: Path, *, workers: Workers, checkpoint_seconds: float, screen: Screen = SILENT
) -> None:
    """Tune Q on one update of the scale's tuning scenario; f(Q) needs the update alone, no private image.

    The same call after a kill resumes.
    """
    from undelta.studies.tuning.jobs import tune_job  # needs Optuna, which the other reproductions do not

    source, scale = directory / SCENARIO, asked.size
    directory.mkdir(parents=True, exist_ok=True)
    write_bytes(source, _text(asked).encode())
    tune_job(
        source,
        out=directory / "tuning",
        trials=scale.tuning_trials,
        random=scale.tuning_random,
        steps=scale.tuning_iterations,
        prune=False,  # the paper evaluates every trial in full
        arguments=asked.tuning_settings,
        kernel=asked.kernel,
        seed=TUNING_SEED,
        workers=workers,
        checkpoint_seconds=checkpoint_seconds,
        screen=screen,
    )


def show_trials(directory: Path) -> None:
    """Put a tuning's trials where a report looks for them; whatever ended the run that made them."""
    source, shown = directory / "tuning" / TUNING, directory / TUNING
    if source.is_file() and not (shown.is_file() and shown.read_bytes() == source.read_bytes()):
        write_bytes(shown, source.read_bytes())


def check_tuned(asked: Asked, directory: Path) -> None:
    """Weights that lie in a directory must be this scale's, on this data."""
    path = directory / SCENARIO
    if tuned_weights(directory) is not None and not (path.is_file() and path.read_text() == _text(asked)):
        raise ConfigError(
            f"{directory} holds layer weights tuned at another scale, on other data or otherwise; choose another --out"
        )


def _text(asked: Asked) -> str:
    """The scenario, and in a comment all else that a tuning depends on."""
    scale = asked.size
    how = f"{scale.tuning_trials} trials of {scale.tuning_iterations} iterations, kernel {asked.kernel}"
    settings = ", ".join(f"{key} = {value}" for key, value in asked.tuning_settings.items())
    head = f"# Seed {TUNING_SEED}, {how}; {settings}"
    return "\n".join([head, *toml_lines(asked.tuning_scenario()), ""])
