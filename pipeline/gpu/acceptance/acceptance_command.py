"""`python -m pipeline.gpu acceptance`: holds the GPU, runs the checks, and writes a page and a bundle."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import json
import shlex
import tarfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.base.system import git, words
from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.errors import CollocationError, ConfigError
from pipeline.base.system.interrupts import UndoStack
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.clean import leftovers
from pipeline.gpu.acceptance.checks import CHECKS, Check
from pipeline.gpu.acceptance.mig_board import CommandRecord, MigBoard, UntriedError, find_branch, hide_uuids, make_twin
from pipeline.gpu.manual_mig import (
    ManualMigRequest,
    Target,
    hold_target,
    open_target,
    undo_leftovers,
)
from pipeline.gpu.status import make_printable, refuse_untouched
from pipeline.prepare.device.smi_commands import is_write
from pipeline.prepare.mig import division
from pipeline.simulation.machine.releases import RECORDED, RELEASES
from pipeline.simulation.machine.state_file import StateFile

_MOST_LINES = 3


def accept_mig(
    request: ManualMigRequest, out: Path, only: Sequence[str] = (), driver: str | None = None
) -> CommandAnswer:
    """Check each promise about MIG on one GPU; the exit status is 1 if one is broken, or the simulation differs.

    Args:
        request: GPU, folder, machine, prefix of an administrator, and whether the writes are only printed.
        out: folder of the page and the bundle.
        only: names of the checks; empty for all.
        driver: branch of the driver of a simulated model; `None` for the recorded one.

    Raises:
        ConfigError: the GPU does not exist, is in use or has instances, or a check cannot run; nothing was changed.
    """
    checks = select_checks(only)
    mark = uuid.uuid4().hex
    with ExitStack() as stack:
        with refuse_untouched():
            if not request.is_dry:
                leftovers.clear_all_abandoned()
                _refuse_unwritable(out)
            scratch = stack.enter_context(leftovers.hold_scratch(mark))
            request = _make_machine(request, driver, scratch)
            target = stack.enter_context(open_target(request))
            _refuse_without_torch(target, checks, is_dry=request.is_dry)
            stack.enter_context(hold_target(target, request))
            if not request.is_dry:
                undo_leftovers(target)
            board = _open_board(target, request, scratch, mark)
            twin = make_twin(board.device, scratch / "twin", mark, is_on=board.was_on)
        if request.is_dry:
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
        page, bundle = write(acceptance, out)
    return _answer(acceptance, page, bundle)


def _refuse_unwritable(out: Path) -> None:
    """Refuse a folder or a page that cannot be written, before the checks; a refused run leaves no empty page."""
    page = out / PAGE
    try:
        out.mkdir(parents=True, exist_ok=True)
        is_new = not page.exists()
        page.touch()
        if is_new:
            page.unlink()
    except OSError as error:
        raise ConfigError(f"--out {out} is not writable: {error.strerror}; choose another folder") from error


def _make_machine(request: ManualMigRequest, driver: str | None, scratch: Path) -> ManualMigRequest:
    """Make a temporary machine for a simulated model; otherwise return the request for a GPU unchanged."""
    if not request.is_model:
        if driver is not None:
            raise ConfigError("--driver is the branch of a simulated model; leave it out for a GPU or a machine")
        return request
    if driver not in (None, *RELEASES):
        raise ConfigError(f"--driver {driver} must be one of {', '.join(RELEASES)}")
    file = StateFile(scratch / "machine.json")
    file.keep([request.gpu], driver or RECORDED)
    return dataclasses.replace(request, gpu="0", machine=str(file.path), folder=scratch)


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
        programs=programs,
        folder=request.folder,
        scratch=scratch,
        mark=mark,
        record=record,
        machine=None if request.machine is None else StateFile(Path(request.machine).expanduser()).path,
        was_on=state.is_on,
    )


def _list_writes(target: Target, board: MigBoard, twin: MigBoard, checks: Sequence[Check]) -> CommandAnswer:
    """Run the checks on the twin, and list its commands as they would run on the GPU."""
    with twin.use_driver():
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
    facts, repository = board.device.facts, git.read(PROJECT_DIR)
    return {
        "gpu": board.device.name,
        "is_simulated": target.is_simulated,
        "driver": facts.driver_version,
        "cuda": facts.cuda_version,
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
        details = [*result.broken, *map(describe_difference, result.differences)]
        lines += [f"{result.check.name}: {text}" for text in details[:_MOST_LINES]]
        if num_unlisted := len(details) - _MOST_LINES:
            lines += [f"{result.check.name}: and {num_unlisted} more"] if num_unlisted > 0 else []
    lines += [acceptance.verdict, f"page: {page}", f"bundle: {bundle}"]
    text = "\n".join(map(make_printable, lines))
    data = acceptance.summarize() | {"page": str(page), "bundle": str(bundle)}
    return CommandAnswer(data=json.loads(json.dumps(data)), text=text, status=int(not acceptance.is_ok))


_ABSENT = "absent"


@dataclass(slots=True, kw_only=True)
class CheckResult:
    """The result of one check.

    Attributes:
        broken: what does not hold.
        differences: readings in which the GPU differs from its twin: name, reading of the GPU, reading of the twin.
        untried: reason why the check was not run; `None` if it was.
    """

    check: Check
    readings: dict[str, Any] = field(default_factory=dict)
    twin_readings: dict[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    differences: list[tuple[str, Any, Any]] = field(default_factory=list)
    untried: str | None = None
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        if self.untried is not None:
            return "not tried"
        if self.broken:
            return "broken"
        return "differs" if self.differences else "holds"


def select_checks(names: Sequence[str]) -> tuple[Check, ...]:
    """Return the checks with these names, all if there is no name; `ConfigError` if a name is unknown."""
    checks = {check.name: check for check in CHECKS}
    if unknown := [name for name in names if name not in checks]:
        raise ConfigError(f"--only {','.join(unknown)} names no check; choose among {', '.join(checks)}")
    return tuple(checks[name] for name in checks if not names or name in names)


def run_checks(board: MigBoard, twin: MigBoard | None, checks: Sequence[Check]) -> tuple[list[CheckResult], str | None]:
    """Run checks on a GPU and on its twin, and restore the GPU.

    Returns the results, and why the GPU is not as before, or `None` if it is.

    Raises:
        SharingError: MIG mode cannot be switched on, for want of permission; nothing was changed.
    """
    before, results = board.control.read(), list[CheckResult]()
    is_begun = False
    try:
        with UndoStack() as stack:
            if not board.was_on:
                stack.enter_context(board.journal.guard("mig_mode", **board.control.to_mode_record()))
            printed = board.switch_mode(is_on=True).printed_line
            is_begun = True
            if twin is not None:
                with twin.use_driver():
                    twin.switch_mode(is_on=True)
            ready = board.control.read()
            if not ready.is_on:
                broken = f"MIG mode was not switched on; nvidia-smi printed: {printed}"
                results.append(CheckResult(check=CHECKS[0], broken=[broken]))
            for number, check in enumerate(checks, start=1):
                words.say(f"check {number} of {len(checks)}: {check.name}")
                board.record.check = check.name
                if ready.is_on and board.control.read() == ready:
                    results.append(_run_check(check, board, twin))
                elif check.name not in [result.check.name for result in results]:
                    untried = "the GPU is not in the state in which checks begin"
                    results.append(CheckResult(check=check, untried=untried))
            board.record.check = "end"
    except CollocationError as error:
        if not is_begun:
            raise
        return results, str(error)
    after = board.control.read()
    return results, None if after == before else f"the GPU was {before}, and is {after}"


def _run_check(check: Check, board: MigBoard, twin: MigBoard | None) -> CheckResult:
    result, began_s = CheckResult(check=check), time.monotonic()
    result.readings, result.untried = _read(check, board)
    result.broken, board.broken = board.broken, []
    result.seconds = time.monotonic() - began_s
    if twin is not None and check.is_compared and result.untried is None:
        with twin.use_driver():
            result.twin_readings, _ = _read(check, twin)
        result.broken += [f"(simulated driver) {text}" for text in twin.broken]
        twin.broken = []
        result.differences = list(_compare(check.name, result.readings, result.twin_readings))
    return result


def _read(check: Check, board: MigBoard) -> tuple[dict[str, Any], str | None]:
    """Run a check; return its readings, or none and the reason why it cannot be tried."""
    readings: dict[str, Any] = {}
    try:
        with board.case(check.name):
            readings = check.run(board)
    except UntriedError as error:
        return {}, str(error)
    return readings, None


def _compare(name: str, reading: Any, twin_reading: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield each difference of two readings; what one of them does not know is none."""
    if reading is None or twin_reading is None or reading == twin_reading:
        return
    if isinstance(reading, Mapping) and isinstance(twin_reading, Mapping):
        for key in dict.fromkeys((*reading, *twin_reading)):
            yield from _compare(f"{name}: {key}", reading.get(key, _ABSENT), twin_reading.get(key, _ABSENT))
    elif isinstance(reading, list) and isinstance(twin_reading, list) and len(reading) == len(twin_reading):
        for number, pair in enumerate(zip(reading, twin_reading, strict=True)):
            yield from _compare(f"{name}, {number}", *pair)
    else:
        yield name, reading, twin_reading


