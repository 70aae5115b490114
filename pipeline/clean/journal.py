"""What must be undone on a device, on disk before it is done. Knows no GPU: functions say which kinds they undo.

A journal is one append-only file of JSON lines a device. A line adds a step, says more about one, or says that one was
undone; every line is synced to the disk before its writer goes on. The file is there exactly as long as something is
left to undo, so a device whose journal file does not exist is clean.

Lines decide what root ends and destroys. So each user's journals lie in a folder that only this user can write: not
even a file of root's own can be moved there by somebody else. What others left is named and never carried out. And no
line says what is run: its kind is a word that a function of this package took, and programs are looked for when needed.

Only the holder of the device's lease (`pipeline.prepare.device.lease`) may write its journal.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pkgutil
import pwd
import re
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pipeline.base.errors import CollocationError
from pipeline.base.interrupts import UndoStack
from pipeline.base.programs import Programs

# Below these, functions take kinds; all is imported only when a journal holds a kind that nothing loaded has taken.
_PACKAGES = ("pipeline.prepare", "pipeline.launch.profilers")
_FOLDER = "collocation-journals-"
_FOLDER_NAME = re.compile(rf"{_FOLDER}\d+")
_FILE_NAME = re.compile(r"(?P<device>[A-Za-z0-9_-]+)\.journal")
# systemd-tmpfiles, which removes old files of /var/tmp, leaves a file with the sticky bit. Source: its function
# dir_cleanup; XDG Base Directory Specification, XDG_RUNTIME_DIR.
_FILE_MODE = 0o1644
_REMOVE = "Look at it, and remove it: python -m pipeline.gpu clean undoes nothing that others could have written"


class JournalError(CollocationError):
    """A journal cannot be read, written or carried out; the device may not be as it was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of step; see `undoes`."""

    undo: Callable[..., None]
    words: str
    ends_processes: bool


_KINDS: dict[str, Kind] = {}
_F = TypeVar("_F", bound=Callable[..., None])


def undoes(kind: str, words: str, *, ends_processes: bool = False) -> Callable[[_F], _F]:
    """Let a function undo the steps of a kind.

    It is called with the device's programs, and by name with the arguments of the step. It is safe to repeat, is
    content with what is gone already, and raises a CollocationError when something is left.

    Args:
        kind: the word for it in journals, for ever: later versions must undo what this one left.
        words: what it does; arguments stand in braces.
        ends_processes: whether it only ends processes, which are there also when the device is not any more.
    """

    def take(function: _F) -> _F:
        assert kind not in _KINDS, f"two functions undo {kind}"
        _KINDS[kind] = Kind(undo=function, words=words, ends_processes=ends_processes)
        return function

    return take


def kind_of(step: Step) -> Kind | None:
    """The kind of a step; `None` if this version does not know it."""
    if step.kind not in _KINDS:
        for package in map(importlib.import_module, _PACKAGES):
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                importlib.import_module(module.name)
    return _KINDS.get(step.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to undo.

    Attributes:
        kind: as a function took it with `undoes`.
        arguments: of that function; everything that JSON can hold, and no path of a program.
        step_id: unique.
    """

    kind: str
    arguments: dict[str, Any]
    step_id: str = field(default_factory=lambda: uuid.uuid4().hex)


def in_words(step: Step) -> str:
    """What undoing a step does."""
    kind = kind_of(step)
    with suppress(KeyError):  # of an argument that another version wrote
        if kind is not None:
            return kind.words.format(**step.arguments)
    return f"a step of kind {step.kind!r} that this version does not know"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A journal that is there, of whichever user.

    Attributes:
        device_uuid: as its name says it.
        owner: user name, or number.
        is_ours: whether this user may carry it out.
    """

    path: Path
    device_uuid: str
    owner: str
    is_ours: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What became of the steps of a journal, in the order in which they were tried."""

    undone: tuple[Step, ...]
    failed: tuple[tuple[Step, CollocationError], ...]


