"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Scenario = Annotated[Path, typer.Argument(help="A scenario as TOML; `undelta init` writes one.")]
Observation = Annotated[Path, typer.Argument(help="A recorded update.")]
Out = Annotated[Path, typer.Option(help="Where results go; the same command resumes there.")]

Seed = Annotated[int, typer.Option(help="Random seed.")]
Seeds = Annotated[str | None, typer.Option(metavar="0,1,2", help="Random seeds, a run for each.")]
Memory = Annotated[
    float, typer.Option(min=0.001, help="Gigabytes that may be kept to save time; less is slower, not worse.")
]
GIGABYTES = 2.0  # by default: the engine's MEMORY, which would have to import torch
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of the attack, such as tv=0.001; repeatable."),
]

Workers = Annotated[int | None, typer.Option(min=1, help="Trials at a time; by default, one per core.")]
Backend = Annotated[str, typer.Option(help="Where workers run: processes, ray or slurm.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads per trial; another number rounds differently.")]
CheckpointSeconds = Annotated[
    float, typer.Option(min=0, help="Time between checkpoints; the same command resumes after a crash.")
]
Bound = Annotated[
    bool, typer.Option("--bound", help="Also say what no attack is expected to exceed, as `undelta bound` does.")
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Run failed trials again.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
CustomModel = Annotated[
    str | None, typer.Option(metavar="PACKAGE.MODULE:FUNCTION", help="Import this custom model: you trust it.")
]
Initial = Annotated[str | None, typer.Option(metavar="FILE", help="Weights to start from, instead of the scenario's.")]
