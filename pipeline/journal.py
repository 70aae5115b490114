"""What must be undone on a device, on disk before it is done. Knows no GPU: each kind of step names its function.

A journal is one append-only file of JSON lines a device. A line adds a step, says more about one, or says that one was
undone; every line is synced to the disk before its writer goes on. The file is there exactly as long as something is
left to undo, so a device whose journal file does not exist is clean.

Only the holder of the device's lease (`pipeline.gpu.lease`) may write its journal.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pipeline.errors import CollocationError
from pipeline.interrupts import UndoStack

# Kind of step -> the function that undoes it, called with the step's arguments. Each is safe to repeat, is content with
# what is gone already, and raises a CollocationError when something is left. By name, so that whoever replays a journal
# needs not import every sharing mode first; and not in the journal itself, whose lines would then be programs.
UNDO_FUNCTIONS = {
    "compute_mode": "pipeline.gpu.compute_mode.set_mode",
    "mps_daemon": "pipeline.gpu.mps_daemon.end_daemon",
    "mig_mode": "pipeline.gpu.mig_control.switch_off",
    "mig_instance": "pipeline.gpu.mig_control.destroy_instance",
}


class JournalError(CollocationError):
    """A journal cannot be read, written or carried out; the device may not be as it was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to undo.

    Attributes:
        kind: key of `UNDO_FUNCTIONS`.
        arguments: of that function; everything that JSON can hold.
        step_id: unique.
    """

    kind: str
    arguments: dict[str, Any]
    step_id: str = field(default_factory=lambda: uuid.uuid4().hex)


class Journal:
    """The undo steps of one device that are still to be carried out.

    Args:
        folder: where journals lie; the same for every user and every start, or a leftover would not be found.
        device_uuid: which device.
    """

    def __init__(self, folder: Path, device_uuid: str) -> None:
        self.path = folder / f"collocation-{re.sub('[^A-Za-z0-9-]', '_', device_uuid)}.journal"

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
        assert kind in UNDO_FUNCTIONS, f"{kind} is not in UNDO_FUNCTIONS"
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
        self._function(current)(**current.arguments)
        self._append({"undone": step.step_id})
        if not self.steps():
            self.path.unlink()
            _sync_folder(self.path.parent)

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

    def _function(self, step: Step) -> Callable[..., None]:
        if step.kind not in UNDO_FUNCTIONS:
            raise JournalError(
                f"{self.path} holds a step of kind {step.kind!r} that this version cannot undo; "
                "clean up with the version that wrote it"
            )
        module, _, name = UNDO_FUNCTIONS[step.kind].rpartition(".")
        return cast("Callable[..., None]", getattr(importlib.import_module(module), name))

    def _open(self, flags: int) -> int:
        """Open the file, if it is a plain file of ours: its lines decide what is ended and destroyed."""
        try:
            descriptor = os.open(self.path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise JournalError(f"cannot open the journal {self.path}: {error.strerror}{self._owner()}") from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            os.close(descriptor)
            raise JournalError(f"the journal {self.path} is not a file that only we can write{self._owner()}")
        return descriptor

    def _owner(self) -> str:
        try:
            owner = self.path.lstat().st_uid
        except OSError:
            return ""
        return f"; its owner, user {owner}, has to clean up: python -m pipeline.gpu clean"

    def _append(self, record: dict[str, Any]) -> None:
        line = json.dumps(record).encode() + b"\n"
        try:
            descriptor = self._open(os.O_RDWR | os.O_CREAT | os.O_APPEND)
        except FileNotFoundError as error:
            raise JournalError(f"the folder of the journal {self.path} does not exist") from error
        try:
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


def replay(journal: Journal) -> tuple[Step, ...]:
    """Undo what a killed process left, newest first; returns what was undone. For the holder of the device's lease.

    A step that cannot be undone stays in the journal, and the older ones are tried all the same.

    Raises:
        JournalError: as `Journal.steps` and `Journal.undo`.
        CollocationError: the first error of a step; those of further steps are its notes.
    """
    undone: list[Step] = []
    failures: list[CollocationError] = []
    for step in reversed(journal.steps()):
        try:
            journal.undo(step)
        except CollocationError as error:
            failures.append(error)
        else:
            undone.append(step)
    if failures:
        for further in failures[1:]:
            failures[0].add_note(f"also not undone: {further}")
        raise failures[0]
    # A process killed between the last undoing and the removal of its file, or in its first line, left an empty one.
    if journal.path.exists():
        journal.path.unlink()
        _sync_folder(journal.path.parent)
    return tuple(undone)


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
