"""The command line. Torch is imported only when a command needs it, so that ``--help`` answers at once."""

from __future__ import annotations

import sys

import typer

from undelta.cli import (  # noqa: F401  (they add their commands to the application)
    attacking,
    auditing,
    benching,
    bounding,
    showing,
    tuning,
)
from undelta.cli.app import Explained, app, printable
from undelta.errors import UndeltaError

for command in app.registered_commands:
    command.cls = Explained

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line; an error that the user can mend is one line and exit code 2."""
    try:
        app()
    except UndeltaError as problem:
        message = printable(" ".join(str(problem).split()))
        typer.echo(f"undelta: {message}", err=True)
        sys.exit(2)
