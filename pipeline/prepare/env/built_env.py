"""Environments that are built from a file and cached on disk: found by their key, checked, rebuilt if necessary.

<root>/<kind>-<key>/prefix/             the environment, built in its final folder: its files contain their own path
<root>/<kind>-<key>/environment.txt     its lock
<root>/<kind>-<key>/files.txt           size and path of every file of its packages, except compiled modules
<root>/<kind>-<key>/environment.json    marker, written last: an environment without it is incomplete
<root>/<kind>-<key>.lock                lock file: shared by processes that use the environment, exclusive for a build
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pipeline.base.domain.records import Interpreter
from pipeline.base.system import helper_program, locks, words
from pipeline.base.system.errors import CommandError, ConfigError
from pipeline.base.system.option_fields import option
from pipeline.base.system.paths import PROJECT_DIR, expand_path, find_file
from pipeline.prepare.env import trust
from pipeline.prepare.env.builder import BUILD_LIMIT_S, FORMAT, Builder, find_interpreter
from pipeline.prepare.env.lock import Lock, add_request, find_changed_archive
from pipeline.prepare.env.probe import Probe, probe, probe_new

_MARKER, _LOCK, _FILES = "environment.json", "environment.txt", "files.txt"
_POLL_S = 0.2
# Descriptors by lock file. They stay locked until the process exits, so nobody rebuilds an environment in use.
_held: dict[Path, int] = {}


@dataclass
class BuiltEnv(ABC):
    """Environment that is built for jobs and stored below `cache_root`; subclasses implement the build.

    Without `file`, the project's default file is used: it lists the packages that the workloads of `conf/workload/`
    need. As root, a folder that other users can change is a ConfigError.

    Attributes:
        kind: name of the environment's kind, such as `venv` in `env=venv`.
        title: name of the environment in messages.
        builder: name of the program that builds the environment.
        key: digest of everything that determines the built environment.
        default: name of the default file.
        requested: lines of the file that request packages; for a lock, the lines of the file from which the lock was
            made.
    """

    kind: ClassVar[str]
    default: ClassVar[str]
    file: str | None = option(
        "conda: `environment.yml` or an `@EXPLICIT` list; venv: `requirements.txt`, `pyproject.toml`, `uv.lock`, "
        "`pylock.toml`; both: a recorded lock. Default: packages of the networks",
        None,
        values="path",
    )
    cache_root: str | None = option(
        "folder of environments; `null`: `~/.cache/gpu-collocation/environments`", None, values="path"
    )
    title: str = field(init=False)
    builder: str = field(init=False)
    key: str = field(init=False)
    requested: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        self.path = PROJECT_DIR / "workloads" / self.default if self.file is None else find_file("env.file", self.file)
        folder = self.cache_root
        self.root = expand_path("env.cache_root", folder).resolve() if folder else _choose_default_root()

    @abstractmethod
    def check_tools(self) -> None:
        """Raise `ConfigError` if a program that the build needs is missing."""

    @abstractmethod
    def build(self, prefix: Path, builder: Builder) -> Lock:
        """Build the environment in its final folder, which does not exist yet; return the installed packages.

        Raises:
            ConfigError: solving or installing failed, or the environment cannot run jobs or cannot be recorded.
        """

    @abstractmethod
    def activation(self, prefix: Path) -> tuple[tuple[str, str], ...]:
        """Variables of the activated environment, for its jobs; they hide the orchestrator's own packages."""

    def preview(self) -> Interpreter:
        """Return the environment if it exists, else the path at which it would be built."""
        state = self._find()
        if isinstance(state, Interpreter):
            return state
        self.check_tools()
        return Interpreter(
            python=find_interpreter(self._folder / "prefix"),
            lock_digest=f"unbuilt-{self.key}",
            to_build=f"{self.title} {state}; {self.builder} builds it before the study starts",
            requested=self.requested,
        )

    def _find(self) -> Interpreter | str:
        """Find the environment and lock it against a rebuild; if there is none, return the reason in words."""
        path = self._lock_path
        if path not in _held and not path.exists():
            self._refuse_unsafe()
            return "is not built yet"
        handle = self._open()
        if not locks.try_take(handle, is_shared=True):
            return "is being built by another process"
        state = self._inspect()
        if isinstance(state, str):
            locks.drop(handle)
        return state

    def resolve(self) -> Interpreter:
        """Return the environment, built if necessary, and lock it against a rebuild."""
        handle = self._open()
        is_told = False
        while True:
            if locks.try_take(handle, is_shared=True):
                state = self._inspect()
                if isinstance(state, Interpreter):
                    return state
                # Upgrading an flock is not atomic, so the environment is inspected again afterwards.
                if locks.try_take(handle) and isinstance(reason := self._inspect(), str):
                    try:
                        self._build(handle, reason)
                    finally:
                        locks.drop(handle)
                    continue
            if not is_told:
                words.say(f"{self.title}: waiting for another process that builds or uses {self._folder}")
                is_told = True
            time.sleep(_POLL_S)

    @property
    def _folder(self) -> Path:
        return self.root / f"{self.kind}-{self.key[:16]}"

    @property
    def _lock_path(self) -> Path:
        return self._folder.with_suffix(".lock")

    def _open(self) -> int:
        path = self._lock_path
        self._refuse_unsafe()
        if path not in _held:
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                # Below a folder such as /tmp, another user may have created the folder in the meantime.
                self._refuse_unsafe()
                # Environments in a folder that only another user can write can still be used and locked.
                is_ours = os.access(path if path.exists() else self.root, os.W_OK)
                mode = os.O_RDWR | os.O_CREAT if is_ours else os.O_RDONLY
                _held[path] = os.open(path, mode | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise ConfigError(
                    f"env.cache_root={self.root} cannot be used: {error.strerror}; choose a folder that you can write"
                ) from error
        return _held[path]

    def _refuse_unsafe(self) -> None:
        """Refuse a folder that other users can change, because root runs programs from this folder."""
        if os.geteuid() != 0:
            return
        nearest = next(path for path in (self.root, *self.root.parents) if os.path.lexists(path))
        for path in (nearest, self._folder):
            part = trust.find_replaceable_part(path) if os.path.lexists(path) else None
            if part is not None:
                raise ConfigError(
                    f"env.cache_root={self.root} is unsafe for root: other users can change {part}; choose a folder "
                    "that only root can write"
                )

    def _inspect(self) -> Interpreter | str:
        folder, prefix = self._folder, self._folder / "prefix"
        if not folder.exists():
            return "is not built yet"
        try:
            marker = json.loads((folder / _MARKER).read_text(encoding="utf-8"))
            text = (folder / _LOCK).read_text(encoding="utf-8")
            files = (folder / _FILES).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return "is incomplete"
        if marker.get("format") != FORMAT or marker.get("lock") != _sha256(text):
            return "has a changed lock file"
        if (archive := find_changed_archive(text)) is not None:
            return f"was built from {archive}, which is missing or has changed"
        try:
            probed = probe(prefix)
        except CommandError as error:
            return f"is broken ({' '.join(str(error).split())[:300]})"
        if _digest_packages(prefix, probed) != marker.get("fingerprint"):
            return "has other packages than at its build"
        # This check takes 0.2 s of CPU time for the 35,000 files of an environment with torch.
        if changed := set(files.splitlines()) - set(_iterate_files(prefix)):
            return f"has a missing or changed file: {min(line.partition(' ')[2] for line in changed)}"
        return Interpreter(
            python=find_interpreter(prefix),
            environ=self.activation(prefix),
            lock=add_request(text.splitlines(), self.requested),
            lock_digest=marker["lock_digest"],
        )

    def _build(self, handle: int, reason: str) -> None:
        folder, prefix = self._folder, self._folder / "prefix"
        words.say(f"{self.title} {reason}; {self.builder} builds it in {folder}")
        begin_s = time.monotonic()
        try:
            _remove(folder)
            folder.mkdir()
            lock = self.build(prefix, Builder(title=self.title, scratch=folder, lock=handle))
            probed = probe_new(prefix, self.title)
            _compile(prefix, handle)
            (folder / _LOCK).write_text(lock.text, encoding="utf-8")
            (folder / _FILES).write_text("\n".join(_iterate_files(prefix)), encoding="utf-8")
            marker = {
                "format": FORMAT,
                "title": self.title,
                "tool": self.builder,
                "key": self.key,
                "lock": _sha256(lock.text),
                "lock_digest": lock.digest,
                "fingerprint": _digest_packages(prefix, probed),
            }
            unfinished = folder / f"{_MARKER}.new"
            unfinished.write_text(json.dumps(marker, indent=1), encoding="utf-8")
            unfinished.rename(folder / _MARKER)
        except OSError as error:
            raise ConfigError(
                f"{self.title} cannot be built in {folder}: {error}; free space there, or set env.cache_root"
            ) from error
        except ConfigError:
            with suppress(OSError):  # the next start removes it as well
                _remove(folder)
            raise
        words.say(f"{self.title} is ready after {time.monotonic() - begin_s:.0f} s")


def _choose_default_root() -> Path:
    """Return the default folder for environments, below the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gpu-collocation" / "environments"


def _digest_packages(prefix: Path, probed: Probe) -> str:
    conda = sorted(path.name for path in (prefix / "conda-meta").glob("*.json"))
    return _sha256(json.dumps([probed.python, sorted(p.requirement() for p in probed.packages), conda]))


def _iterate_files(prefix: Path) -> Iterator[str]:
    """Yield size and path of each file of the packages, except compiled modules."""
    folders = [str(prefix / "lib")]
    while folders:
        with suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        folders.append(entry.path)
                else:
                    path = entry.path[len(str(prefix)) + 1 :].encode(errors="backslashreplace").decode()
                    yield f"{entry.stat(follow_symlinks=False).st_size} {path}"


def _compile(prefix: Path, lock: int) -> None:
    """Compile all modules; otherwise the first jobs would compile them, and their scripts would take longer."""
    argv = [str(find_interpreter(prefix)), "-I", "-m", "compileall", "-q", "-j", "0", str(prefix / "lib")]
    # The exit status is ignored: packages contain files that cannot be compiled and are never imported (templates).
    helper_program.run(argv, timeout_s=BUILD_LIMIT_S, check=False, keep_open=[lock])


def _remove(folder: Path) -> None:
    # The marker is removed first: after an interrupted removal, the environment must not look complete.
    (folder / _MARKER).unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
