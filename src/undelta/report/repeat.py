"""Values back into TOML, and the one command that repeats a trial."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from undelta.audit.trial import UNDEFENDED
from undelta.report.read import Audit, Entry

BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def to_toml(value: Any) -> str:
    """One value on one line; None has no TOML and must be left out before."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for the code point that JSON leaves bare.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        pairs = [f"{_key(key)} = {to_toml(item)}" for key, item in value.items() if item is not None]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if isinstance(value, Sequence):
        return f"[{', '.join(to_toml(item) for item in value)}]"
    raise TypeError(f"no TOML for {type(value).__name__}")


def _key(key: str) -> str:
    return key if BARE.match(key) else to_toml(key)


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {to_toml(value)}" for key, value in table.items() if value is not None]


def command(entry: Entry, audit: Audit) -> str:
    """What to paste into a shell to repeat a trial, with its whole configuration."""
    drawn = entry.scenario.get("seed", entry.seed)  # a scored run says which seed its scenario had
    scenario = {key: value for key, value in entry.scenario.items() if key != "seed"}
    if scenario.get("data") is None:  # only the update was seen, not where it came from
        return f"undelta attack OBSERVATION {_attack_words(entry)}\n"
    if audit.configuration is None and drawn != entry.seed:
        return (
            f"cat > scenario.toml <<'END' &&\n{_text(_lines(scenario))}END\n"
            f"undelta simulate scenario.toml --observation seen --truth truth --seed {drawn} &&\n"
            f"undelta attack seen {_attack_words(entry)} &&\n"
            "undelta score repeated --truth truth\n"
        )
    # A defense is part of the scenario by now, so that none needs to be named.
    name = entry.name if entry.defense == UNDEFENDED else f"{entry.name}, {entry.defense}"
    lines = [f"name = {to_toml(name)}", f"seeds = [{entry.seed}]", "", "[scenario]", *_lines(scenario)]
    lines += ["", "[[attacks]]", f"attack = {to_toml(entry.attack)}", *_lines(entry.arguments)]
    # The key comes from a file; in a shell command it is quoted like everything else.
    file, out = shlex.quote(f"trial-{entry.key}.toml"), shlex.quote(f"trial-{entry.key}")
    return f"cat > {file} <<'END' && undelta audit {file} --out {out}\n{_text(lines)}END\n"


def _attack_words(entry: Entry) -> str:
    words = ["--attack", shlex.quote(entry.attack), "--seed", str(entry.seed)]
    for key, value in entry.arguments.items():
        if value is not None:
            words += ["--set", shlex.quote(f"{key}={to_toml(value)}")]
    model = entry.scenario.get("model")
    if isinstance(model, str) and ":" in model:
        words += ["--model", shlex.quote(model)]
    return " ".join([*words, "--out", "repeated"])


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
