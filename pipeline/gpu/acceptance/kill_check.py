"""Check that a GPU is restored after a process that divides it is killed at any of its steps.

A child of this process divides the GPU, and is killed at its k-th side effect, for k = 1, 2, ..., until it is complete.
Each time, the steps in the journal are undone as by the next start of a study.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any, NoReturn

from pipeline.base.system import helper_program
from pipeline.base.system.interrupts import UndoStack
from pipeline.gpu.acceptance.instance_checks import list_divisions
from pipeline.gpu.acceptance.mig_board import CommandRecord, MigBoard, name_layout, plan_layout
from pipeline.prepare.mig import division, layouts
from pipeline.prepare.mig.mig_smi import MigSmi

_PR_SET_PDEATHSIG = 1  # source: linux/prctl.h
_WRITES = os.O_WRONLY | os.O_RDWR
_EFFECTS = frozenset({"os.mkdir", "os.rename", "os.remove"})
_PROGRAM_START = "subprocess.Popen"
_MOST_STEPS = 100

Action = Callable[[MigSmi, UndoStack], object]


def check_kill(board: MigBoard) -> dict[str, Any]:
    """Kill a process at every step of switching MIG mode on and of dividing the GPU."""
    pool = layouts.list_slice_profiles(board.gpu)
    divided = next(profile for profile in pool if list(list_divisions(profile)))
    layout = layouts.place(board.gpu, [divided, pool[0]]) or layouts.plan_layout(board.gpu, [divided])
    placed = tuple((instance.profile, instance.start) for instance in layout.instances)
    planned = plan_layout(placed, {0: max(list_divisions(divided), key=len)})

    def divide(control: MigSmi, stack: UndoStack) -> None:
        division.divide(control, control.read(), planned, board.journal, stack)

    def switch_on(control: MigSmi, stack: UndoStack) -> None:
        stack.enter_context(board.journal.guard("mig_mode", **control.to_mode_record()))
        control.switch_on()

    readings = {"layout": name_layout(placed), "dividing": _kill_everywhere(board, "dividing the GPU", divide)}
    if not board.was_on:
        board.switch_off()
        readings["switching"] = _kill_everywhere(board, "switching MIG mode on", switch_on)
        board.switch_mode(is_on=True)
    return readings


def _kill_everywhere(board: MigBoard, name: str, action: Action) -> dict[str, int]:
    """Kill a child at each side effect, then during each command; return the numbers of kills."""
    before = board.control.read()
    counts = {}
    for how in ("at a step", "during a command"):
        for number in range(1, _MOST_STEPS):
            with UndoStack() as stack:
                stack.callback(_undo_since, board, {step.step_id for step in board.journal.read_steps()})
                status = _fork(board, action, number, stack, is_during=how == "during a command")
            where = f"a kill {how}, number {number}, of {name}"
            board.expect(board.control.read() == before, f"the GPU is not restored after {where}")
            if not os.WIFSIGNALED(status):
                board.expect(status == 0, f"{name} failed in a child (status {status})")
                break
        counts[how] = number - 1
    return counts


def _undo_since(board: MigBoard, known: set[str]) -> None:
    for step in reversed(board.journal.read_steps()):
        if step.step_id not in known:
            board.journal.undo(step)


def _fork(board: MigBoard, action: Action, number: int, stack: UndoStack, *, is_during: bool) -> int:
    """Run the action in a child that is killed at a step; return its wait status."""
    parent = os.getpid()
    if (pid := os.fork()) == 0:
        _become_victim(board, action, number, parent, is_during=is_during)
    stack.callback(_end_child, pid)
    _, status = os.waitpid(pid, 0)
    return status


def _end_child(pid: int) -> None:
    """End and reap the child if an interrupt came before its end."""
    with suppress(ChildProcessError, ProcessLookupError):
        if os.waitpid(pid, os.WNOHANG)[0] == 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _become_victim(board: MigBoard, action: Action, number: int, parent: int, *, is_during: bool) -> NoReturn:
    """Run the action, and die at a step; this function does not return."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        programs = board.programs
        if is_during:
            programs = dataclasses.replace(programs, execute=_make_deadly(board.record, number))
        else:
            sys.addaudithook(_make_hook(board.journal.path.parent, number))
        action(MigSmi.locate(programs, board.device.uuid), UndoStack())
        os._exit(0)  # the parent undoes the steps, as after a kill at the last one
    except BaseException as error:  # noqa: BLE001  the child must not continue as the parent
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(1)


def _make_hook(folder: Path, number: int) -> Callable[[str, tuple[Any, ...]], None]:
    """Make an audit hook that kills this process before its n-th write to the journal or start of a program."""
    count = 0

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event == "open":
            is_effect = bool(arguments[2] & _WRITES) and str(arguments[0]).startswith(str(folder))
        else:
            is_effect = event == _PROGRAM_START or (event in _EFFECTS and str(arguments[0]).startswith(str(folder)))
        count += is_effect
        if is_effect and count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return hear


def _make_deadly(record: CommandRecord, number: int) -> Callable[[Sequence[str]], helper_program.Completed]:
    """Return a function that executes commands, and kills this process while the n-th one runs."""
    count = 0

    def execute(words: Sequence[str]) -> helper_program.Completed:
        nonlocal count
        count += 1
        if count == number:
            Popen(list(words), stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return record.execute(words)

    return execute
