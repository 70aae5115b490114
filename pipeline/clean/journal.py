"""Journal of the steps to undo on a device; each is on disk before its change is made.

A journal is one append-only file of JSON lines a device. A line adds a step, says more about one, or says that one was
undone. The file is there exactly as long as something is left to undo, so a device whose journal file does not exist is
clean. Lines decide what root ends and destroys: `journal_file` believes only what this user wrote; what others left is
named and never carried out. No line says what is run: `kinds` knows that, and programs are looked for when needed.

Only the holder of the device's lease (`pipeline.prepare.device.lease`) may write its journal.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.base.domain.driver_programs import Programs
from pipeline.base.domain.layout import SHARED_PREFIX
from pipeline.base.system import entry_points
from pipeline.base.system.errors import CollocationError
from pipeline.base.system.interrupts import UndoStack
from pipeline.clean import journal_file, kinds
from pipeline.clean.journal_file import JournalError

_FOLDER = f"{SHARED_PREFIX}journals-"
_FOLDER_NAME = re.compile(rf"{_FOLDER}\d+")
_DEVICE = re.compile(r"[A-Za-z0-9_-]+")
_LEFT = ".journal"
BY_HAND = ".by-hand"
"""Suffix of journals of what a user made by hand; no start undoes those steps by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoStep:
    """One thing to undo.

    `arguments` are those of the function that undoes its kind: anything that JSON can hold, and no path of a program.
    """

    kind: str
    arguments: dict[str, Any]
    step_id: str = field(default_factory=lambda: uuid.uuid4().hex)


def describe(step: UndoStep) -> str:
    """Describe what undoing a step does."""
    kind = kinds.find_kind(step.kind)
    with suppress(KeyError):  # of an argument that another version wrote
        if kind is not None:
            return kind.words.format(**step.arguments)
    return f"a step of unknown kind {step.kind!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFile:
    """Journal on disk, of any user; `is_ours` tells whether this user may carry it out."""

    path: Path
    device_uuid: str
    owner: str
    is_ours: bool


class Journal:
    """Undo steps of one device that are still to be carried out.

    Every method raises JournalError where the file cannot be trusted, understood or written.

    `folder` is the same for every user and every start, or a leftover would not be found. `suffix` tells the steps of
    a study from those made `BY_HAND`.
    """

    def __init__(self, folder: Path, device_uuid: str, programs: Programs | None = None, suffix: str = _LEFT) -> None:
        self._programs = programs or Programs()
        name = re.sub("[^A-Za-z0-9-]", "_", device_uuid)
        self.path = folder / f"{_FOLDER}{os.geteuid()}" / f"{name}{suffix}"

    def read_steps(self) -> tuple[UndoStep, ...]:
        """Read the steps still to undo, oldest first; none for a clean device."""
        steps: dict[str, UndoStep] = {}
        for line in journal_file.read(self.path):
            try:
                record = json.loads(line)
                if "undone" in record:
                    del steps[record["undone"]]
                else:
                    steps[record["step_id"]] = UndoStep(**record)
            except (ValueError, KeyError, TypeError) as error:
                raise JournalError(f"the journal {self.path} has an invalid line: {line!r}") from error
        return tuple(steps.values())

    def add(self, kind: str, **arguments: Any) -> UndoStep:
        """Put a step on disk; on return it survives a crash, so the change may be made now."""
        assert kinds.find_kind(kind) is not None, f"nothing undoes {kind}"
        step = UndoStep(kind=kind, arguments=arguments)
        journal_file.append(self.path, asdict(step))
        return step

    def amend(self, step: UndoStep, **arguments: Any) -> None:
        """Say more about a step, such as the id of what was made."""
        journal_file.append(self.path, asdict(replace(step, arguments=step.arguments | arguments)))

    def undo(self, step: UndoStep) -> None:
        """Carry a step out as it was last amended, and forget it. Nothing happens if it was undone already.

        Raises:
            JournalError: nobody knows how to undo it, or the system refused something on the way.
            CollocationError: what undoing it says. The step stays in the journal.
        """
        current = {known.step_id: known for known in self.read_steps()}.get(step.step_id)
        if current is None:
            return
        kind = kinds.find_kind(current.kind)
        if kind is None or not kind.takes(current.arguments):
            raise JournalError(
                f"{self.path} holds a step of kind {current.kind!r} that this version cannot undo; "
                "clean up with the version that wrote it"
            )
        try:
            kind.undo(self._programs, **current.arguments)
        except OSError as error:
            what = f"cannot {describe(current)}: {error}"
            raise JournalError(f"{what}; when that is fixed: {entry_points.spell('gpu', 'clean')}") from error
        self.discard(step)

    def discard(self, step: UndoStep) -> None:
        """Forget a step without undoing it, because what it made is complete and stays."""
        self._forget_step(step)
        if not self.read_steps():
            self.forget()

    def move_to(self, other: Journal) -> None:
        """Move all steps at once to another, empty journal of the device; this one undoes them no more."""
        journal_file.move(self.path, other.path)

    def forget_device_steps(self) -> tuple[UndoStep, ...]:
        """Forget the steps that change a device which no longer exists; keep those that end processes."""
        gone = [
            step for step in self.read_steps() if not ((kind := kinds.find_kind(step.kind)) and kind.ends_processes)
        ]
        for step in gone:
            self._forget_step(step)
        return tuple(gone)

    def _forget_step(self, step: UndoStep) -> None:
        journal_file.append(self.path, {"undone": step.step_id})

    def forget(self) -> None:
        journal_file.remove(self.path)

    def list_foreign(self) -> list[JournalFile]:
        """List the files of this kind and device that other users left."""
        journals = find_journals(self.path.parent.parent, self.path.suffix)
        return [journal for journal in journals if journal.path.name == self.path.name and not journal.is_ours]

    def refuse_foreign(self) -> None:
        """Raise JournalError if another user has left something to undo on this device, and must clean up."""
        for other in self.list_foreign():
            raise JournalError(
                f"the journal {other.path} holds steps of user {other.owner}, who must clean up: "
                f"{entry_points.spell('gpu', 'clean')}"
            )

    @contextmanager
    def guard(self, kind: str, **arguments: Any) -> Iterator[UndoStep]:
        """Journal a step, let the body make the change, and undo it at the end; the body's error is never hidden.

        Raises:
            CollocationError: undoing failed and the body did not; otherwise the body's error carries it as a note.
        """
        with UndoStack() as stack:
            step = self.add(kind, **arguments)
            stack.callback(self.undo, step)
            yield step


