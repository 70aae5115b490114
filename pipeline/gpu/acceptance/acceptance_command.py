"""`python -m pipeline.gpu acceptance`: holds the GPU, runs the checks, and writes a page and a bundle."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shlex
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.base.system import git, words
from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.errors import CollocationError, ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.clean import leftovers
from pipeline.clean.journal import Journal
from pipeline.gpu.acceptance import acceptance_page
from pipeline.gpu.acceptance.acceptance_page import Acceptance
from pipeline.gpu.acceptance.acceptance_run import Check, run_checks, select_checks
from pipeline.gpu.acceptance.mig_board import CommandRecord, MigBoard
from pipeline.gpu.acceptance.simulated_twin import find_branch, make_twin
from pipeline.gpu.manual_mig import (
    ManualMigRequest,
    Target,
    hold_target,
    open_target,
    refuse_untouched,
    undo_leftovers,
)
from pipeline.gpu.status import make_printable
from pipeline.prepare.device.smi_commands import is_write
from pipeline.prepare.mig import division, profiles
from pipeline.simulation.install import install_driver
from pipeline.simulation.machine.releases import RECORDED, RELEASES
from pipeline.simulation.machine.state_file import StateFile

_MOST_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRequest:
    """GPU and options of the command.

    Attributes:
        target: GPU, folder, machine, prefix of an administrator, and whether the writes are only printed.
        out: folder of the page and the bundle.
        only: names of the checks; empty for all.
        driver: branch of the driver of a simulated model; `None` for the recorded one.
    """

    target: ManualMigRequest
    out: Path
    only: Sequence[str] = ()
    driver: str | None = None


def accept_mig(request: AcceptanceRequest) -> CommandAnswer:
    """Check each promise about MIG on one GPU; the exit status is 1 if one is broken, or the simulation differs.

    Raises:
        ConfigError: the GPU does not exist, is in use or has instances, or a check cannot run; nothing was changed.
    """
    checks = select_checks(request.only)
    mark = uuid.uuid4().hex
    with ExitStack() as stack:
        with refuse_untouched():
            if not request.target.is_dry:
                leftovers.clear_all_abandoned()
                _refuse_unwritable(request.out)
            scratch = stack.enter_context(leftovers.hold_scratch(mark))
            target_request = _make_machine(request, scratch)
            target = stack.enter_context(open_target(target_request))
            _refuse_without_torch(target, checks, is_dry=target_request.is_dry)
            stack.enter_context(hold_target(target, target_request))
            if not target_request.is_dry:
                undo_leftovers(target)
            board = _open_board(target, target_request, scratch, mark)
            (scratch / "twin").mkdir()
            twin = stack.enter_context(_open_twin(board, scratch / "twin"))
        if target_request.is_dry:
            return _list_writes(target, board, twin, checks)
        began, began_s = datetime.now(UTC), time.monotonic()
        try:
            results, trouble = run_checks(board, twin, checks)
        except CollocationError as error:  # raised only before the first change
            raise ConfigError(str(error)) from error
        acceptance = Acceptance(
            facts=_list_facts(target, board, began, time.monotonic() - began_s),
            results=results,
            trouble=trouble,
            commands=board.record.commands,
            is_simulated=target.is_simulated,
        )
        page, bundle = acceptance_page.write(acceptance, request.out)
    return _answer(acceptance, page, bundle)


def _refuse_unwritable(out: Path) -> None:
    """Refuse a folder or a page that cannot be written, before the checks; a refused run leaves no empty page."""
    page = out / acceptance_page.PAGE
    try:
        out.mkdir(parents=True, exist_ok=True)
        is_new = not page.exists()
        page.touch()
        if is_new:
            page.unlink()
    except OSError as error:
        raise ConfigError(f"--out {out} is not writable: {error.strerror}; choose another folder") from error


def _make_machine(request: AcceptanceRequest, scratch: Path) -> ManualMigRequest:
    """Make a temporary machine for a simulated model; otherwise return the request for a GPU unchanged."""
    target = request.target
    if not target.is_model:
        if request.driver is not None:
            raise ConfigError("--driver is the branch of a simulated model; leave it out for a GPU or a machine")
        return target
    if request.driver not in (None, *RELEASES):
        raise ConfigError(f"--driver {request.driver} must be one of {', '.join(RELEASES)}")
    file = StateFile(scratch / "machine.json")
    file.keep([target.gpu], request.driver or RECORDED)
    return dataclasses.replace(target, gpu="0", machine=str(file.path), folder=scratch)


def _refuse_without_torch(target: Target, checks: Sequence[Check], *, is_dry: bool) -> None:
    if target.is_simulated or is_dry or not any(check.needs_load for check in checks):
        return
    if missing := [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]:
        without = ",".join(check.name for check in checks if not check.needs_load)
        remedy = f", or leave them out: --only {without}" if without else ""
        raise ConfigError(
            f"the jobs of this acceptance need {' and '.join(missing)}; install a torch build for GPUs{remedy}"
        )


def _open_board(target: Target, request: ManualMigRequest, scratch: Path, mark: str) -> MigBoard:
    record = CommandRecord(scratch / "commands.jsonl")
    programs = dataclasses.replace(target.programs, admin=target.control.admin, execute=record.execute)
    state = target.control.read()
    division.refuse_unready(target.device, state)
    return MigBoard(
        device=target.device,
        gpu=profiles.read_gpu(target.device),
        programs=programs,
        journal=Journal(request.folder, target.device.uuid, programs),
        scratch=scratch,
        mark=mark,
        record=record,
        machine=None if request.machine is None else StateFile(Path(request.machine).expanduser()).path,
        was_on=state.is_on,
    )


@contextmanager
def _open_twin(board: MigBoard, folder: Path) -> Iterator[MigBoard]:
    with make_twin(board.device, folder, board.mark, is_on=board.was_on) as twin:
        pass  # the twin's driver is used only while a check runs on it
    yield twin


def _list_writes(target: Target, board: MigBoard, twin: MigBoard, checks: Sequence[Check]) -> CommandAnswer:
    """Run the checks on the twin, and list its commands as they would run on the GPU."""
    assert twin.machine is not None, "a twin is simulated"
    with install_driver(twin.machine):
        run_checks(twin, None, checks)
    writes: dict[str, list[str]] = {}
    for line in twin.record.commands:
        if is_write(line["command"]):
            command = shlex.join([*target.control.admin, *line["command"]])
            writes.setdefault(line["check"], []).append(command.replace(twin.device.uuid, board.device.uuid))
    planned = {check.name: check.writes for check in checks}
    lines = [f"{target.name}: the ids of instances below are those of the simulated driver"]
    for name, commands in writes.items():
        lines.append(f"{name}: {planned.get(name, 'MIG mode')}")
        lines += [f"   would run: {command}" for command in commands]
    lines.append(words.format_count(sum(map(len, writes.values())), "command"))
    return CommandAnswer(data={"gpu": board.device.uuid, "writes": writes}, text="\n".join(map(make_printable, lines)))


def _list_facts(target: Target, board: MigBoard, began: datetime, seconds: float) -> dict[str, Any]:
    details, repository = dict(board.device.details), git.read(PROJECT_DIR)
    return {
        "gpu": board.device.name,
        "is_simulated": target.is_simulated,
        "driver": details["driver_version"],
        "cuda": details["cuda_version"],
        "simulated_branch": find_branch(board.device),
        "found_mig_mode": "on" if board.was_on else "off",
        "began": began.isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "project_commit": None if repository is None else repository.commit,
    }


def _answer(acceptance: Acceptance, page: Path, bundle: Path) -> CommandAnswer:
    rows = [
        ["", result.check.name, result.verdict, result.untried or result.check.promise] for result in acceptance.results
    ]
    lines = [acceptance.title, *words.align_table(rows, left_columns=range(4))]
    for result in acceptance.results:
        details = [*result.broken, *map(acceptance_page.describe_difference, result.differences)]
        lines += [f"{result.check.name}: {text}" for text in details[:_MOST_LINES]]
        if more := len(details) - _MOST_LINES:
            lines += [f"{result.check.name}: and {more} more"] if more > 0 else []
    lines += [acceptance.verdict, f"page: {page}", f"bundle: {bundle}"]
    text = "\n".join(map(make_printable, lines))
    data = acceptance.summarize() | {"page": str(page), "bundle": str(bundle)}
    return CommandAnswer(data=json.loads(json.dumps(data)), text=text, status=int(not acceptance.is_ok))