PAGE, BUNDLE = "index.html", "acceptance.tar.xz"
_MOST_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """A completed acceptance.

    Attributes:
        trouble: why the GPU is not as before; `None` if it is.
        commands: commands of nvidia-smi with their output.
    """

    facts: Mapping[str, Any]
    results: Sequence[CheckResult]
    trouble: str | None
    commands: Sequence[Mapping[str, Any]]
    is_simulated: bool

    @property
    def title(self) -> str:
        simulated = "simulated " if self.is_simulated else ""
        return f"Acceptance of MIG: {simulated}{self.facts['gpu']}, driver {self.facts['driver']}"

    @property
    def is_ok(self) -> bool:
        return self.trouble is None and all(result.verdict in ("holds", "not tried") for result in self.results)

    def count(self, verdict: str) -> int:
        return sum(result.verdict == verdict for result in self.results)

    @property
    def verdict(self) -> str:
        """One sentence on all promises, and one on the GPU."""
        tried = len(self.results) - self.count("not tried")
        count, verb = words.format_count(tried, "promise"), "holds" if tried == 1 else "hold"
        held = f"{self.count('holds') + self.count('differs')} of {count} {verb}"
        differences = sum(len(result.differences) for result in self.results)
        parts = [held, words.format_count(differences, "difference") + " from the simulated driver"]
        parts += [f"{self.count('not tried')} not tried"] if self.count("not tried") else []
        restored = "The GPU is as before." if self.trouble is None else f"The GPU is not as before: {self.trouble}"
        return f"{'; '.join(parts)}. {hide_uuids(restored)}"

    def summarize(self) -> dict[str, Any]:
        """Return facts and verdicts as JSON data."""
        return {
            "facts": dict(self.facts),
            "is_ok": self.is_ok,
            "is_restored": self.trouble is None,
            "trouble": None if self.trouble is None else hide_uuids(self.trouble),
            "checks": {
                result.check.name: {
                    "promise": result.check.promise,
                    "verdict": result.verdict,
                    "untried": result.untried,
                    "broken": [hide_uuids(text) for text in result.broken],
                    "differences": [
                        {"reading": name, "gpu": reading, "simulated": twin_reading}
                        for name, reading, twin_reading in result.differences
                    ],
                    "seconds": round(result.seconds, 1),
                }
                for result in self.results
            },
        }


