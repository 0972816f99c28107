"""Where a study is kept: a SQLite file, or any database that SQLAlchemy knows, with Optuna's heartbeat."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage

from undelta.errors import ConfigError

DATABASE = "study.db"
HEARTBEAT_SECONDS, GRACE_SECONDS = 20, 120
LOCKED_SECONDS = 60  # a SQLite file has one writer at a time


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
                return RDBStorage(url, engine_kwargs=options, heartbeat_interval=heartbeat, grace_period=grace)
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
