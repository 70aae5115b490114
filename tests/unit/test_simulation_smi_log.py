"""`nvidia-smi -q` and `-q -x` of the simulated driver, compared with recordings of a real H100.

The simulated one says that readings, which only hardware could give, are not available. Those, and the numbers that
tell one board from another, are listed here; every other line has to be the recorded one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from test_simulation_smi import PROCESSES, RECORDINGS, Smi

from pipeline.command import run
from pipeline.simulation import nvidia_smi
from pipeline.simulation.clients import Clients
from pipeline.simulation.state import StateFile

# By the names of the sections around them, outermost first.
_READINGS = re.compile(
    r"(Serial Number|GPU PDI|Board ID|Platform Info/Module Id|PCI/GPU Link Info/.*Current|PCI/Replay.*"
    r"|PCI/[TR]x Throughput|Performance State|Clocks Event Reasons( Counters)?/.*|BAR1 Memory Usage/(Used|Free)"
    r"|Conf Compute Protected Memory Usage/.*|(Utilization|Encoder Stats|FBC Stats|ECC Errors|Remapped Rows)/.*"
    r"|Temperature/.*|GPU (Memory )?Power Readings ?/.*|.*Clocks/.*)"
)
_XML_READINGS = re.compile(
    r"(serial|pdi|board_id|platformInfo/module_id|pci/.*current_link_(gen|width)|pci/replay_.*|pci/[tr]x_util"
    r"|performance_state|clocks_event_reasons(_counters)?/.*|bar1_memory_usage/(used|free)|cc_protected_memory_usage/.*"
    r"|(utilization|encoder_stats|fbc_stats|ecc_errors|remapped_rows|temperature)/.*"
    r"|gpu_(memory_)?power_readings/.*|module_power_readings/power_state|.*clocks/.*|supported_clocks)"
)
_VARYING = re.compile(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}|GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SUPPORTED_CLOCKS = re.compile(r"<supported_clocks>.*</supported_clocks>", re.S)


@pytest.fixture
def state_file(tmp_path: Path) -> StateFile:
    file = StateFile(tmp_path / "machine.json")
    file.create(["h100_80gb"])
    return file


@pytest.fixture
def smi(state_file: StateFile, capsys: pytest.CaptureFixture[str]) -> Smi:
    """Run the program in this process: its exit status and what it printed."""

    def call(*arguments: str) -> tuple[int, str]:
        status = nvidia_smi.main(["--state-file", str(state_file.path), *arguments])
        return status, capsys.readouterr().out

    return call


def _recording(name: str) -> tuple[str, int]:
    """Output and exit status."""
    _, *lines = (RECORDINGS / name).read_text().splitlines(keepends=True)
    return "".join(lines[:-1]), int(lines[-1].removeprefix("exit "))


def _text_lines(text: str) -> Iterator[tuple[str, str]]:
    """Each line without its value, with the path of its section before it; and the value."""
    path: list[str] = []
    for line in text.splitlines():
        start, colon, value = line.partition(" : ")
        key = start.strip() if colon else line.lstrip()
        path[max(0, (len(line) - len(line.lstrip())) // 4 - 1) :] = [key]
        yield f"{'/'.join(path) if colon else ''}|{start}{colon}", value


def _xml_lines(text: str) -> Iterator[tuple[str, str]]:
    path: list[str] = []
    for line in text.splitlines():
        found = re.fullmatch(r"\t+<(\w+)>(.*)</\1>", line)
        if found:
            yield f"{'/'.join([*path, found[1]])}|{line[: found.start(2)]}", found[2]
            continue
        yield f"|{line}", ""
        opened = re.fullmatch(r"\t\t+<(/?)(\w+)>", line)
        if opened and opened[1]:
            path.pop()
        elif opened:
            path.append(opened[2])


def _compare(lines: Iterator[tuple[str, str]], recorded: Iterator[tuple[str, str]], readings: re.Pattern[str]) -> int:
    """Compare line by line and return the number of readings."""
    num_readings = 0
    for (place, value), (recorded_place, recorded_value) in zip(lines, recorded, strict=True):
        assert place == recorded_place
        if readings.fullmatch(place.partition("|")[0]):
            assert value == "N/A", place
            num_readings += 1
        else:
            assert _VARYING.sub("<varies>", value) == _VARYING.sub("<varies>", recorded_value), place
    return num_readings


def _compare_text(text: str, recorded: str) -> int:
    return _compare(_text_lines(text), _text_lines(recorded), _READINGS)


def _compare_xml(text: str, recorded: str) -> int:
    plain = _SUPPORTED_CLOCKS.sub("<supported_clocks>N/A</supported_clocks>", recorded)
    return _compare(_xml_lines(text), _xml_lines(plain), _XML_READINGS)


def test_everything_is_the_recorded_text_but_for_readings(smi: Smi) -> None:
    recorded, status = _recording("smi_q.txt")
    simulated = smi("-q")
    assert simulated[0] == status
    assert _compare_text(simulated[1], recorded) > 80
    assert smi("--query")[1].splitlines()[5:] == simulated[1].splitlines()[5:]


def test_everything_is_the_recorded_xml_but_for_readings(smi: Smi) -> None:
    recorded, status = _recording("smi_qx.txt")
    simulated = smi("-q", "-x")
    assert simulated[0] == status
    assert _compare_xml(simulated[1], recorded) > 80


@pytest.mark.gpu
@pytest.mark.parametrize("arguments", [["-q"], ["-q", "-x"]])
def test_a_real_h100_still_answers_with_the_same_lines(smi: Smi, arguments: list[str]) -> None:
    """Read only. Another board of the model may have other part numbers and firmware."""
    program = shutil.which("nvidia-smi")
    devices = run([program, "-L"], timeout_s=60).stdout.splitlines() if program else []
    if program is None or len(devices) != 1 or "NVIDIA H100 80GB HBM3" not in devices[0]:
        pytest.skip("this machine has not one H100 80GB HBM3, as the one that was recorded")
    real = _SUPPORTED_CLOCKS.sub(
        "<supported_clocks>N/A</supported_clocks>", run([program, *arguments], timeout_s=60).stdout
    )
    status, simulated = smi(*arguments)
    of = _xml_lines if "-x" in arguments else _text_lines
    assert status == 0
    assert [place for place, _ in of(real)] == [place for place, _ in of(simulated)]


def _hold(file: StateFile, uuid: str) -> None:
    for pid, name, memory_mib, kind in PROCESSES:
        Clients(file).hold(uuid, pid, name, memory_mib, kind, never_ends=True)


def test_memory_and_processes_are_those_of_the_state(smi: Smi, state_file: StateFile) -> None:
    _hold(state_file, state_file.read().gpus[0].uuid)
    Clients(state_file).hold(state_file.read().gpus[0].uuid, 600, "<a & b>", 1, never_ends=True)
    text, xml = smi("-q")[1], smi("-q", "-x")[1]
    assert "        Used                                           : 1555 MiB\n" in text
    assert (
        "    Processes\n"
        "        GPU instance ID                                : N/A\n"
        "        Compute instance ID                            : N/A\n"
        "        Process ID                                     : 538\n"
        "            Type                                       : M+C\n"
        "            Name                                       : python3\n"
        "            Used GPU Memory                            : 744 MiB\n"
    ) in text
    (gpu,) = ElementTree.fromstring(xml).findall("gpu")
    assert gpu.findtext("fb_memory_usage/used") == "1555 MiB"
    assert [process.findtext("pid") for process in gpu.findall("processes/process_info")] == [
        "538",
        "539",
        "577",
        "600",
    ]
    assert gpu.findall("processes/process_info")[-1].findtext("process_name") == "<a & b>"


def test_mig_devices_have_sections_of_their_own(smi: Smi, state_file: StateFile) -> None:
    smi("-mig", "1")
    assert "None" in (ElementTree.fromstring(smi("-q", "-x")[1]).findtext("gpu/mig_devices") or "")
    assert "MIG Device" not in smi("-q")[1]
    smi("mig", "-cgi", "9,19", "-C")
    uuid = smi("-L")[1].splitlines()[1].partition("UUID: ")[2].rstrip(")")
    with subprocess.Popen(["sleep", "60"]) as process:
        Clients(state_file).hold(uuid, process.pid, "sleep", 44)
        text, xml = smi("-q")[1], smi("-q", "-x")[1]
        process.kill()
    assert "        Current                                        : Enabled\n" in text
    assert (
        "    MIG Device\n"
        "        Index                                          : 0\n"
        "        GPU Instance ID                                : 2\n"
        "        Compute Instance ID                            : 0\n"
        "        Device Attributes\n"
        "            Shared\n"
        "                Multiprocessor count                   : 60\n"
    ) in text
    assert "            Used                                       : 44 MiB\n" in text
    assert "        GPU instance ID                                : 2\n" in text
    devices = ElementTree.fromstring(xml).findall("gpu/mig_devices/mig_device")
    assert [device.findtext("gpu_instance_id") for device in devices] == ["2", "7"]
    assert [device.findtext("fb_memory_usage/used") for device in devices] == ["44 MiB", "0 MiB"]


def test_of_another_model_nothing_of_the_recorded_one_is_told(smi: Smi, state_file: StateFile) -> None:
    state_file.create(["h100_80gb", "a100_40gb"])
    text, alone = smi("-q")[1], smi("-q", "-i", "1")[1]
    for told in ("96.00.DA.00.0C", "695-2G520-0200-000", "0x233010DE", "131072 MiB"):
        assert (text.count(told), alone.count(told)) == (1, 0)
    assert "Attached GPUs                                          : 2\n" in alone
    assert "    Product Architecture                               : Ampere\n" in alone
    gpus = ElementTree.fromstring(smi("-q", "-x")[1]).findall("gpu")
    assert [gpu.get("id") for gpu in gpus] == ["00000000:00:06.0", "00000000:00:07.0"]
    assert [gpu.findtext("vbios_version") for gpu in gpus] == ["96.00.DA.00.0C", "N/A"]


def test_x_is_only_for_q(smi: Smi) -> None:
    assert smi("-x")[0] == 2


def test_the_templates_are_installed_with_the_package() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    named = set(project["tool"]["setuptools"]["package-data"]["pipeline.simulation"])
    folder = Path(__file__).parents[2] / "pipeline" / "simulation"
    assert named == {path.name for path in folder.iterdir() if path.suffix in (".txt", ".xml")}
