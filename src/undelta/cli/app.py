"""What all commands share: the application, and how they end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

if TYPE_CHECKING:
    from undelta.trials.record import Record

INTERRUPTED = 130  # what a shell reports for Ctrl-C
FAILED = 3  # some trials of an audit
OFFENDED = 1  # a gate of an audit was not passed
PRIVATE = "(holds private images)"


class Commands(TyperGroup):
    """All commands; a mistyped one is answered with one suggestion: click 8.4 has its own, to which typer adds."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer does it."""
        try:
            return super().resolve_command(ctx, args)
        except Exception as problem:  # click's, which newer versions of typer bring along under another name
            if getattr(problem, "possibilities", None):
                problem.message = problem.message.partition(" Did you mean")[0]  # type: ignore[attr-defined]
            raise


app = typer.Typer(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class Explained(TyperCommand):
    """A command whose arguments keep their help: click 8.5 has one of its own, with which it covers older typers'."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        hints = get_type_hints(self.callback, include_extras=True)
        for argument in self.params:
            if isinstance(argument, TyperArgument):
                (about,) = hints[str(argument.name)].__metadata__
                argument.help = about.help


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"undelta {version('undelta')}")
        raise typer.Exit


@app.callback()
def undelta(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Measure how much private training data a federated-learning update reveals. For data you own."""


def printable(text: str) -> str:
    """Text from a file as a terminal may have it: control characters could move the cursor, or worse."""
    return "".join(one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode() for one in text)


def warn(text: str) -> None:
    """Say something beside the results, whatever names from files are in it."""
    typer.echo(printable(text), err=True)


def parse_seeds(words: str | None) -> tuple[int, ...] | None:
    """What ``--seeds`` says."""
    from undelta.schema import numbers

    return None if words is None else numbers("--seeds", words, int)


@contextmanager
def resumable() -> Iterator[None]:
    """Answer Ctrl-C in a command that can resume."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("Interrupted: the same command resumes from the last checkpoints.", err=True)
        raise typer.Exit(INTERRUPTED) from None


def exit_if_failed(records: Iterable[Record]) -> None:
    """Name the trials that failed, if any, and end."""
    failed = list(records)
    for record in failed:
        warn(f"Failed: trial {record.key} ({record.attack}, {record.name}): {record.error}")
    if failed:
        typer.echo("Failed trials run again with --retry-failed.", err=True)
        raise typer.Exit(FAILED)


def exit_if_interrupted(records: Iterable[Record]) -> None:
    """Say that a result is not the last word, and end."""
    if any(record.status == "interrupted" for record in records):
        typer.echo("Interrupted: what you see is the result so far; the same command resumes.", err=True)
        raise typer.Exit(INTERRUPTED)