def describe_difference(difference: tuple[str, Any, Any]) -> str:
    """Describe a difference in one line."""
    name, reading, twin_reading = difference
    return f"{name} is {_shorten(reading)}, but {_shorten(twin_reading)} in the simulation"


def _shorten(reading: Any) -> str:
    text = json.dumps(reading)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."


def write(acceptance: Acceptance, out: Path) -> tuple[Path, Path]:
    """Write page and bundle; return their paths."""
    page, bundle = out / PAGE, out / BUNDLE
    text = _render(acceptance)
    page.write_text(text, encoding="utf-8")
    readings = {
        result.check.name: {"gpu": result.readings, "simulated": result.twin_readings} for result in acceptance.results
    }
    commands = "".join(f"{hide_uuids(json.dumps(command))}\n" for command in acceptance.commands)
    with tarfile.open(bundle, "w:xz") as archive:
        for name, content in (
            (PAGE, text),
            ("acceptance.json", json.dumps(acceptance.summarize(), indent=1)),
            ("readings.json", hide_uuids(json.dumps(readings, indent=1))),
            ("commands.jsonl", commands),
        ):
            entry, raw = tarfile.TarInfo(f"acceptance/{name}"), content.encode()
            entry.size = len(raw)
            archive.addfile(entry, io.BytesIO(raw))
    return page, bundle


def _render(acceptance: Acceptance) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(name, ".") for name in ("pipeline.gpu.acceptance", "pipeline.report.page")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("acceptance.html.jinja").render(
        acceptance=acceptance,
        bundle=BUNDLE,
        colours=[],
        hide=hide_uuids,
        minutes=words.format_duration,
        num_readings=_count_readings,
        shorten=_shorten,
    )


def _count_readings(reading: Any) -> int:
    if isinstance(reading, Mapping):
        return sum(map(_count_readings, reading.values()))
    return sum(map(_count_readings, reading)) if isinstance(reading, list) else 1
