"""Measure how much private training data a federated-learning update reveals.

The names below are all that most users need. They are loaded when first used, since torch takes seconds to import and
``undelta --help`` does not need it. Code inside the package imports from the modules themselves, never from here: the
import contract sees these imports, too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undelta.attacker.attacks import (
        ATTACKS,
        agic,
        analytic,
        awa,
        cpl,
        dlfa,
        dlg,
        geng,
        geng_gradient,
        gias,
        gradinversion,
        idlg,
        idlg_fedavg,
        ig,
        sapag,
        sme,
        strongest,
    )
    from undelta.attacker.combine import Phases, Restarts
    from undelta.attacker.method import GradientMatching
    from undelta.attacker.reconstruction import Reconstruction
    from undelta.client.disclose import disclose
    from undelta.client.private import Private
    from undelta.client.scenario import Scenario
    from undelta.errors import MissingKnowledge, UndeltaError
    from undelta.evaluation.score import Score, score
    from undelta.observation import Observation
    from undelta.observation.file import load_observation, save_observation
    from undelta.report.write import write_report
    from undelta.trials.outcomes import write_outcomes
    from undelta.trials.pictures import write_sheet
    from undelta.trials.trial import Trial, run

__version__ = "0.1.0"

__all__ = [
    "ATTACKS",
    "GradientMatching",
    "MissingKnowledge",
    "Observation",
    "Phases",
    "Private",
    "Reconstruction",
    "Restarts",
    "Scenario",
    "Score",
    "Trial",
    "UndeltaError",
    "agic",
    "analytic",
    "awa",
    "cpl",
    "disclose",
    "dlfa",
    "dlg",
    "geng",
    "geng_gradient",
    "gias",
    "gradinversion",
    "idlg",
    "idlg_fedavg",
    "ig",
    "load_observation",
    "run",
    "sapag",
    "save_observation",
    "score",
    "sme",
    "strongest",
    "write_outcomes",
    "write_report",
    "write_sheet",
]

_ELSEWHERE = {
    "GradientMatching": "attacker.method",
    "MissingKnowledge": "errors",
    "Observation": "observation",
    "Phases": "attacker.combine",
    "Private": "client.private",
    "Reconstruction": "attacker.reconstruction",
    "Restarts": "attacker.combine",
    "Scenario": "client.scenario",
    "Score": "evaluation.score",
    "Trial": "trials.trial",
    "UndeltaError": "errors",
    "disclose": "client.disclose",
    "load_observation": "observation.file",
    "run": "trials.trial",
    "save_observation": "observation.file",
    "score": "evaluation.score",
    "write_report": "report.write",
    "write_outcomes": "trials.outcomes",
    "write_sheet": "trials.pictures",
}
"""Modules of the names that are no attacks."""


if not TYPE_CHECKING:  # a type checker that saw this function would take every misspelled name for an object

    def __getattr__(name: str) -> object:
        """Load a name on first use and keep it."""
        if name not in __all__:
            raise AttributeError(f"module 'undelta' has no attribute {name!r}; it has {', '.join(__all__)}")
        module = importlib.import_module(f"undelta.{_ELSEWHERE.get(name, 'attacker.attacks')}")
        globals()[name] = getattr(module, name)
        return globals()[name]

    def __dir__() -> list[str]:
        """What can be loaded, loaded or not."""
        return sorted({*globals(), *__all__})
