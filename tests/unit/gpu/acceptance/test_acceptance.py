"""`python -m pipeline.gpu acceptance` on simulated GPUs: it runs to its end, and finds every fault of a driver."""

from __future__ import annotations

import dataclasses
import json
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.domain import mig_table
from pipeline.gpu.__main__ import main
from pipeline.gpu.acceptance import acceptance_command, mig_board
from pipeline.gpu.acceptance.acceptance_command import CheckResult, run_checks, select_checks
from pipeline.gpu.acceptance.checks import CHECKS
from pipeline.gpu.acceptance.mig_board import MigBoard
from pipeline.prepare.device import gpu_reader
from pipeline.simulation.install import install_driver
from pipeline.simulation.machine import codes
from pipeline.simulation.machine.state_file import COUNTER_FAULTS, MIG_FAULTS, Fault, Gpu, StateFile
from pipeline.simulation.mps import control_program
from tests.support import simulated
from tests.support.simulated import set_faults

BOARDS = sorted(mig_table.models())
BRANCHES = ("535", "550", "580")
NOT_EXHAUSTIVE = {("a30_24gb", "535"), ("h100_80gb", "550"), ("b200_180gb", "580")}
"""A board of each generation, each with another branch; a board takes half a minute of CPU time."""
FINDERS = {
    "displaced": "placements",
    "overlapping": "refusals",
    "narrow": "placements",
    "small": "placements",
    "unlisted": "profiles",
    "destroys_filled": "refusals",
    "destroys_used": "jobs",
    "renamed": "existing",
    "crosstalk": "jobs",
    "shared": "isolation",
}
"""The check that finds each fault of MIG."""
Begin = Callable[..., tuple[MigBoard, MigBoard]]


