"""The simulated nvidia-smi, compared with recordings of a real H100, and its traps."""

from __future__ import annotations

import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from listeners.nvml import NvmlListener
from listeners.smi import SmiListener
from pipeline.base.domain.samples import Sample
from pipeline.base.system.helper_program import run
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.prepare.device import nvml
from pipeline.simulation import nvidia_smi
from pipeline.simulation.install import install_driver, write_programs
from pipeline.simulation.machine import codes
from pipeline.simulation.machine.driver import Clients
from pipeline.simulation.machine.state_file import Fault, StateFile
from tests.support.recordings import RECORDINGS, masked, recording

PROCESSES = ((538, "python3", 744, "M+C"), (539, "python3", 744, "M+C"), (577, "nvidia-cuda-mps-server", 66, "C"))
Smi = Callable[..., tuple[int, str]]

# What is compared in other ways: it holds readings, or was asked through NVML.
_WITH_READINGS = {"query.txt", "query_nounits.txt", "query_loop.txt", "smi.txt", "smi_mps.txt", "nvml_mps.txt"}
ALIKE = sorted({path.name for path in RECORDINGS.iterdir()} - _WITH_READINGS)
# Columns of the recorded query that are readings.
_READINGS = frozenset(range(6, 11)) | frozenset(range(14, 20))


def _remove_readings(overview: str) -> str:
    """The overview with the readings of each GPU taken out of their columns."""
    lines = overview.splitlines()
    for position, line in enumerate(lines):
        if re.match(r"\|   \d  NVIDIA ", line):
            below = lines[position + 1]
            lines[position + 1] = below[:2] + below[41:67] + below[76:]
    return "\n".join(lines)


@pytest.mark.parametrize("name", ALIKE)
def test_a_recorded_command_answers_as_recorded(smi: Smi, name: str) -> None:
    arguments, text, status = recording(name)
    assert (smi(*arguments)[0], masked(smi(*arguments)[1])) == (status, masked(text))


def _start_processes(state_file: StateFile) -> None:
    uuid = state_file.read().gpus[0].uuid
    for pid, name, memory_mib, kind in PROCESSES:
        Clients(state_file).hold(uuid, pid, name, memory_mib, kind, never_ends=True)


@pytest.mark.parametrize("name", ["smi.txt", "smi_mps.txt"])
def test_the_overview_is_the_recorded_one_but_for_readings(state_file: StateFile, smi: Smi, name: str) -> None:
    recorded = recording(name)[1]
    if name == "smi_mps.txt":
        _start_processes(state_file)
        # Beside what its clients have, the real driver held 10 MiB more.
        recorded = recorded.replace("1564MiB", "1554MiB")
    assert _remove_readings(masked(smi()[1])) == _remove_readings(masked(recorded)).removesuffix("\n")


@pytest.mark.parametrize("name", ["query.txt", "query_nounits.txt"])
def test_a_query_is_the_recorded_one_and_invents_no_reading(smi: Smi, name: str) -> None:
    arguments, recorded, _ = recording(name)
    status, text = smi(*arguments)
    assert status == 0
    lines, expected = (masked(text_part).splitlines() for text_part in (text, recorded))
    assert lines[:-1] == expected[:-1]
    cells, recorded_cells = lines[-1].split(", "), expected[-1].split(", ")
    assert len(cells) == len(recorded_cells)
    for position, (cell, recorded_cell) in enumerate(zip(cells, recorded_cells, strict=True)):
        assert cell == ("[N/A]" if position in _READINGS else recorded_cell)


def test_a_query_of_memory_left_and_of_the_number_of_gpus(smi: Smi, state_file: StateFile) -> None:
    state_file.create(["h100_80gb", "h100_80gb"])
    _start_processes(state_file)
    query = "--query-gpu=gpu_name,count,memory.free"
    assert smi("-i", "0", query, "--format=csv") == (
        0,
        "name, count, memory.free [MiB]\nNVIDIA H100 80GB HBM3, 2, 79525 MiB\n",
    )
    # The real program has it, so it is not the user who is wrong.
    for name in ("power.limit", "dramEncryption.mode.current", "gpu_recovery_action", "module.power.limit"):
        unknown = f'Field "{name}" is not a valid field to query: the simulated nvidia-smi does not support it.\n'
        assert smi(f"--query-gpu=name,{name}", "--format=csv") == (2, unknown)


