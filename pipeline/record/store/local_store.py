"""The tracking store; a local store is created under a lock and upgraded on request.

The local store is a folder: `mlflow.db` (SQLite), `artifacts/`, `spool/`. Any number of orchestrators may open it at
the same time. The lock is necessary because MLflow allows several processes to migrate a new database at the same time,
which damages the database.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import psutil

from pipeline.base.domain.layout import DATABASE, REHEARSAL, STORE_ARTIFACTS, STORE_LOCK
from pipeline.base.system import entry_points, locks, paths
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.record.store import database_schema, pages
from pipeline.record.store.database_schema import OutdatedError

if TYPE_CHECKING:
    from mlflow import MlflowClient

PAGE = 1000
"""Runs of one reply of a server."""

BUSY_TIMEOUT_S = 60
"""Time that a writer waits for another writer. Python's default is 5 s, which a large upload can exceed."""

LOCAL_FILE_SYSTEMS = frozenset(
    ("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs")
)
"""File systems that support the shared memory of SQLite's WAL. Source: sqlite.org/wal.html, section 1."""

_MLFLOW_DEFAULTS = {
    # An unreachable server must cause an error within 15 s: MLflow's defaults block a call for 247 s.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    # A machine that measures runs no other work.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}

_SALT = "mlflow.collocation.salt"
_LOGGER_OF_DATABASES = "mlflow.store.db.utils"
"""Parent of loggers that print errors with tracebacks which are also raised."""
_SQL_STORE = "mlflow.store.tracking.sqlalchemy_store"
_CONFLICT = "IntegrityError"  # in the text of MLflow's error, also of that from a server

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Store:
    """An open tracking store; `root` and the database's `inode` are `None` for a server.

    Attributes:
        place: folder of the artifacts, if the database is a copy elsewhere.
    """

    client: MlflowClient
    uri: str
    root: Path | None
    inode: int | None = None
    place: Path | None = None
    _experiments: dict[str, tuple[str, frozenset[str]]] = field(default_factory=dict)

    def open_experiment(self, name: str, counted: Collection[str] = ()) -> str:
        """Return the id of an experiment, creating it if necessary; its page shows the `counted` work units.

        Raises:
            TrackingError: the experiment was deleted, or its artifact paths point to a former folder of this store.
        """
        if name not in self._experiments or not self._experiments[name][1].issuperset(counted):
            try:
                self._experiments[name] = self._find_or_create(name, frozenset(counted))
            except Exception as error:  # each kind of server raises other errors
                if self.root is not None or isinstance(error, TrackingError):
                    raise
                raise TrackingError(
                    f"the tracking server at {self.uri} gave no valid reply: {describe_error(error)}; "
                    + choose_server_remedy(self.uri, error, "check tracking.uri, or use tracking=local")
                ) from error
        return self._experiments[name][0]

    @property
    def folder(self) -> Path | None:
        """The folder of a local store, which has the artifacts."""
        return self.place or self.root

    def read_salt(self, experiment: str, *, creates: bool = False) -> str:
        """Return the salt of the digests of names in an experiment; empty without one. It is in no bundle."""
        stored = self.client.get_experiment_by_name(experiment)
        salt = str(stored.tags.get(_SALT, ""))
        if creates and not salt:
            salt = os.urandom(8).hex()
            self.client.set_experiment_tag(stored.experiment_id, _SALT, salt)
        return salt

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        """Set a tag of a run, also if another process sets the same tag at the same moment.

        MLflow's SQL store looks for the tag before it inserts it: of two processes that find none, one fails.
        """
        from mlflow.exceptions import MlflowException

        try:
            self.client.set_tag(run_id, key, value)
        except MlflowException as error:
            if _CONFLICT not in str(error):
                raise
            self.client.set_tag(run_id, key, value)  # the tag exists now

    def search_runs(self, experiment_id: str, condition: str = "", *, is_deleted: bool = False) -> Iterator[Any]:
        """Yield the active or deleted MLflow runs of an experiment that meet a condition, oldest first."""
        from mlflow.entities import ViewType

        view = ViewType.DELETED_ONLY if is_deleted else ViewType.ACTIVE_ONLY
        order, token = ["attributes.start_time ASC"], None
        while token != "":
            page = self.client.search_runs(
                [experiment_id], condition, view, max_results=PAGE, order_by=order, page_token=token
            )
            yield from page
            token = page.token or ""

    def sync(self) -> None:
        """Wait until every row of the local store is on disk; afterwards the spool folder can be removed.

        Raises:
            TrackingError: the database was removed or replaced after it was opened.
        """
        if self.root is None:
            return
        if self.inode is not None and self.inode != _read_inode(self.root / DATABASE):
            raise TrackingError(
                f"{self.root / DATABASE} was removed or replaced while the study ran; "
                "start the study again to send its results from the spool"
            )
        # Closing the database file here would release SQLite's locks on it; SQLite does not lock the log.
        wal_file = self.root / f"{DATABASE}-wal"
        if wal_file.exists():
            with wal_file.open("rb") as file:
                os.fsync(file.fileno())

    def _find_or_create(self, name: str, counted: frozenset[str]) -> tuple[str, frozenset[str]]:
        from mlflow.exceptions import MlflowException

        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            folder = re.sub(r"[^\w.-]", "_", name).lstrip(".") or "_"
            location = None if self.root is None else (self.root / STORE_ARTIFACTS / folder).as_uri()
            tags = {pages.VIEW_TAG: pages.view_as_json(counted)}
            try:
                return str(self.client.create_experiment(name, artifact_location=location, tags=tags)), counted
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                experiment = self.client.get_experiment_by_name(name)  # another orchestrator was faster
        if experiment.lifecycle_stage != "active":
            raise TrackingError(
                f"experiment {name!r} was deleted from {self.uri}; restore it with `mlflow experiments restore "
                f"--experiment-id {experiment.experiment_id}`, or choose another name with tracking.experiment=..."
            )
        if self.root is not None and find_foreign_root(experiment.artifact_location, self.root) is not None:
            raise TrackingError(
                f"the artifacts of experiment {name!r} are in {experiment.artifact_location}, not in {self.root}; "
                f"run `{entry_points.spell('tracking', 'relocate', '--root', str(self.root))}` first"
            )
        state = experiment.tags.get(pages.VIEW_TAG, "")
        counted |= pages.units_in_view(state)
        if state != pages.view_as_json(counted):
            self.client.set_experiment_tag(experiment.experiment_id, pages.VIEW_TAG, pages.view_as_json(counted))
        return str(experiment.experiment_id), counted


def set_mlflow_defaults() -> None:
    """Set short timeouts and few messages for MLflow unless the environment sets them. Call before importing MLflow."""
    for name, value in _MLFLOW_DEFAULTS.items():
        os.environ.setdefault(name, value)
    logging.getLogger(_LOGGER_OF_DATABASES).setLevel(logging.CRITICAL)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # an unreachable server is already reported by our error


def open_store(root: Path, uri: str | None = None, *, upgrades: bool = False) -> Store:
    """Open the server or database at `uri`, or else the local store in `root`, creating it if necessary.

    With `upgrades`, a local store of an older MLflow is upgraded.

    Raises:
        StoreError: the database is damaged, or belongs to another version of MLflow or to another program.
        TrackingError: the local store cannot be used, or MLflow does not support this kind of URI.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    if uri is not None:
        database_schema.check_uri(uri)
        try:
            return Store(client=MlflowClient(tracking_uri=uri), uri=uri, root=None)
        except Exception as error:  # each kind of store raises other errors
            first = str(error).strip().partition(". ")[0]
            raise TrackingError(f"MLflow cannot open {uri}: {first}; specify a server as http://HOST:PORT") from error
    root = root.absolute()
    try:
        paths.make_root(root)
        with locks.hold_lock(root / STORE_LOCK):
            _prepare(root, upgrades=upgrades)
        _sync_seldom()
        local_uri = make_database_uri(root / DATABASE)
        client = MlflowClient(tracking_uri=local_uri)
    except (OSError, sqlite3.Error, SQLAlchemyError, MlflowException) as error:
        raise TrackingError(
            f"could not open the tracking store in {root}: {describe_error(error)}; "
            f"check its permissions, or {database_schema.OTHER_FOLDER}"
        ) from error
    return Store(client=client, uri=local_uri, root=root, inode=_read_inode(root / DATABASE))


def _read_inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def is_server(root_or_uri: Path | str) -> bool:
    """Return whether `root_or_uri` is the URI of a tracking server, not a folder."""
    return isinstance(root_or_uri, str) and "://" in root_or_uri


def describe_error(error: Exception) -> str:
    """Describe a failed call of MLflow in one line; prefer the operating system's error if it was the cause."""
    innermost: BaseException = error
    while (inner := innermost.__cause__ or innermost.__context__) is not None:
        innermost = inner
    reason = innermost if isinstance(innermost, OSError) else error
    return next(iter(str(reason).strip().splitlines()), type(reason).__name__)[:300]


def choose_server_remedy(uri: str, error: Exception, remedy: str) -> str:
    """Choose the remedy for a server that gave no valid reply; `remedy` if host name and proxy are not the cause."""
    from requests.utils import get_environ_proxies, select_proxy

    address = urlsplit(uri)
    if "Invalid Host header" in str(error):
        return f"start the server with --allowed-hosts '{address.netloc},localhost:*'"
    if address.hostname and (proxy := select_proxy(uri, get_environ_proxies(uri))):
        exclusion = f"`export no_proxy={address.hostname}`"
        return f"requests go to the proxy {proxy} of your environment; exclude the server by {exclusion}, or {remedy}"
    return remedy


@contextmanager
def translate_errors(failure: str, remedy: str = "", server: str = "") -> Iterator[None]:
    """Convert an error of MLflow, of the `server` if any, to a `TrackingError` whose text begins with `failure`."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        remedy = choose_server_remedy(server, error, remedy)
        raise TrackingError(f"{failure}: {describe_error(error)}{remedy and f'; {remedy}'}") from error


def make_database_uri(path: Path) -> str:
    """Return the URI with which MLflow opens a SQLite file and waits for other writers."""
    return f"sqlite:///{path}?timeout={BUSY_TIMEOUT_S}"


def is_local(path: Path) -> bool:
    """Return whether an absolute path is on a local file system; unknown file systems count as remote."""
    kind, longest = "", -1
    for mount in psutil.disk_partitions(all=True):
        point = Path(mount.mountpoint)
        # If several file systems are mounted on the same point, the last one is visible.
        if path.is_relative_to(point) and len(point.parts) >= longest:
            kind, longest = mount.fstype, len(point.parts)
    return kind in LOCAL_FILE_SYSTEMS


def find_foreign_root(location: str, root: Path) -> Path | None:
    """Return the folder of another store that an artifact location belongs to.

    `None` if the location belongs to this store, or does not have the form `<root>/artifacts/<experiment>`.
    """
    path = Path(unquote(urlsplit(location).path) if location.startswith("file:") else location)
    if not path.is_absolute() or path.parent.name != STORE_ARTIFACTS:
        return None
    owner = path.parent.parent
    same = owner == root or (owner.exists() and owner.samefile(root))
    return None if same else owner


def _prepare(root: Path, *, upgrades: bool) -> None:
    """Create or check the database. The check is skipped if this version of MLflow opened it last."""
    database, version_file = root / DATABASE, root / STORE_LOCK
    version = database_schema.read_version()
    if not database.exists():
        _create(root)
    elif version_file.read_text(errors="replace").split() != [version, *database_schema.read_revisions(database)]:
        try:
            database_schema.check(database, spell_upgrade_command(root))
        except OutdatedError:
            if not upgrades:
                raise
            database_schema.upgrade(database)
    _set_journal_mode(root)
    version_file.write_text(f"{version} {database_schema.read_revisions(database)[0]}", encoding="utf-8")


def upgrade(root: Path) -> str:
    """Upgrade the local store of an older MLflow, and return a description of the result.

    Raises:
        ConfigError: `root` contains no store.
        StoreError: the database cannot be upgraded.
        TrackingError: the database cannot be opened.
    """
    root = root.absolute()
    database = root / DATABASE
    if not database.exists():
        raise ConfigError(f"{root} contains no tracking store: {DATABASE} is missing; specify its folder with --root")
    try:
        with locks.hold_lock(root / STORE_LOCK):
            try:
                database_schema.check(database, spell_upgrade_command(root))
            except OutdatedError:
                old = database_schema.upgrade(database)
                return f"upgraded {database} for MLflow {database_schema.read_version()}; the old database is now {old}"
    except (OSError, sqlite3.Error) as error:
        other = database_schema.OTHER_FOLDER
        raise TrackingError(f"{database} could not be upgraded: {describe_error(error)}; {other}") from error
    return f"nothing to do: {database} is up to date"


def spell_upgrade_command(root: Path) -> str:
    """Return the command that upgrades a local store."""
    return entry_points.spell("tracking", "upgrade", "--root", str(root))


def is_ready(root: Path, experiment: str) -> bool:
    """Return whether the store and the experiment can be opened without any change; does not import MLflow."""
    try:
        recorded_versions = (root / STORE_LOCK).read_text(errors="replace").split()
        expected = [database_schema.read_version(), *database_schema.read_revisions(root / DATABASE)]
        if recorded_versions != expected or not os.access(root / DATABASE, os.W_OK):
            return False
        stored = _read_experiment(root / DATABASE, experiment)
    except (OSError, sqlite3.Error):
        return False
    return stored is None or (stored[0] == "active" and find_foreign_root(stored[1], root) is None)


def _read_experiment(database: Path, name: str) -> tuple[str, str] | None:
    """Return the lifecycle stage and the artifact location of an experiment; `None` if there is none."""
    statement = "SELECT lifecycle_stage, artifact_location FROM experiments WHERE name = ?"
    with closing(sqlite3.connect(database, timeout=BUSY_TIMEOUT_S)) as connection:
        row: tuple[str, str] | None = connection.execute(statement, (name,)).fetchone()
    return row


def import_mlflow(*, with_database: bool) -> None:
    """Import MLflow, with its database modules, which it would import at its first use, while a group waits."""
    import_module(_SQL_STORE if with_database else "mlflow")


def _create(root: Path) -> None:
    """Build the database under a temporary name and rename it; a killed process leaves no partial database."""
    temporary_path = root / f".{DATABASE}.new"
    # SQLite would apply the write-ahead log of a removed database to the new database.
    for old in (temporary_path, root / f"{DATABASE}-wal", root / f"{DATABASE}-shm"):
        old.unlink(missing_ok=True)
    # A client would put the files of MLflow's experiment Default into the working directory.
    store = import_module(_SQL_STORE).SqlAlchemyStore(f"sqlite:///{temporary_path}", (root / STORE_ARTIFACTS).as_uri())
    store.engine.dispose()
    temporary_path.replace(root / DATABASE)


def _set_journal_mode(root: Path) -> None:
    """Enable WAL on a local file system; with WAL, readers (the UI) and writers do not wait for each other."""
    local = is_local(root.resolve())
    if not local:
        log.warning("%s is not on a local file system; writing is slower because WAL is not possible", root)
    mode = "wal" if local else "delete"
    with closing(sqlite3.connect(root / DATABASE)) as connection:
        if connection.execute("PRAGMA journal_mode").fetchone()[0] == mode:
            return
        try:
            connection.execute(f"PRAGMA journal_mode={mode}")
        except sqlite3.OperationalError as error:  # another process has it open; the mode only affects speed
            log.warning("could not set the journal mode of %s to %s: %s", root / DATABASE, mode, error)


@functools.cache
def _sync_seldom() -> None:
    """Make SQLite sync when it copies the write-ahead log to the database, not at each transaction.

    A commit survives a crash of this process; a crash of the machine can undo commits after the last `Store.sync`.
    """
    from sqlalchemy import Engine, event

    def set_up(connection: object, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            if mode == "wal":  # without WAL, a crash of the machine could damage the database
                connection.execute("PRAGMA synchronous=NORMAL")

    event.listen(Engine, "connect", set_up)


def explain_missing(experiment: str, store: object, experiments: Collection[str], remedy: str = "available: ") -> str:
    """Explain that a store lacks an experiment; `experiments` are the names of its experiments.

    `remedy` precedes their list. A rehearsal is proposed instead of the list.
    """
    if f"{experiment}{REHEARSAL}" in experiments:
        return f"{store}: {experiment!r} has only a rehearsal; use {experiment}{REHEARSAL}"
    names = ", ".join(repr(name) for name in experiments if name != "Default") or "none"
    return f"{store} has no experiment {experiment!r}; {remedy}{names}"