@pytest.fixture(autouse=True)
def _wait_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_reader, "_STARTS_WITHIN_S", 0.05)


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Make a board whose nvidia-smi runs in this process, and its twin, in a folder whose path is short enough."""
    with tempfile.TemporaryDirectory() as folder:
        yield partial(_make_boards, Path(folder))


def _make_boards(
    folder: Path, model: str, branch: str = "580", *, is_on: bool = False, **health: str
) -> tuple[MigBoard, MigBoard]:
    machine = simulated.Machine.make(folder / "machine", model, branch=branch)
    boards = []
    for name, faults in (("board", health), ("twin", {})):
        board = mig_board.make_twin(machine.device, folder / name, "0123456789ab", is_on=is_on)
        _change_health(board, **faults)
        if faults:  # the profiles are read again, with the fault
            with install_driver(_file(board).path):
                board.gpu = mig_board.profiles.read_gpu(board.device)
        boards.append(board)
    return boards[0], boards[1]


def _file(board: MigBoard) -> StateFile:
    assert board.machine is not None
    return StateFile(board.machine)


def _change_health(board: MigBoard, **health: Any) -> None:
    with _file(board).change() as cell:
        gpu = cell.state.gpus[0]
        changed = dataclasses.replace(gpu, health=dataclasses.replace(gpu.health, **health))
        cell.state = cell.state.replace_gpu(0, changed)


def _gpu(board: MigBoard) -> Gpu:
    return _file(board).read().gpus[0]


def _run(boards: tuple[MigBoard, MigBoard], *names: str) -> dict[str, CheckResult]:
    """Run checks; the board is then as before, whatever the driver did."""
    board, twin = boards
    before = _gpu(board)
    with install_driver(_file(board).path):
        results, trouble = run_checks(board, twin, select_checks(names))
        assert board.journal.read_steps() == ()
    assert trouble is None
    assert _gpu(board) == before
    return {result.check.name: result for result in results}


def _problems(results: dict[str, CheckResult]) -> dict[str, list[Any]]:
    return {name: [*r.broken, *r.differences] for name, r in results.items() if r.broken or r.differences}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_on", [False, True])
def test_promises_hold_on_a_board(begin: Begin, is_on: bool) -> None:
    results = _run(begin("a30_24gb", is_on=is_on), "mode", "profiles", "existing")
    assert _problems(results) == {}
    assert [result.verdict for result in results.values()] == ["holds"] * 3
    assert ("off" in results["mode"].readings) != is_on  # a mode that was on is not switched off


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "branch"),
    [
        pytest.param(model, branch, marks=() if (model, branch) in NOT_EXHAUSTIVE else pytest.mark.exhaustive)
        for model in BOARDS
        for branch in BRANCHES
    ],
)
def test_every_promise_holds_on_every_board_and_branch(begin: Begin, model: str, branch: str) -> None:
    boards = begin(model, branch)
    results = _run(boards)
    assert _problems(results) == {}
    untried = {name: result.untried for name, result in results.items() if result.untried}
    has_unknown_size = any(profile.multiprocessors is None for profile in boards[0].gpu.profiles)
    assert set(untried) <= ({"counters"} if has_unknown_size else set())
    assert set(results) == {check.name for check in CHECKS}


def test_every_fault_has_a_finder() -> None:
    assert set(FINDERS) == set(MIG_FAULTS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fault", MIG_FAULTS)
def test_a_fault_of_mig_is_found(begin: Begin, fault: str) -> None:
    """By a promise, or for a rule that is none of our promises, by the twin."""
    results = _run(begin("a30_24gb", mig_fault=fault), FINDERS[fault])
    assert list(_problems(results)) == [FINDERS[fault]]
    if fault not in ("renamed", "unlisted"):
        assert results[FINDERS[fault]].broken


@pytest.mark.slow
@pytest.mark.parametrize("fault", COUNTER_FAULTS)
def test_a_fault_of_counters_is_found(begin: Begin, fault: str) -> None:
    assert _run(begin("h100_80gb", counter_fault=fault), "counters")["counters"].broken


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("check", "faults", "text"),
    [
        ("mode", [Fault(function="nvmlDeviceSetMigMode", code=codes.IN_USE, times=None)], "was not switched on"),
        (
            "existing",
            [Fault(function="nvmlDeviceCreateGpuInstance", code=codes.INSUFFICIENT_RESOURCES)],
            "Insufficient Resources",
        ),
        (
            "existing",
            [Fault(function="nvmlGpuInstanceCreateComputeInstance", code=codes.INSUFFICIENT_RESOURCES, skip=1)],
            "Insufficient Resources",
        ),
    ],
)
def test_an_error_of_the_driver_is_found(begin: Begin, check: str, faults: Sequence[Fault], text: str) -> None:
    boards = begin("a30_24gb")
    set_faults(_file(boards[0]), *faults)
    (board, twin) = boards
    with install_driver(_file(board).path):
        results, trouble = run_checks(board, twin, select_checks([check]))
    assert trouble is None or check == "mode"  # a switch that stays pending cannot be undone either
    assert text in results[0].broken[0]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["server_dies", "start_fails", "never_ready"])
def test_a_fault_of_mps_is_found(begin: Begin, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fault in control_program.FAULTS
    monkeypatch.setattr("pipeline.prepare.mps.mps_daemon._START_LIMIT_S", 2.0)
    boards = begin("a30_24gb")
    set_faults(_file(boards[0]), of_mps=(fault,))
    assert "MPS did not start" in _run(boards, "mps")["mps"].broken[0]


def test_a_check_that_cannot_be_tried_breaks_no_promise(begin: Begin) -> None:
    board, twin = begin("a30_24gb")
    programs = {name: path for name, path in (board.programs.simulated or {}).items() if name == "nvidia-smi"}
    board.programs = dataclasses.replace(board.programs, simulated=programs)
    result = _run((board, twin), "mps")["mps"]
    assert (result.verdict, result.untried) == ("not tried", "nvidia-cuda-mps-control is not on PATH")


@pytest.mark.slow
def test_a_promise_that_only_errors_show_is_broken(begin: Begin) -> None:
    result = _run(begin("a30_24gb", mig_fault="narrow"), "existing")["existing"]
    assert "has no free MIG device of 2g.12gb" in result.broken[0]


def test_readings_that_one_side_does_not_know_are_not_compared() -> None:
    board = {"sms": None, "starts": [0, 4], "gi": {"id": 1}}
    twin = {"sms": 14, "starts": [0, 4], "gi": {"id": 2}, "new": 1}
    differences = list(acceptance_command._compare("check", board, twin))
    assert differences == [("check: gi: id", 1, 2), ("check: new", "absent", 1)]


# The command


@dataclasses.dataclass(kw_only=True)
class AcceptanceMachine(simulated.Machine):
    """A simulated machine on which the command is run."""

    capture: pytest.CaptureFixture[str]

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def run(self, *arguments: str) -> tuple[int, str, str]:
        self.capture.readouterr()
        places = ["--machine", str(self.file.path), "--lock-dir", str(self.locks), "--out", str(self.out)]
        return main(["acceptance", *arguments, *places]), *self.capture.readouterr()


@pytest.fixture
def a30(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[AcceptanceMachine]:
    return AcceptanceMachine.make(tmp_path / "machine", "a30_24gb", capture=capsys)


@pytest.mark.slow
def test_the_command_writes_a_page_and_a_bundle_that_name_no_machine(a30: AcceptanceMachine) -> None:
    before = a30.gpu
    status, text, _ = a30.run("--only", "profiles,mode")
    assert (status, a30.gpu, a30.journal.read_steps()) == (0, before, ())
    assert "2 of 2 promises hold; 0 differences from the simulated driver. The GPU is as before." in text
    page = (a30.out / "index.html").read_text()
    assert "Rehearsal on a simulated GPU" in page
    with tarfile.open(a30.out / "acceptance.tar.xz") as bundle:
        files = {entry.name: bundle.extractfile(entry) for entry in bundle}
        texts = {name.partition("/")[2]: file.read().decode() for name, file in files.items() if file is not None}
    assert texts["index.html"] == page
    assert json.loads(texts["acceptance.json"])["checks"]["mode"]["verdict"] == "holds"
    readings = json.loads(texts["readings.json"])["profiles"]
    assert readings["gpu"] == readings["simulated"] != {}
    commands = [json.loads(line) for line in texts["commands.jsonl"].splitlines()]
    assert [line["command"][-1] for line in commands] == ["1", "0", "-C", "1", "0"]
    assert [line["check"] for line in commands] == ["begin", "mode", "mode", "mode", "end"]
    assert not re.search(r"(GPU|MIG)-[0-9a-f]{8}", "".join(texts.values()))


def test_a_broken_promise_has_an_exit_status_and_a_line(a30: AcceptanceMachine) -> None:
    with a30.file.change() as cell:
        gpu = dataclasses.replace(a30.gpu, health=dataclasses.replace(a30.gpu.health, mig_fault="unlisted"))
        cell.state = cell.state.replace_gpu(0, gpu)
    status, text, _ = a30.run("--only", "profiles")
    assert status == 1
    assert "profiles: profiles: 1g.6gb: starts is [0, 1, 2], but [0, 1, 2, 3] in the simulation" in text
    assert "<code>[0, 1, 2]</code>" in (a30.out / "index.html").read_text()


@pytest.mark.parametrize(
    "checks", ["mode", pytest.param("existing,refusals,jobs,counters,isolation,mps", marks=pytest.mark.slow)]
)
def test_a_dry_run_prints_every_write_and_makes_none(a30: AcceptanceMachine, checks: str) -> None:
    before = a30.file.path.read_bytes()
    status, text, _ = a30.run("--only", checks, "--dry-run", "--admin", "sudo,-n")
    assert status == 0
    assert a30.file.path.read_bytes() == before
    assert not a30.out.exists()
    planned = [line.partition(": ")[2] for line in text.splitlines() if "would run" in line]
    a30.run("--only", checks)
    with tarfile.open(a30.out / "acceptance.tar.xz") as bundle:
        content = bundle.extractfile("acceptance/commands.jsonl")
        assert content is not None
        done = [" ".join(json.loads(line)["command"]) for line in content]
    assert [line.replace(a30.gpu.uuid, "GPU") for line in planned] == done


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--only", "mode,modes"], "--only modes names no check; choose among mode, profiles"),
        (["--driver", "550"], "--driver is the branch of a simulated model"),
        (["--gpu", "7"], "--gpu"),
    ],
)
def test_wrong_arguments_are_refused(a30: AcceptanceMachine, arguments: list[str], text: str) -> None:
    status, _, error = a30.run(*arguments)
    assert status == 2
    assert text in error


def test_a_gpu_with_instances_is_refused(a30: AcceptanceMachine) -> None:
    a30.driver.set_mig_mode(0, is_on=True)
    a30.driver.create_gpu_instance(0, 14, 0)
    before = a30.gpu
    status, _, error = a30.run()
    assert (status, a30.gpu) == (2, before)
    assert "already has the GPU instances" in error
    assert [*a30.out.iterdir()] == []


def test_one_promise_holds(a30: AcceptanceMachine) -> None:
    assert "\n1 of 1 promise holds; 0 differences" in a30.run("--only", "profiles")[1]


@pytest.fixture
def run_as_real(
    a30: AcceptanceMachine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Run the command as on a machine with this driver, whose programs are on PATH."""
    monkeypatch.setenv("PATH", f"{a30.record_commands()}:/usr/bin:/bin")

    def run(*arguments: str) -> tuple[int, str, str]:
        a30.capture.readouterr()
        words = ["acceptance", *arguments, "--lock-dir", str(a30.locks), "--out", str(a30.out)]
        return main(words), *a30.capture.readouterr()

    with install_driver(a30.file.path):
        yield run