def find_journals(folder: Path, suffix: str = _LEFT) -> tuple[JournalFile, ...]:
    """Find every journal below a folder, of every user, in the order of the devices; read none."""
    journals = []
    for path in sorted(folder.glob(f"{_FOLDER}*/*{suffix}"), key=lambda path: path.name):
        name = path.name.removesuffix(suffix)
        if not _DEVICE.fullmatch(name) or not _FOLDER_NAME.fullmatch(path.parent.name):
            continue
        with suppress(OSError):
            uid = path.parent.lstat().st_uid
            is_ours = uid == os.geteuid() and path.parent.name == f"{_FOLDER}{uid}"
            journals.append(JournalFile(path=path, device_uuid=name, owner=_find_user_name(uid), is_ours=is_ours))
    return tuple(journals)


def undo_all(journal: Journal) -> tuple[list[UndoStep], list[tuple[UndoStep, CollocationError]]]:
    """Undo what a killed process left, newest first, as holder of the lease; return what was undone and what failed.

    A step that cannot be undone stays in the journal, and the older ones are tried all the same.
    """
    undone: list[UndoStep] = []
    failed: list[tuple[UndoStep, CollocationError]] = []
    for step in reversed(journal.read_steps()):
        try:
            journal.undo(step)
        except CollocationError as error:
            failed.append((step, error))
        else:
            undone.append(step)
    # A process killed between the last undoing and the removal of its file, or in its first line, left an empty one.
    if not failed:
        journal.forget()
    return undone, failed


def replay(journal: Journal) -> tuple[UndoStep, ...]:
    """Undo all steps as `undo_all` does, for a caller that goes on only if none is left; return what was undone.

    Raises:
        JournalError: another user has left something on the device.
        CollocationError: the first error of a step; those of further steps are its notes.
    """
    journal.refuse_foreign()
    undone, failed = undo_all(journal)
    if failed:
        (_, first), *further = failed
        for _, error in further:
            first.add_note(f"also not undone: {error}")
        raise first
    return tuple(undone)


def _find_user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
