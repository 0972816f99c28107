"""Bayesian optimization of an attack's layer weights (AWA sec_BO); knows an attack only as a function Q -> number.

It sits above the audit's parts and below the report. What it minimizes is computed from an Observation alone
(`objective`), or from clients of the attacker's own (`shadow`).
"""

import importlib.util

from undelta.errors import ConfigError

if importlib.util.find_spec("optuna") is None:
    raise ConfigError('undelta tune needs optuna: pip install "undelta[tune]"')