def test_a_loop_is_the_recorded_one_and_invents_no_reading(state_file: StateFile, tmp_path: Path) -> None:
    command, *recorded, status = (RECORDINGS / "query_loop.txt").read_text().splitlines()
    program = write_programs(tmp_path / "bin", state_file.path)["nvidia-smi"]
    arguments = shlex.split(command.removeprefix("$ timeout 2 nvidia-smi "))
    for limit_s in (1, 5, 25):  # on a busy machine it may not have begun after the first
        done = run(["timeout", str(limit_s), str(program), *arguments], timeout_s=60, check=False)
        lines = masked(done.stdout).splitlines()
        if len(lines) >= 2:
            break
    assert f"exit {done.status}" == status
    assert len(lines) >= 2
    expected = {re.sub(r", [\d.]+,", ", [N/A],", masked(line)) for line in recorded}
    assert set(lines) == expected


def test_a_loop_prints_its_header_once_and_ends_with_its_reader(state_file: StateFile, tmp_path: Path) -> None:
    program = write_programs(tmp_path / "bin", state_file.path)["nvidia-smi"]
    argv = [str(program), "--query-gpu=timestamp,memory.used", "--format=csv", "-lms", "20"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        assert lines[0] == "timestamp, memory.used [MiB]\n"
        assert all(line.endswith(", 0 MiB\n") for line in lines[1:])
        process.stdout.close()
        process.wait(60)
    assert state_file.read().sessions == ()


def test_ctrl_c_ends_a_loop_without_a_traceback(state_file: StateFile, tmp_path: Path) -> None:
    programs = write_programs(tmp_path / "bin", state_file.path)
    smi = [programs["nvidia-smi"], "--query-gpu=name", "--format=csv", "-lms", "20"]
    for argv in (smi, [programs["dcgmi"], "dmon", "-e", "1001", "-d", "20"]):
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stderr is not None
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert (process.wait(10), process.stderr.read()) == (130, b"")
    assert state_file.read().sessions == ()


def test_the_listeners_of_the_project_run_on_it(state_file: StateFile, tmp_path: Path, sleeper: int) -> None:
    program = write_programs(tmp_path / "bin", state_file.path)["nvidia-smi"]
    samples: list[Sample] = []
    with install_driver(state_file.path):
        (device,) = nvml.list_devices()
        Clients(state_file).hold(device.uuid, sleeper, "sleep", 300)
        watch = SimpleNamespace(device=device, slots=(), pids=lambda: {0: sleeper})
        sink = SimpleNamespace(put=samples.append)
        for listener in (SmiListener(interval_ms=200, program=str(program)), NvmlListener(interval_ms=200)):
            with listener.observe(watch, sink):
                pass
    values = {(sample.source, sample.job): sample.values for sample in samples}
    assert values[("smi", None)] == {"memory_used_mib": 300.0}
    assert values[("nvml", None)] == {"memory_used_mib": 300.0}
    assert values[("nvml", 0)] == {"process_memory_mib": 300.0, "gpu_num_processes": 1.0}


def test_instances_are_made_listed_and_destroyed(smi: Smi, state_file: StateFile) -> None:
    assert smi("-i", "0", "-mig", "1") == (0, "Enabled MIG Mode for GPU 00000000:00:06.0\nAll done.\n")
    assert smi("mig", "-lgi") == (6, "No GPU instances found: Not Found\n")
    assert smi("mig", "-i", "0", "-cgi", "3g.40gb:4,19:0", "-C") == (
        0,
        "Successfully created GPU instance ID  2 on GPU  0 using profile MIG 3g.40gb (ID  9)\n"
        "Successfully created compute instance ID  0 on GPU  0 GPU instance ID  2 using profile MIG 3g.40gb (ID  2)\n"
        "Successfully created GPU instance ID  7 on GPU  0 using profile MIG 1g.10gb (ID 19)\n"
        "Successfully created compute instance ID  0 on GPU  0 GPU instance ID  7 using profile MIG 1g.10gb (ID  0)\n",
    )
    assert smi("mig", "-i", "0", "-lgi") == (
        0,
        "+---------------------------------------------------------+\n"
        "| GPU instances:                                          |\n"
        "| GPU   Name               Profile  Instance   Placement  |\n"
        "|                            ID       ID       Start:Size |\n"
        "|=========================================================|\n"
        "|   0  MIG 1g.10gb           19        7          0:1     |\n"
        "+---------------------------------------------------------+\n"
        "|   0  MIG 3g.40gb            9        2          4:4     |\n"
        "+---------------------------------------------------------+\n",
    )
    listed = [line for line in smi("mig", "-lci")[1].splitlines() if " MIG " in line]
    assert listed == [
        "|   0      7       MIG 1g.10gb          0         0          0:1     |",
        "|   0      2       MIG 3g.40gb          2         0          0:3     |",
    ]
    assert re.sub("MIG-[0-9a-f-]{36}", "<uuid>", smi("-L")[1]).splitlines()[1:] == [
        "  MIG 3g.40gb     Device  0: (UUID: <uuid>)",
        "  MIG 1g.10gb     Device  1: (UUID: <uuid>)",
    ]
    assert smi("mig", "-i", "0", "-gi", "2", "-dgi") == (
        codes.IN_USE,
        "Unable to destroy GPU instance ID  2 from GPU  0: In use by another client\n"
        "Failed to destroy GPU instances: In use by another client\n",
    )
    assert smi("mig", "-i", "0", "-dci", "-ci", "0", "-gi", "2") == (
        0,
        "Successfully destroyed compute instance ID  0 from GPU  0 GPU instance ID  2\n",
    )
    assert smi("mig", "-i", "0", "-dgi", "-gi", "2") == (0, "Successfully destroyed GPU instance ID  2 from GPU  0\n")
    (instance,) = state_file.read().gpus[0].instances
    assert instance.id == 7


def test_the_overview_shows_mig_devices_and_where_processes_run(smi: Smi, state_file: StateFile, sleeper: int) -> None:
    smi("-mig", "1")
    assert "|  No MIG devices found" in smi()[1]
    smi("mig", "-cgi", "3g.40gb", "-C")
    uuid = smi("-L")[1].rsplit("UUID: ", 1)[1].rstrip(")\n")
    Clients(state_file).hold(uuid, sleeper, "sleep", 44)
    lines = smi()[1].splitlines()
    assert len({len(line) for line in lines[1:] if line}) == 1
    assert "|  0    2   0   0  |              44MiB / 40448MiB    | 60    N/A |  3   0    3    0    3 |" in lines
    assert f"|    0     2    0{sleeper:>16}      C   sleep{'':<31}     44MiB |" in lines


def test_compute_instances_divide_a_gpu_instance(smi: Smi) -> None:
    smi("-mig", "1")
    smi("mig", "-cgi", "9")
    assert smi("mig", "-i", "0", "-gi", "2", "-cci", "0,1c.3g.40gb") == (
        0,
        "Successfully created compute instance ID  0 on GPU  0 GPU instance ID  2 "
        "using profile MIG 1c.3g.40gb (ID  0)\n"
        "Successfully created compute instance ID  1 on GPU  0 GPU instance ID  2 "
        "using profile MIG 1c.3g.40gb (ID  0)\n",
    )
    overview = smi()[1].splitlines()
    position = overview.index(
        "|  0    2   0   0  |               0MiB / 40448MiB    |N/A    N/A |  3   0    3    0    3 |"
    )
    assert overview[position + 2 : position + 4] == [
        "+------------------+                                  +-----------+-----------------------+",
        "|  0    2   1   1  |                                  |N/A    N/A |  3   0    3    0    3 |",
    ]
    names = re.findall(r"MIG (\S+) +Device +(\d+): \(UUID: (\S+)\)", smi("-L")[1])
    assert [cells[:2] for cells in names] == [("1c.3g.40gb", "0"), ("1c.3g.40gb", "1")]
    assert len({cells[2] for cells in names}) == 2
    assert len([line for line in smi("mig", "-lci")[1].splitlines() if " MIG 1c.3g.40gb " in line]) == 2
    assert smi("mig", "-gi", "2", "-cci")[0] == codes.INSUFFICIENT_RESOURCES
    assert smi("mig", "-gi", "5", "-cci") == (6, "No GPU instances found: Not Found\n")
    gone = "Successfully destroyed compute instance ID  1 from GPU  0 GPU instance ID  2\n"
    assert smi("mig", "-ci", "1", "-gi", "2", "-dci") == (0, gone)
    assert smi("mig", "-ci", "1", "-dci") == (6, "No compute instances found: Not Found\n")


def test_a_list_is_worked_off_until_it_fails(smi: Smi, state_file: StateFile) -> None:
    smi("-mig", "1")
    status, text = smi("mig", "-i", "0", "-cgi", "9,9,19")
    assert status == codes.INSUFFICIENT_RESOURCES
    assert text.splitlines() == [
        "Successfully created GPU instance ID  2 on GPU  0 using profile MIG 3g.40gb (ID  9)",
        "Successfully created GPU instance ID  1 on GPU  0 using profile MIG 3g.40gb (ID  9)",
        "Unable to create a GPU instance on GPU  0 using profile 19: Insufficient Resources",
        "Failed to create GPU instances: Insufficient Resources",
    ]
    assert len(state_file.read().gpus[0].instances) == 2


@pytest.mark.parametrize("item", ["8g.80gb", "99", "9:1", "9:x"])
def test_an_unknown_profile_or_start_is_an_invalid_argument(smi: Smi, state_file: StateFile, item: str) -> None:
    smi("-mig", "1")
    status, text = smi("mig", "-cgi", item)
    assert (status, text.splitlines()[-1]) == (2, "Failed to create GPU instances: Invalid Argument")
    assert state_file.read().gpus[0].instances == ()


def test_without_i_a_command_acts_on_every_gpu(smi: Smi, state_file: StateFile) -> None:
    state_file.create(["h100_80gb", "h100_80gb"])
    smi("-i", "0,1", "-mig", "1")
    smi("mig", "-cgi", "19")
    assert [len(gpu.instances) for gpu in state_file.read().gpus] == [1, 1]
    smi("mig", "-i", "1", "-dgi")
    assert [len(gpu.instances) for gpu in state_file.read().gpus] == [1, 0]
    smi("mig", "-dgi")
    assert smi("mig", "-dgi") == (6, "No GPU instances found: Not Found\n")
    assert smi("mig", "-dci") == (6, "No compute instances found: Not Found\n")
    assert smi("-i", state_file.read().gpus[1].uuid, "-mig", "0")[0] == 0
    assert [gpu.mig_current for gpu in state_file.read().gpus] == [True, False]


@pytest.mark.parametrize("command", [["-cgi", "19"], ["-cci"], ["-lci"], ["-dci"], ["-dgi"]])
def test_with_mig_off_a_command_does_nothing_and_ends_with_0(smi: Smi, command: list[str]) -> None:
    assert smi("mig", *command) == (0, "No MIG-enabled devices found.\n")


def test_all_done_with_the_mode_pending(smi: Smi, state_file: StateFile, sleeper: int) -> None:
    state_file.create(["a100_40gb"])
    Clients(state_file).hold(state_file.read().gpus[0].uuid, sleeper, "sleep", 10)
    status, text = smi("-i", "0", "-mig", "1")
    assert (status, text.splitlines()[-1]) == (0, "All done.")
    assert text.startswith(
        "Warning: MIG mode is in pending enable state for GPU 00000000:00:06.0:In use by another client\n"
    )
    query = ["--query-gpu=mig.mode.current,mig.mode.pending", "--format=csv,noheader"]
    assert smi(*query)[1] == "Disabled, Enabled\n"
    assert "            Disabled* |" in smi()[1]
    assert smi("--gpu-reset", "-i", "0")[0] == codes.IN_USE
    Clients(state_file).release(sleeper)
    assert smi("--gpu-reset", "-i", "0") == (0, "GPU 00000000:00:06.0 was successfully reset.\nAll done.\n")
    assert smi(*query)[1] == "Enabled, Enabled\n"


def test_a_missing_permission_ends_with_4(smi: Smi, state_file: StateFile) -> None:
    state_file.create(["h100_80gb"], [Fault(function="nvmlDeviceSetMigMode", code=codes.NO_PERMISSION)])
    status, text = smi("-mig", "1")
    assert (status, text.splitlines()[0]) == (
        4,
        "Unable to enable MIG Mode for GPU 00000000:00:06.0: Insufficient Permissions",
    )
    assert "All done." not in text


def test_the_time_slice_is_set_shown_and_refused_as_the_real_program_does(smi: Smi, state_file: StateFile) -> None:
    uuid = state_file.read().gpus[0].uuid
    assert smi("compute-policy", "-i", uuid, "--set-timeslice", "3")[0] == 0
    assert state_file.read().gpus[0].timeslice == 3
    status, text = smi("compute-policy", "-i", "0", "-l")
    assert status == 0 and [line.split()[1:4] for line in text.splitlines() if "Timeslice" in line] == [
        ["0", "Timeslice", "Long"]
    ]
    smi("-mig", "1")
    # Source: a Tesla P4, in an issue of the DRA driver for Kubernetes.
    assert smi("compute-policy", "-i", uuid, "--set-timeslice=0") == (
        3,
        "Failed to set timeslice policy with value Default for GPU 0 : Not Supported\n"
        "Failed to set timeslice for requested devices : Not Supported\n",
    )
    assert smi("compute-policy", "--set-timeslice", "4")[0] == codes.INVALID_ARGUMENT
    assert smi("compute-policy", "-lgip")[0] == codes.INVALID_ARGUMENT


def test_a_later_driver_has_its_version(smi: Smi, state_file: StateFile) -> None:
    state_file.create(["h100_80gb"], branch="590")
    assert smi("--query-gpu=driver_version", "--format=csv,noheader") == (0, "590.48.01\n")
    assert "Driver Version: 590.48.01      CUDA Version: 13.1     |" in smi()[1]


def test_a_compute_instance_in_use_stays(smi: Smi, state_file: StateFile, sleeper: int) -> None:
    smi("-mig", "1")
    smi("mig", "-cgi", "0", "-C")
    uuid = smi("-L")[1].rsplit("UUID: ", 1)[1].rstrip(")\n")
    Clients(state_file).hold(uuid, sleeper, "sleep", 1)
    assert smi("mig", "-i", "0", "-dci") == (
        codes.IN_USE,
        "Unable to destroy compute instance ID  0 from GPU  0 GPU instance ID  0: In use by another client\n"
        "Failed to destroy compute instances: In use by another client\n",
    )
    Clients(state_file).release(sleeper)
    assert smi("mig", "-i", "0", "-dci")[0] == 0


def test_a_machine_that_is_not_there_is_no_driver(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "none.json", tmp_path / "no_folder" / "none.json"):
        assert nvidia_smi.main(["--state-file", str(path), "-L"]) == 9
        assert "simulated machine" in capsys.readouterr().out


def test_a_driver_that_is_not_loaded_ends_with_9(smi: Smi, state_file: StateFile) -> None:
    state_file.create(["h100_80gb"], [Fault(function="nvmlInitWithFlags", code=9)])
    status, text = smi("-L")
    assert (status, text.split(".")[0]) == (
        9,
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
    )


def test_the_compute_mode_is_set_and_told(smi: Smi, state_file: StateFile) -> None:
    query = ["--query-gpu=compute_mode", "--format=csv,noheader"]
    done = "Set compute mode to EXCLUSIVE_PROCESS for GPU 00000000:00:06.0.\nAll done.\n"
    assert smi("-i", "0", "-c", "EXCLUSIVE_PROCESS") == (0, done)
    assert smi(*query)[1] == "Exclusive_Process\n"
    assert "  E. Process |" in smi()[1]
    assert smi("-c", "default")[0] == 0
    assert smi(*query)[1] == "Default\n"
    smi("-mig", "1")
    assert smi("-c", "EXCLUSIVE_PROCESS")[0] == codes.NOT_SUPPORTED
    assert state_file.read().gpus[0].compute_mode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--frobnicate"],
        ["-i"],
        ["mig", "-q"],
        ["mig"],
        ["mig", "-cgi"],
        ["mig", "-dgi", "-gi", "x"],
        ["-mig", "2"],
        ["-c", "EXCLUSIVE_THREAD"],
        *(["-lms", period] for period in ("soon", "inf", "0", "-5", "1.5", "9" * 400)),
        ["--query-gpu=name"],
        ["-q"],
        ["mig", "-lcipp"],
        ["dmon", "-c", "1"],
    ],
)
def test_what_the_program_does_not_know_is_refused_with_2(
    smi: Smi, state_file: StateFile, arguments: list[str]
) -> None:
    before = state_file.read()
    assert smi(*arguments)[0] == 2
    assert state_file.read() == before