class Journal:
    """The undo steps of one device that are still to be carried out.

    Args:
        folder: below which journals lie; the same for every user and every start, or a leftover would not be found.
        device_uuid: which device.
        programs: what its settings are put back with.
    """

    def __init__(self, folder: Path, device_uuid: str, programs: Programs | None = None) -> None:
        self._programs = programs or Programs()
        self.path = folder / f"{_FOLDER}{os.geteuid()}" / f"{re.sub('[^A-Za-z0-9-]', '_', device_uuid)}.journal"

    def steps(self) -> tuple[Step, ...]:
        """What is left to undo, oldest first. Empty for a clean device.

        Raises:
            JournalError: the file cannot be trusted or understood.
        """
        try:
            descriptor = self._open(os.O_RDONLY)
        except FileNotFoundError:
            return ()
        try:
            return tuple(self._parse(_complete_lines(descriptor)).values())
        finally:
            os.close(descriptor)

    def add(self, kind: str, **arguments: Any) -> Step:
        """Put a step on disk; on return it survives a crash, so what it undoes may be done now.

        Raises:
            JournalError: it is not on disk: do not go on.
        """
        assert kind in _KINDS, f"nothing undoes {kind}"
        step = Step(kind=kind, arguments=arguments)
        self._append(_line_of(step))
        return step

    def amend(self, step: Step, **arguments: Any) -> Step:
        """Say more about a step, such as the id of what was made; returns the step as it is now.

        Raises:
            JournalError: it is not on disk; the step is there as it was.
        """
        amended = Step(kind=step.kind, arguments=step.arguments | arguments, step_id=step.step_id)
        self._append(_line_of(amended))
        return amended

    def undo(self, step: Step) -> None:
        """Carry a step out as it was last amended, and forget it. Nothing happens if it was undone already.

        Raises:
            JournalError: nobody knows how to undo it, or the journal cannot be written.
            CollocationError: what undoing it says. The step stays in the journal.
        """
        current = {known.step_id: known for known in self.steps()}.get(step.step_id)
        if current is None:
            return
        kind = kind_of(current)
        if kind is None or not _takes(kind.undo, current.arguments):
            raise JournalError(
                f"{self.path} holds a step of kind {current.kind!r} that this version cannot undo; "
                "clean up with the version that wrote it"
            )
        kind.undo(self._programs, **current.arguments)
        self._append({"undone": step.step_id})
        if not self.steps():
            self.forget()

    def device_is_gone(self) -> None:
        """Forget the steps that change the device, which does not exist any more; those that end processes stay.

        Raises:
            JournalError: as `steps`, or the journal cannot be written.
        """
        for step in self.steps():
            if (kind := kind_of(step)) is None or not kind.ends_processes:
                self._append({"undone": step.step_id})

    def forget(self) -> None:
        """Remove the file, whatever steps it holds.

        Raises:
            JournalError: it cannot be removed.
        """
        try:
            self.path.unlink()
            _sync_folder(self.path.parent)
        except FileNotFoundError:
            return
        except OSError as error:
            raise JournalError(f"cannot remove the journal {self.path}: {error.strerror}") from error

    def refuse_those_of_others(self) -> None:
        """Check that no other user has left something to undo on this device.

        Raises:
            JournalError: names who has to clean up.
        """
        for found in find(self.path.parent.parent):
            if found.path.name == self.path.name and not found.is_ours:
                raise JournalError(f"the journal {found.path} holds steps that are not ours to undo: {_remedy(found)}")

    @contextmanager
    def undoing(self, kind: str, **arguments: Any) -> Iterator[Step]:
        """Journal a step, let the body take it, and undo it at the end. An error of the body is never hidden.

        Raises:
            JournalError: as `add` and `undo`.
            CollocationError: undoing failed and the body did not; otherwise the body's error carries it as a note.
        """
        with UndoStack() as stack:
            step = self.add(kind, **arguments)
            stack.callback(self.undo, step)
            yield step

    def _open(self, flags: int) -> int:
        """Open the file, if nobody else could have written it: its lines decide what is ended, destroyed and run."""
        folder = self._open_folder(is_made=bool(flags & os.O_CREAT))
        try:
            # Not to be kept waiting by a pipe in its place.
            descriptor = os.open(self.path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
            status = os.fstat(descriptor)
            is_there = os.path.samestat(status, os.stat(self.path.name, dir_fd=folder, follow_symlinks=False))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise JournalError(f"cannot open the journal {self.path}: {error.strerror}. {_REMOVE}") from error
        finally:
            os.close(folder)
        is_plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        if not (is_there and is_plain and status.st_uid == os.geteuid() and not status.st_mode & 0o022):
            os.close(descriptor)
            raise JournalError(f"the journal {self.path} is not a plain file that only we can write. {_REMOVE}")
        return descriptor

    def _open_folder(self, *, is_made: bool) -> int:
        """Open our folder, in which nobody else can put anything."""
        folder = self.path.parent
        try:
            if is_made:
                with suppress(FileExistsError):
                    folder.mkdir(0o755)
                    folder.chmod(0o755)  # whatever the umask says: others must see that something is left
                    _sync_folder(folder.parent)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise JournalError(
                f"cannot open the folder {folder} of the journals: {error.strerror}. {_REMOVE}"
            ) from error
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            os.close(descriptor)
            raise JournalError(f"the folder {folder} is not one that only we can write. {_REMOVE}")
        return descriptor

    def _append(self, record: dict[str, Any]) -> None:
        line = json.dumps(record).encode() + b"\n"
        try:
            descriptor = self._open(os.O_RDWR | os.O_CREAT | os.O_APPEND)
        except FileNotFoundError as error:
            raise JournalError(
                f"{self.path.parent.parent} does not exist; choose a folder with gpu.lock_dir"
            ) from error
        try:
            os.fchmod(descriptor, _FILE_MODE)
            # A process killed while it wrote leaves half a line, of a step that it did not take.
            length = len(_complete_lines(descriptor))
            os.ftruncate(descriptor, length)
            if os.write(descriptor, line) != len(line):
                os.ftruncate(descriptor, length)
                raise JournalError(f"cannot write the journal {self.path}: the disk is full")
            os.fsync(descriptor)
            _sync_folder(self.path.parent)
        except OSError as error:
            raise JournalError(f"cannot write the journal {self.path}: {error.strerror}") from error
        finally:
            os.close(descriptor)

    def _parse(self, content: bytes) -> dict[str, Step]:
        steps: dict[str, Step] = {}
        for line in content.splitlines():
            try:
                record = json.loads(line)
                if "undone" in record:
                    del steps[record["undone"]]
                else:
                    steps[record["step_id"]] = Step(**record)
            except (ValueError, KeyError, TypeError) as error:
                raise JournalError(f"the journal {self.path} has a line that is not ours: {line!r}") from error
        return steps


def find(folder: Path) -> tuple[Found, ...]:
    """Every journal below a folder, of every user, in the order of the devices. Nothing in them is read."""
    found = []
    for path in sorted(folder.glob(f"{_FOLDER}*/*.journal"), key=lambda path: path.name):
        name = _FILE_NAME.fullmatch(path.name)
        if name is None or not _FOLDER_NAME.fullmatch(path.parent.name):
            continue
        with suppress(OSError):
            uid = path.parent.lstat().st_uid
            is_ours = uid == os.geteuid() and path.parent.name == f"{_FOLDER}{uid}"
            found.append(Found(path=path, device_uuid=name["device"], owner=_user_name(uid), is_ours=is_ours))
    return tuple(found)


def undo_all(journal: Journal) -> Replayed:
    """Undo what a killed process left, newest first. For the holder of the device's lease.

    A step that cannot be undone stays in the journal, and the older ones are tried all the same.

    Raises:
        JournalError: the file cannot be trusted, understood or written.
    """
    undone: list[Step] = []
    failed: list[tuple[Step, CollocationError]] = []
    for step in reversed(journal.steps()):
        try:
            journal.undo(step)
        except CollocationError as error:
            failed.append((step, error))
        else:
            undone.append(step)
    # A process killed between the last undoing and the removal of its file, or in its first line, left an empty one.
    if not failed:
        journal.forget()
    return Replayed(undone=tuple(undone), failed=tuple(failed))


def replay(journal: Journal) -> tuple[Step, ...]:
    """As `undo_all`, for whoever goes on only when nothing is left; returns what was undone.

    Raises:
        JournalError: as `undo_all`, or another user has left something on the device.
        CollocationError: the first error of a step; those of further steps are its notes.
    """
    journal.refuse_those_of_others()
    replayed = undo_all(journal)
    if replayed.failed:
        (_, first), *further = replayed.failed
        for _, error in further:
            first.add_note(f"also not undone: {error}")
        raise first
    return replayed.undone


def _takes(undo: Callable[..., None], arguments: dict[str, Any]) -> bool:
    try:
        inspect.signature(undo).bind(Programs(), **arguments)
    except TypeError:
        return False
    return True


def _remedy(found: Found) -> str:
    return f"user {found.owner} left them and must clean up: python -m pipeline.gpu clean"


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _line_of(step: Step) -> dict[str, Any]:
    return {"step_id": step.step_id, "kind": step.kind, "arguments": step.arguments}


def _complete_lines(descriptor: int) -> bytes:
    content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    return content[: content.rfind(b"\n") + 1]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
