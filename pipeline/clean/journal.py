"""Journal of the steps that undo changes of a device; each step is on disk before its change is made.

A device's journal is one append-only file of JSON lines. A line adds a step, extends a step, or records that a step was
undone. The file exists only while steps are left to undo, so a device without a journal file is clean.

If root runs a clean-up, the lines decide which processes root ends and which instances root destroys. For this reason,
`journal_file` reads only files that no other user can write, and journals of other users are reported but never carried
out. A line contains no command: `kinds` maps the kind of a step to a function, which finds its programs itself.

Only the holder of the device's lease (`pipeline.prepare.device.lease`) may write the device's journal.
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
from pipeline.base.system.host_info import boot_id
from pipeline.base.system.interrupts import UndoStack
from pipeline.clean import journal_file, kinds
from pipeline.clean.journal_file import JournalError

_FOLDER = f"{SHARED_PREFIX}journals-"
_FOLDER_NAME = re.compile(rf"{_FOLDER}\d+")
_DEVICE = re.compile(r"[A-Za-z0-9_-]+")
_LEFT = ".journal"
BY_HAND = ".by-hand"
"""Suffix of journals of what a user made by hand; no start undoes these steps automatically."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoStep:
    """One step to undo.

    `arguments` are passed to the function that undoes the kind. They are any data that JSON supports, but never the
    path of a program.
    """

    kind: str
    arguments: dict[str, Any]
    step_id: str = field(default_factory=lambda: uuid.uuid4().hex)


def describe(step: UndoStep) -> str:
    """Describe the effect of undoing a step."""
    kind = kinds.find_kind(step.kind)
    with suppress(KeyError):  # another version wrote other arguments
        if kind is not None:
            return kind.words.format(**step.arguments)
    return f"a step of unknown kind {step.kind!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFile:
    """Journal on disk, of any user; `is_ours` is true if this user may carry out its steps."""

    path: Path
    device_uuid: str
    owner: str
    is_ours: bool


class Journal:
    """Undo steps of one device that are still to be carried out.

    Every method raises JournalError if the file cannot be trusted, read or written.

    `folder` must be the same for every user and every start, because leftovers are searched only there. `suffix`
    distinguishes the steps of a study from steps `BY_HAND`.
    """

    def __init__(self, folder: Path, device_uuid: str, programs: Programs | None = None, suffix: str = _LEFT) -> None:
        self._programs = programs or Programs()
        name = re.sub("[^A-Za-z0-9-]", "_", device_uuid)
        self.path = folder / f"{_FOLDER}{os.geteuid()}" / f"{name}{suffix}"

    def read_steps(self) -> tuple[UndoStep, ...]:
        """Read the steps that are still to undo, oldest first; none for a clean device."""
        steps: dict[str, UndoStep] = {}
        for line in journal_file.read(self.path):
            try:
                record = json.loads(line)
                if "undone" in record:
                    del steps[record["undone"]]
                else:
                    steps[record["step_id"]] = UndoStep(**record)
            except (ValueError, KeyError, TypeError) as error:
                raise JournalError(
                    f"the journal {self.path} has an invalid line: {line!r}; undo the steps of the journal by hand, "
                    "then remove the file"
                ) from error
        return tuple(steps.values())

    def add(self, kind: str, **arguments: Any) -> UndoStep:
        """Write a step to disk; on return the step survives a crash, so the caller may make the change."""
        assert kinds.find_kind(kind) is not None, f"nothing undoes {kind}"
        step = UndoStep(kind=kind, arguments=arguments)
        journal_file.append(self.path, asdict(step))
        return step

    def amend(self, step: UndoStep, **arguments: Any) -> None:
        """Add arguments to a step, such as the id of a created instance."""
        journal_file.append(self.path, asdict(replace(step, arguments=step.arguments | arguments)))

    def undo(self, step: UndoStep) -> None:
        """Carry out a step with its latest arguments, and remove it from the journal; do nothing if it was undone.

        A step with a `boot` is not carried out after a restart of the machine, which has undone it: another program may
        have made the same change since then.

        Raises:
            JournalError: this version cannot undo the step, or the system refused an operation.
            CollocationError: the function that undoes the step failed; the step stays in the journal.
        """
        current = {recorded_step.step_id: recorded_step for recorded_step in self.read_steps()}.get(step.step_id)
        if current is None:
            return
        kind, arguments = kinds.find_kind(current.kind), dict(current.arguments)
        is_undone_by_restart = arguments.pop("boot", None) not in (None, boot_id())
        if kind is None or not kind.takes(arguments):
            raise JournalError(
                f"{self.path} contains a step of kind {current.kind!r} that this version cannot undo; "
                "clean up with the version that wrote the step"
            )
        try:
            if not is_undone_by_restart:
                kind.undo(self._programs, **arguments)
        except OSError as error:
            failure = f"cannot {describe(current)}: {error}"
            raise JournalError(f"{failure}; fix this cause, then run {entry_points.spell('gpu', 'clean')}") from error
        self.discard(step)

    def discard(self, step: UndoStep) -> None:
        """Remove a step from the journal without undoing it, because its change is complete and permanent."""
        self._forget_step(step)
        if not self.read_steps():
            self.forget()

    def move_to(self, other: Journal) -> None:
        """Move all steps at once to another, empty journal of the device."""
        journal_file.move(self.path, other.path)

    def forget_device_steps(self) -> tuple[UndoStep, ...]:
        """Remove the steps that change a device, because the device no longer exists; keep steps that end processes."""
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
        """List the journals of other users for this device, with the same suffix."""
        journals = find_journals(self.path.parent.parent, self.path.suffix)
        return [journal for journal in journals if journal.path.name == self.path.name and not journal.is_ours]

    def refuse_foreign(self) -> None:
        """Raise JournalError if another user's journal has steps to undo on this device."""
        for other in self.list_foreign():
            raise JournalError(
                f"the journal {other.path} contains steps of user {other.owner}, who must clean up; "
                f"run as that user: {entry_points.spell('gpu', 'clean')}"
            )

    @contextmanager
    def guard(self, kind: str, **arguments: Any) -> Iterator[UndoStep]:
        """Write a step to the journal, run the body, which makes the change, and undo the step at the end.

        Raises:
            CollocationError: undoing failed; if the body failed too, the body's error is raised, with a note instead.
        """
        with UndoStack() as stack:
            step = self.add(kind, **arguments)
            stack.callback(self.undo, step)
            yield step


def find_journals(folder: Path, suffix: str = _LEFT) -> tuple[JournalFile, ...]:
    """Find the journals of all users below a folder, in the order of the devices, without reading them."""
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
    """Undo all steps of a killed process, newest first; return the undone steps, and the failed steps with errors.

    The caller must hold the device's lease. A step that cannot be undone stays in the journal, and older steps are
    still undone.
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
    # The file may be without steps: its writer was killed while it wrote the first line or before it removed the file.
    if not failed:
        journal.forget()
    return undone, failed


def replay(journal: Journal) -> tuple[UndoStep, ...]:
    """Undo all steps like `undo_all`, but raise if a step is left; return the undone steps.

    Raises:
        JournalError: another user's journal has steps for the device.
        CollocationError: the first error of a step; errors of further steps are its notes.
    """
    journal.refuse_foreign()
    undone, failed = undo_all(journal)
    if failed:
        (_, first), *later_failures = failed
        for _, error in later_failures:
            first.add_note(f"also not undone: {error}")
        raise first
    return tuple(undone)


def _find_user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
