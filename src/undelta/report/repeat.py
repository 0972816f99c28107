"""The one command that repeats a trial."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from undelta.report.read import Audit
from undelta.trials.config import to_toml, toml_lines
from undelta.trials.record import UNDEFENDED, Record


def command(record: Record, audit: Audit) -> str:
    """What to paste into a shell to repeat a trial, with its whole configuration."""
    drawn = record.scenario.get("seed", record.seed)  # a scored run says which seed its scenario had
    scenario = {key: value for key, value in record.scenario.items() if key != "seed"}
    if scenario.get("data") is None:  # only the update was seen, not where it came from
        return f"undelta attack OBSERVATION {_attack_words(record)}\n"
    if audit.configuration is None and drawn != record.seed:
        return (
            f"cat > scenario.toml <<'END' &&\n{_text(toml_lines(scenario))}END\n"
            f"undelta simulate scenario.toml --observation seen --truth truth --seed {drawn} &&\n"
            f"undelta attack seen {_attack_words(record)} &&\n"
            "undelta score repeated --truth truth\n"
        )
    # A defense is part of the scenario by now, so that none needs to be named.
    name = record.name if record.defense == UNDEFENDED else f"{record.name}, {record.defense}"
    lines = [f"name = {to_toml(name)}", f"seeds = [{record.seed}]", "", "[scenario]", *toml_lines(scenario)]
    lines += ["", "[[attacks]]", f"attack = {to_toml(record.attack)}", *toml_lines(record.arguments)]
    # The key comes from a file; in a shell command it is quoted like everything else.
    file, out = shlex.quote(f"trial-{record.key}.toml"), shlex.quote(f"trial-{record.key}")
    return f"cat > {file} <<'END' && undelta audit {file} --out {out}\n{_text(lines)}END\n"


def _attack_words(record: Record) -> str:
    words = ["--attack", shlex.quote(record.attack), "--seed", str(record.seed)]
    for key, value in record.arguments.items():
        if value is not None:
            words += ["--set", shlex.quote(f"{key}={to_toml(value)}")]
    model = record.scenario.get("model")
    if isinstance(model, str) and ":" in model:
        words += ["--model", shlex.quote(model)]
    return " ".join([*words, "--out", "repeated"])


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
