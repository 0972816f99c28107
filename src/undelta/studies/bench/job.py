"""What `undelta bench` does: attack every case behind a fence, score what comes out, check that it knew nothing."""

from __future__ import annotations

import datetime
import hashlib
import inspect
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from undelta.attacker.alone import KIND, NOT_APPLICABLE
from undelta.attacker.attacks import ATTACKS
from undelta.attacker.reconstruction import Reconstruction
from undelta.client.private import Private
from undelta.errors import ConfigError, DataError
from undelta.evaluation.baselines import COLOR
from undelta.evaluation.score import score
from undelta.files import make_way, read_tensors
from undelta.observation import Observation
from undelta.observation.file import save_observation
from undelta.schema import import_part, is_import, unknown
from undelta.studies.bench.cases import Benchmark, Case, fingerprint, frozen, load_benchmark
from undelta.studies.bench.row import SECRET_DRAWS, Entry, Row, read_row, write_row
from undelta.trials.config import make_attack, read_toml
from undelta.trials.plan import Checks
from undelta.trials.record import versions

PATIENCE = 2.0  # times the budget, then an attack is interrupted
PACKAGE = Path(__file__).parents[2]
ATTACKERS = ("attacker", "engine", "models", "observation")  # the parts of the package that attacks run on
HANGING_SECONDS = 3600  # by the clock on the wall: one that waits for something takes no time of a processor


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """An attack with its settings; ``per`` names what its iterations are divided by."""

    name: str
    attack: str
    arguments: Mapping[str, Any]
    per: str | None = None

    def settings(self, case: Case) -> dict[str, Any]:
        """The attack's arguments in one case."""
        if self.per is None:
            return dict(self.arguments)
        cost = max(1, int(getattr(case.scenario, self.per)))
        return {**self.arguments, "steps": max(1, self.arguments["steps"] // cost)}


def contestant(attack: str, arguments: Mapping[str, Any] | None = None, name: str | None = None) -> Contestant:
    """A built-in attack with the iterations it has here, or the user's own; what is asked for wins."""
    arguments, per = dict(arguments or {}), None
    if attack in ATTACKS:
        _, tables = read_toml(Path(__file__).with_name("attacks.toml"))
        table = dict(tables.get(attack, {}))
        per = table.pop("per", None)
        per = None if "steps" in arguments else per
        arguments = {**table, **arguments}
    elif not is_import(attack):
        raise ConfigError(unknown("attack", attack, ATTACKS))
    make_attack(attack, arguments)
    return Contestant(name=name or attack, attack=attack, arguments=arguments, per=per)


def bench_job(
    one: Contestant,
    *,
    out: Path,
    only: Sequence[str] = (),
    seed: int = 0,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> Row:
    """Attack all cases, or only some, and write the row; the same call resumes."""
    benchmark, frozen_ones = load_benchmark(), frozen()
    for name in only:
        if name not in benchmark.cases:
            raise ConfigError(f"--cases: {unknown('case', name, benchmark.cases)}")
    wanted = [case for case in benchmark.cases.values() if not only or case.name in only]
    checked = Checks()
    for case in wanted:
        checked(case.scenario, f"case {case.name}")  # an extra that is missing, before hours of work
    make_way(out)
    row = _begun(one, benchmark, out)
    first = wanted[0]
    total = sum(len(case.seeds) for case in wanted) + 1 + SECRET_DRAWS
    done = {(entry.case, entry.seed) for entry in row.entries}
    with tempfile.TemporaryDirectory(prefix="undelta-bench-") as place:
        for case in wanted:
            for drawn in case.seeds:
                told(len(row.entries), total)
                if (case.name, drawn) in done:
                    continue
                private, observation = case.observe(drawn)
                key = f"{case.name}-{drawn}"
                exact = fingerprint(private, observation).compare(frozen_ones[key], f"case {key}")
                entry, images = _attacked(one, case, drawn, private, observation, Path(place), benchmark, seed)
                row = replace(row, entries=(*row.entries, replace(entry, exact=exact)))
                if case is first and drawn == case.seeds[0] and images is not None:
                    _, again = _attacked(one, case, drawn, private, observation, Path(place), benchmark, seed)
                    row = replace(row, repeats=again is not None and torch.equal(images, again))
                write_row(row, out)
        while len(row.secret) < SECRET_DRAWS:
            told(len(row.entries) + 1 + len(row.secret), total)
            drawn = secrets.randbelow(2**31)
            private, observation = first.observe(drawn, disguised=True)
            entry, _ = _attacked(one, first, drawn, private, observation, Path(place), benchmark, seed)
            row = replace(row, secret=(*row.secret, entry))
            write_row(row, out)
    told(total, total)
    return row


def _begun(one: Contestant, benchmark: Benchmark, out: Path) -> Row:
    """The row so far."""
    mine = Row(
        benchmark=benchmark.version,
        name=one.name,
        attack=one.attack,
        arguments=dict(one.arguments),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        versions=versions(),
        code=code_digest(one.attack),
    )
    if not out.exists():
        return mine
    there = read_row(out, benchmark)
    if (there.attack, dict(there.arguments)) != (mine.attack, dict(mine.arguments)):
        raise ConfigError(f"{out} holds a row of {there.attack} with other settings; choose another --out")
    if (there.code, dict(there.versions)) != (mine.code, dict(mine.versions)):
        raise ConfigError(f"{out} was begun with other code or versions; choose another --out, or remove it")
    return replace(there, entries=tuple(entry for entry in there.entries if entry.status != "failed"))


def code_digest(attack: str) -> str:
    """A digest of the code behind an attack: the package's own, or the file that somebody else's attack is in.

    What that file imports is not looked at.
    """
    if is_import(attack):
        file = inspect.getsourcefile(import_part(attack, "attack"))
        return _digest([Path(file)]) if file else ""
    parts = [path for part in ATTACKERS for path in sorted((PACKAGE / part).rglob("*.py"))]
    return _digest([*sorted(PACKAGE.glob("*.py")), *parts])


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _attacked(
    one: Contestant,
    case: Case,
    drawn: int,
    private: Private,
    observation: Observation,
    place: Path,
    benchmark: Benchmark,
    seed: int,
) -> tuple[Entry, torch.Tensor | None]:
    """What the attack makes of one observation, in a process that holds nothing else; and its images."""
    seen, found = place / "seen.safetensors", place / "found.safetensors"
    save_observation(observation, seen)
    found.unlink(missing_ok=True)
    order = {
        "observation": str(seen),
        "attack": one.attack,
        "arguments": one.settings(case),
        "seed": seed,
        "out": str(found),
        "most_steps": PATIENCE * benchmark.budget,
    }
    entry = Entry(case=case.name, seed=drawn, status="failed")
    try:
        process = subprocess.run(
            [sys.executable, "-m", "undelta.attacker.alone"],
            input=json.dumps(order),
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            timeout=HANGING_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return replace(entry, error=f"no result after {HANGING_SECONDS} seconds"), None
    if process.returncode:
        said = (process.stderr.strip().splitlines() or ["it said nothing"])[-1]
        status = "not applicable" if process.returncode == NOT_APPLICABLE else "failed"
        return replace(entry, status=status, error=said), None
    tensors, about = read_tensors(found, kind=KIND, error=DataError)
    if tensors["labels"].shape != private.labels.shape:
        return replace(entry, error=f"expected {len(private)} labels, got {tuple(tensors['labels'].shape)}"), None
    result = Reconstruction(
        images=tensors["images"],
        labels=tensors["labels"],
        mismatch=float("nan") if about["mismatch"] is None else about["mismatch"],
        iterations=about["iterations"],
        seconds=about["seconds"],
        status=about["status"],
    )
    try:
        scored = score(result, private)
    except DataError as problem:
        return replace(entry, error=str(problem)), None
    color = scored.baselines[COLOR].psnr
    metrics = {name: getattr(scored, name) for name in ("psnr", "ssim", "lpips")}
    numbers = {name: about[name] for name in ("mismatch", "iterations", "client_steps", "seconds")}
    return replace(entry, status=result.status, color=color, **metrics, **numbers), result.images


def verify_job(told: Callable[[int, int], None] = lambda done, total: None) -> dict[str, bool]:
    """Make every observation again; whether each came out bit for bit, or only up to rounding."""
    benchmark, expected, checked = load_benchmark(), frozen(), Checks()
    for case in benchmark.cases.values():
        checked(case.scenario, f"case {case.name}")
    pairs = [(case, seed) for case in benchmark.cases.values() for seed in case.seeds]
    exact = {}
    for number, (case, seed) in enumerate(pairs):
        told(number, len(pairs))
        key = f"{case.name}-{seed}"
        exact[key] = fingerprint(*case.observe(seed)).compare(expected[key], f"case {key}")
    told(len(pairs), len(pairs))
    return exact


def freeze() -> dict[str, dict[str, Any]]:
    """The fingerprints of all cases as they come out here: what a new version of the benchmark freezes."""
    benchmark = load_benchmark()
    return {
        f"{case.name}-{seed}": asdict(fingerprint(*case.observe(seed)))
        for case in benchmark.cases.values()
        for seed in case.seeds
    }