def test_a_real_gpu_is_changed_by_its_own_program_only(
    a30: AcceptanceMachine, run_as_real: Callable[..., tuple[int, str, str]]
) -> None:
    before = a30.gpu
    assert run_as_real("--only", "mode", "--admin", "env")[0] == 0
    assert a30.gpu == before
    assert "Rehearsal" not in (a30.out / "index.html").read_text()
    program = a30.folder / "recording" / "nvidia-smi"
    assert [line.split()[:2] for line in a30.commands] == [
        [str(program), word] for word in ("-i", "-i", "mig", "-i", "-i")
    ]


@pytest.mark.parametrize("is_on", [False, True])
def test_a_user_without_permission_changes_nothing(
    a30: AcceptanceMachine, run_as_real: Callable[..., tuple[int, str, str]], is_on: bool
) -> None:
    a30.driver.set_mig_mode(0, is_on=is_on)
    a30.fail("nvmlDeviceSetMigMode", codes.NO_PERMISSION, times=None)
    before = a30.gpu
    status, _, error = run_as_real("--only", "existing")
    assert (status, a30.gpu, a30.journal.read_steps()) == (2, before, ())
    assert "no permission for" in error


def test_jobs_on_a_real_gpu_need_torch_and_triton(
    run_as_real: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, _, error = run_as_real("--only", "mode,jobs")
    assert status == 2
    assert "need torch and triton; install a torch build for GPUs, or leave them out: --only mode" in error
