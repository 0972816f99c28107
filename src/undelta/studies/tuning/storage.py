"""Where a study is kept: a SQLite file, or any database that SQLAlchemy knows, with Optuna's heartbeat.

A server that is away for a moment, since it restarts, is waited for. One that stays away, or a file that cannot be
written to, ends the work in one line; every answer was a transaction, so the same command resumes.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import optuna
import sqlalchemy
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage

from undelta.errors import ConfigError, DatabaseAway

DATABASE = "study.db"
HEARTBEAT_SECONDS, GRACE_SECONDS = 20, 120
LOCKED_SECONDS = 60  # a SQLite file has one writer at a time
PATIENCE_SECONDS = 120.0  # with a server that does not answer
AWAY = (sqlalchemy.exc.OperationalError, sqlalchemy.exc.InterfaceError)
ASKED = ("_create_new_trial", "_set_trial_param", "_get_trials", "_get_best_trial_id", "_get_stale_trial_ids")
"""Questions to a database that Optuna's own cache asks; the others are public."""

Answer = TypeVar("Answer")


class PatientStorage(RDBStorage):
    """Optuna's, which asks again while the database is away."""

    given_up = False
    """After one wait in vain there is no second one."""

    def patiently(self, question: Callable[[], Answer]) -> Answer:
        """The answer, or `DatabaseAway`."""
        file = self.engine.dialect.name == "sqlite"
        deadline = time.monotonic() + (0.0 if file or self.given_up else PATIENCE_SECONDS)
        for wait in itertools.chain((0.1, 0.2, 0.5, 1.0, 2.0), itertools.repeat(5.0)):
            try:
                return question()
            except (*AWAY, StorageInternalError) as problem:
                cause = problem if isinstance(problem, AWAY) else problem.__cause__
                if not isinstance(cause, AWAY):
                    raise
                if time.monotonic() + wait > deadline:
                    self.given_up = True
                    raise DatabaseAway(
                        f"the study's database does not answer ({_line(cause)}); nothing is lost: as soon as it does, "
                        "the same command resumes"
                    ) from None
            time.sleep(wait)
        raise AssertionError


def _patient(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def ask(self: PatientStorage, *words: Any, **options: Any) -> Any:
        return self.patiently(lambda: method(self, *words, **options))

    return ask


for _name, _method in vars(RDBStorage).items():
    if inspect.isfunction(_method) and (_name in ASKED or _name.startswith(("get_", "set_", "create_", "record_"))):
        setattr(PatientStorage, _name, _patient(_method))


def open_storage(
    url: str | None, directory: Path, *, heartbeat: int = HEARTBEAT_SECONDS, grace: int = GRACE_SECONDS
) -> RDBStorage:
    """The database behind a URL, or a SQLite file in a directory."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # A connection for each question: between two of them lie hours, and servers drop who is silent for so long.
    options: dict[str, Any] = {"poolclass": sqlalchemy.pool.NullPool}
    try:
        address = sqlalchemy.engine.make_url(url or "sqlite://")
        if url is None:
            if (directory / DATABASE).is_symlink():  # whoever planted it chooses what is written to
                raise ConfigError(f"{directory / DATABASE} is a link; remove it, or choose another --out")
            address = address.set(database=str(directory / DATABASE))
        if address.drivername in ("postgres", "postgresql"):
            address = address.set(drivername="postgresql+psycopg")  # not the one that is not installed
        file = address.drivername.startswith("sqlite")
        if file:
            options["connect_args"] = {"timeout": LOCKED_SECONDS}
        storage = _connect(address.render_as_string(hide_password=False), options, heartbeat, grace)
        if file:
            _lock_first(storage.engine)
        return storage
    except ImportError as problem:
        raise ConfigError(f'--storage needs a driver: pip install "undelta[postgres]" ({_line(problem)})') from None
    except (sqlalchemy.exc.ArgumentError, ValueError) as problem:
        raise ConfigError(
            f"--storage: expected a URL such as postgresql://user@host/database ({_line(problem)})"
        ) from None
    except (sqlalchemy.exc.SQLAlchemyError, StorageInternalError) as problem:
        raise ConfigError(f"--storage: the database does not answer ({_line(problem)})") from None


def _connect(url: str, options: dict[str, Any], heartbeat: int, grace: int) -> RDBStorage:
    for wait in (0.5, 1.0, 2.0, 0.0):
        try:
            with as_experimental():
                return PatientStorage(url, engine_kwargs=options, heartbeat_interval=heartbeat, grace_period=grace)
        except (sqlalchemy.exc.OperationalError, sqlalchemy.exc.IntegrityError, sqlalchemy.exc.ProgrammingError) as one:
            if not wait or "already exists" not in str(one):
                raise
            time.sleep(wait)  # somebody else who begins now is making the tables
    raise AssertionError


def _lock_first(engine: sqlalchemy.Engine) -> None:
    """Let every transaction lock the file when it begins: SQLite has no row locks, so two could take one trial."""

    def leave_transactions_to_us(connection: Any, _: object) -> None:
        connection.isolation_level = None

    sqlalchemy.event.listen(engine, "connect", leave_transactions_to_us)
    sqlalchemy.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))


@contextlib.contextmanager
def as_experimental() -> Iterator[None]:
    """Use what Optuna calls experimental, without its saying so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


def _line(problem: Exception) -> str:
    return " ".join(str(problem).split("\n", 1)[0].split())[:200]