def test_unknown_figures_are_not_made_up(smi: Smi, state_file: StateFile) -> None:
    state_file.create(["gb300"])
    assert "|   0  MIG 1g.35gb         19     7/7        34.69      No     N/A    N/A   0   |" in smi("mig", "-lgip")[1]


@pytest.mark.slow
def test_the_program_needs_no_environment_and_can_reach_no_real_one(state_file: StateFile, tmp_path: Path) -> None:
    """A decoy stands first on PATH under every name that leads to a real driver; PYTHONPATH has another package."""
    decoys = tmp_path / "decoys"
    (decoys / "pipeline").mkdir(parents=True)
    (decoys / "pipeline" / "__init__.py").write_text("raise SystemExit(99)")
    touched = tmp_path / "touched"
    for name in ("nvidia-smi", "dcgmi", "sudo", "python", "python3", "sh", "exec"):
        (decoys / name).write_text(f"#!/bin/sh\necho {name} >> {touched}\n")
        (decoys / name).chmod(0o755)
    programs = write_programs(tmp_path / "bin", state_file.path)
    program, dcgmi = str(programs["nvidia-smi"]), str(programs["dcgmi"])
    assert Path(program).is_absolute()
    hostile = {"PATH": str(decoys), "PYTHONPATH": str(decoys)}
    for environ in (hostile, {}):
        for arguments in (["-L"], ["-mig", "1"], ["mig", "-cgi", "19", "-C"], ["mig", "-dci"], ["mig", "-dgi"]):
            assert run([program, *arguments], timeout_s=60, environ=environ).status == 0
        assert run([dcgmi, "discovery", "-c"], timeout_s=60, environ=environ).status == 0
    assert not touched.exists()


