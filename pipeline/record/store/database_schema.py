"""The schema of a SQLite database: refuses databases that MLflow cannot use, and upgrades older databases.

MLflow upgrades an older database when opening it, without making a copy, and fails with a traceback if another program
shares the database. Therefore call `check` before MLflow opens a database.
"""

from __future__ import annotations

import re
import shlex
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from importlib import import_module, metadata
from pathlib import Path

from pipeline.base.system.errors import StoreError

_UPGRADE_TIMEOUT_S = 600.0
_BUSY_TIMEOUT_S = 60.0
_REVISIONS = "alembic_version"
_TABLES = frozenset({"experiments", "runs"})
_REVISION = re.compile(r"[0-9a-f]{12,13}")
"""The form of revisions of MLflow's schema, which alembic stores in the database."""
_OPTUNA_TABLES = frozenset({"studies", "trials"})
_OPTUNA_REVISION = re.compile(r"v\d+\.\d+\.\d+.*")  # such as v3.2.0.a
OTHER_FOLDER = "choose another folder with tracking.root, or --root"


class OutdatedError(StoreError):
    """The database was written by an older MLflow and can be upgraded."""


def read_version() -> str:
    """Return the version of the installed MLflow; empty if there is none."""
    for name in ("mlflow", "mlflow-skinny"):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def _list_revisions() -> tuple[str | None, frozenset[str]]:
    """Return the newest and all known schema revisions of the installed MLflow."""
    from alembic.script import ScriptDirectory

    migrations = Path(str(import_module("mlflow.store.db_migrations").__file__)).parent
    revisions = ScriptDirectory(str(migrations))
    return revisions.get_current_head(), frozenset(script.revision for script in revisions.walk_revisions())


def read_revisions(database: Path) -> list[str]:
    """Return the schema revisions of an MLflow database, normally one; empty for a database of another program.

    Raises:
        sqlite3.Error: the file is not a database.
    """
    with closing(_connect_existing(database)) as connection:
        if not _list_tables(connection) >= {*_TABLES, _REVISIONS}:
            return []
        rows = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    return sorted(str(revision) for (revision,) in rows if revision is not None)


def _connect_existing(database: Path) -> sqlite3.Connection:
    """Connect to an existing file with write access, because SQLite may first have to recover a write-ahead log."""
    return sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", uri=True, timeout=_BUSY_TIMEOUT_S)


def _list_tables(connection: sqlite3.Connection) -> set[str]:
    return {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def check_uri(uri: str) -> None:
    """Refuse the URI of a SQLite file that MLflow cannot use or would upgrade when opening it.

    Raises:
        StoreError: the file is refused; the message contains MLflow's command to upgrade it, if this is possible.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError

    if not uri.startswith("sqlite"):
        return
    try:
        path = make_url(uri).database
        if not path or not Path(path).is_file():
            return
        with closing(_connect_existing(Path(path))) as connection:
            is_fresh = not _list_tables(connection)
        if not is_fresh:  # in an empty database, MLflow creates its tables
            check(Path(path), shlex.join(["mlflow", "db", "upgrade", uri]))
    except (sqlite3.Error, SQLAlchemyError):
        return  # MLflow reports it


def check(database: Path, upgrade_command: str) -> None:
    """Refuse an existing database that the installed MLflow cannot use without an upgrade; change nothing.

    Raises:
        OutdatedError: an older MLflow wrote the database; the message contains `upgrade_command` as the remedy.
        StoreError: the database is damaged, or a newer MLflow or another program wrote it.
        sqlite3.Error: the file is not a database.
    """
    with closing(_connect_existing(database)) as connection:
        names = _list_tables(connection)
    if not names:
        raise StoreError(f"{database} is empty; remove it, or {OTHER_FOLDER}")
    if not names >= _TABLES:
        owner = "Optuna" if names >= _OPTUNA_TABLES else "another program"
        raise StoreError(f"{database} is a database of {owner}, not of MLflow; {OTHER_FOLDER}")
    revisions = read_revisions(database)
    if not revisions:
        raise StoreError(f"{database} has no schema version; restore it from a copy, or {OTHER_FOLDER}")
    _check_revisions(database, revisions, names, upgrade_command)


def _check_revisions(database: Path, revisions: list[str], names: set[str], upgrade_command: str) -> None:
    version = read_version()
    head, mlflow_revisions = _list_revisions()
    if revisions == [head]:
        return
    foreign = [revision for revision in revisions if revision not in mlflow_revisions]
    of_others = [name for name in foreign if not _REVISION.fullmatch(name) or names >= _OPTUNA_TABLES]
    if of_others:
        has_optuna = names >= _OPTUNA_TABLES or any(map(_OPTUNA_REVISION.fullmatch, of_others))
        owner = "Optuna" if has_optuna else "another program"
        raise StoreError(f"{database} is shared with {owner} (alembic_version: {', '.join(revisions)}); {OTHER_FOLDER}")
    if len(revisions) > 1:
        raise StoreError(
            f"{database} has {len(revisions)} schema versions ({', '.join(revisions)}); "
            f"restore it from a copy, or {OTHER_FOLDER}"
        )
    if foreign:
        raise StoreError(
            f"{database} was written by a newer MLflow than {version} (schema {foreign[0]}); "
            f"update MLflow, or {OTHER_FOLDER}"
        )
    raise OutdatedError(
        f"{database} was written by an older MLflow than {version} (schema {revisions[0]}); "
        f"upgrade it with: {upgrade_command}"
    )


def upgrade(database: Path) -> Path:
    """Upgrade a database of an older MLflow, completely or not at all; return the path of a copy of the old database.

    The upgrade runs on a copy, which then replaces the database in one transaction. The caller must hold the lock of
    the store.
    """
    version = read_version()
    upgraded_copy = database.with_name(f".{database.name}.upgrade")
    old = database.with_name(f"{database.name}.before-{version}-{time.strftime('%Y%m%dT%H%M%S')}")
    try:
        _copy(database, upgraded_copy)
        argv = [sys.executable, "-P", "-m", "mlflow", "db", "upgrade", f"sqlite:///{upgraded_copy}"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_UPGRADE_TIMEOUT_S, check=False)
        if done.returncode:
            reason = _find_reason(done.stderr)
            raise StoreError(
                f"{database} could not be upgraded for MLflow {version} and is unchanged ({reason}); "
                f"{_describe_recovery(database)}"
            )
        _copy(database, old)
        with closing(sqlite3.connect(upgraded_copy)) as source, closing(_connect(database)) as target:
            source.backup(target)
    except subprocess.TimeoutExpired as error:
        raise StoreError(
            f"{database} was not upgraded within {_UPGRADE_TIMEOUT_S:g} s and is unchanged; try again on a faster disk"
        ) from error
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            upgraded_copy.with_name(f"{upgraded_copy.name}{suffix}").unlink(missing_ok=True)
    return old


def _connect(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(database, timeout=_BUSY_TIMEOUT_S)


def _copy(database: Path, to: Path) -> None:
    to.unlink(missing_ok=True)
    with closing(_connect(database)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


def _find_reason(errors: str) -> str:
    lines = [line.strip() for line in errors.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (lines or errors.strip().splitlines() or ["no message"])[-1][:200]


def _describe_recovery(database: Path) -> str:
    copies = sorted(database.parent.glob(f"{database.name}.before-*"), key=lambda copy: copy.stat().st_mtime)
    if not copies:
        return f"after an interrupted upgrade, restore the database from a copy, or {OTHER_FOLDER}"
    return f"after an interrupted upgrade, restore {copies[-1]}"