def test_no_line_of_the_simulation_starts_a_program_or_loads_a_library(state_file: StateFile) -> None:
    """Python's own audit events tell, while the program writes and the library is used through pynvml."""
    script = """
import sys
seen = []
def note(event, arguments):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn"):
        seen.append(event)
    if event == "ctypes.dlopen" and arguments[0]:
        seen.append(arguments[0])
sys.addaudithook(note)
from pathlib import Path
from pipeline.simulation import dcgmi, install
from pipeline.simulation import nvidia_smi
mig = (["-mig", "1"], ["mig", "-cgi", "19", "-C"], ["mig", "-dci"], ["mig", "-dgi"])
for arguments in (["-L"], *mig, ["-c", "DEFAULT"]):
    assert nvidia_smi.main(["--state-file", sys.argv[1], *arguments]) == 0
for arguments in (["discovery", "-c"], ["dmon", "-e", "1001", "-c", "1"]):
    assert dcgmi.main(["--state-file", sys.argv[1], *arguments]) == 0
with install.install_driver(Path(sys.argv[1])):
    from pipeline.prepare.device import nvml
    assert nvml.list_devices()
assert not seen, seen
"""
    argv = [sys.executable, "-c", script, str(state_file.path)]
    assert run(argv, timeout_s=60, environ={**os.environ, "PYTHONPATH": str(PROJECT_DIR)}).status == 0


def test_a_command_answers_quickly(state_file: StateFile, tmp_path: Path) -> None:
    program = str(write_programs(tmp_path / "bin", state_file.path)["nvidia-smi"])
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run([program, "-L"], timeout_s=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 2  # not the clock: other tests run beside this one
