"""The listener of nvidia-smi over a program that plays it: real processes, pipes and signals."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest

from listeners.smi import SmiListener
from pipeline.base.domain.samples import Field
from pipeline.base.system.errors import ListenerError
from tests.conftest import DATA
from tests.support.listener_contract import (
    Collected,
    OneDevice,
    ProgramListenerContract,
    thread_of,
    wait_until,
)
from tests.support.nvml_library import UUID
from tests.support.simulated import Machine


def _recorded() -> tuple[dict[str, str], dict[str, str]]:
    """Columns of the recorded query of an H100: as asked for to header, and to value (without unit)."""
    command, header, *_ = (DATA / "h100" / "query.txt").read_text().splitlines()
    row = (DATA / "h100" / "query_nounits.txt").read_text().splitlines()[1].split(", ")
    match = re.search(r"--query-gpu=(\S+)", command)
    assert match is not None
    columns, printed = match[1].split(","), header.split(", ")
    # nvidia-smi takes the name that it prints as well as the short one.
    names = [*columns, *(cell.split(" [")[0] for cell in printed)]
    return dict(zip(names, printed * 2, strict=True)), dict(zip(names, row * 2, strict=True))


PROGRAM = """#!{python} -S
import signal, sys, time
header, row, before, after, ignores_sigterm = {header!r}, {row!r}, {before!r}, {after!r}, {ignores_sigterm!r}
columns = sys.argv[1].removeprefix("--query-gpu=").split(",")
assert sys.argv[2:5] == ["--format=csv,nounits", "-i", "{uuid}"] and sys.argv[5] == "-lms", sys.argv
for column in columns:
    if column not in header:
        print('Field "%s" is not a valid field to query.\\n' % column)
        sys.exit(2)
if ignores_sigterm:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(before, end="", flush=True)
print(", ".join(header[column] for column in columns), flush=True)
print(", ".join(row[column] for column in columns), flush=True)
if after:
    sys.stderr.write(after)
    sys.exit(15)
while True:
    time.sleep(int(sys.argv[6]) / 1e3)
    print(", ".join(row[column] for column in columns), flush=True)
"""


@dataclasses.dataclass
class Program:
    """A stand-in for nvidia-smi that prints the recorded row again and again."""

    path: Path
    header: dict[str, str]
    row: dict[str, str]
    before: str = ""
    after: str = ""
    ignores_sigterm: bool = False

    def write(self) -> str:
        settings = {key: value for key, value in vars(self).items() if key != "path"}
        self.path.write_text(PROGRAM.format(python=sys.executable, uuid=UUID, **settings))
        self.path.chmod(0o755)
        return str(self.path)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    header, row = _recorded()
    program = Program(tmp_path / "nvidia-smi", header, row)
    program.write()
    return program


class TestSmiListener(ProgramListenerContract):
    """nvidia-smi, played by a program that prints what a real one printed."""

    listener = SmiListener

    @pytest.fixture
    def stand_in(self, program: Program) -> Program:
        return program

    def _first(self, program: Program) -> dict[str, float]:
        sink = Collected()
        with SmiListener(1000, program=program.write()).observe(OneDevice(), sink):
            return sink[0].values

    def test_values_are_those_of_the_recording(self, program: Program) -> None:
        assert self._first(program) == {
            "power_w": 74.93,
            "memory_used_mib": 0,
            "utilization_gpu_pct": 0,
            "utilization_memory_pct": 0,
            "sm_clock_mhz": 345,
            "memory_clock_mhz": 2619,
            "temperature_c": 41,
            "pstate": 0,
        }

    @pytest.mark.parametrize("cell", ["[N/A]", "[Not Supported]", "N/A", "[Unknown Error]", ""])
    def test_what_is_not_available_is_absent(
        self, program: Program, cell: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        program.row["power.draw"] = cell
        values = self._first(program)
        assert "power_w" not in values
        assert "temperature_c" in values
        assert not caplog.records, "that is normal and no reason to warn"

    @pytest.mark.parametrize("cell", ["74.93 W", "nan", "P?"])
    def test_what_is_no_number_is_absent_with_a_warning(
        self, program: Program, cell: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        program.row["power.draw"] = cell
        assert "power_w" not in self._first(program)
        assert "power.draw" in caplog.text

    def test_columns_are_found_by_name(self, program: Program, caplog: pytest.LogCaptureFixture) -> None:
        program.header["power.draw"] = "power.draw.average [W]"
        values = self._first(program)
        assert "power_w" not in values
        assert values["temperature_c"] == 41
        assert "no column power.draw" in caplog.text

    def test_a_field_that_this_nvidia_smi_does_not_know_is_left_out(
        self, program: Program, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert 'Field "nope" is not a valid field to query.' in (DATA / "h100" / "query_bad.txt").read_text()
        del program.header["utilization.memory"], program.header["pstate"]
        values = self._first(program)
        assert values.keys() >= {"power_w", "temperature_c"}
        assert not {"utilization_memory_pct", "pstate"} & values.keys()
        assert "does not support utilization.memory" in caplog.text
        assert "does not support pstate" in caplog.text

    def test_a_field_that_only_the_real_nvidia_smi_knows_is_left_out_of_a_simulated_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(SmiListener, "fields", (*SmiListener.fields, Field("power.limit", "power_limit_w", "W")))
        sink, group = Collected(), OneDevice(Machine.make(tmp_path).rehearsed)
        with SmiListener(1000).observe(group, sink):
            assert "memory_used_mib" in sink[0].values
        assert "does not support power.limit, which is left out" in caplog.text

    def test_a_program_that_knows_no_field_is_an_error(self, program: Program) -> None:
        program.header.clear()
        with pytest.raises(ListenerError, match="supports none of its columns"):
            self._first(program)

    def test_lines_that_are_no_rows_are_no_samples(self, program: Program) -> None:
        program.before = "WARNING: infoROM is corrupted at gpu 0000:00:06.0\n\n"
        assert self._first(program)["power_w"] == 74.93

    def test_an_early_end_tells_status_and_last_words(self, program: Program) -> None:
        program.after = "Unable to determine the device handle for GPU0: Unknown Error\n"
        listener = SmiListener(1000, program=program.write())
        with (
            pytest.raises(ListenerError, match=r"status 15.*Unable to determine"),
            listener.observe(OneDevice(), Collected()),
        ):
            wait_until(lambda: thread_of(listener) is None)

    def test_a_gpu_that_it_does_not_find_is_an_error(self, tmp_path: Path) -> None:
        program = tmp_path / "nvidia-smi"
        _, words, _ = (DATA / "h100" / "query_i9.txt").read_text().splitlines()
        program.write_text(f"#!/bin/sh\necho {words}; exit 6\n")
        program.chmod(0o755)
        listening = SmiListener(1000, program=str(program)).observe(OneDevice(), Collected())
        with pytest.raises(ListenerError, match=r"status 6.*No devices were found"), listening:
            pytest.fail("there is no GPU")

    def test_one_that_says_nothing_is_an_error_in_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text("#!/bin/sh\nexec sleep 60\n")
        program.chmod(0o755)
        monkeypatch.setattr(SmiListener, "start_limit_s", 0.3)
        listening = SmiListener(1000, program=str(program)).observe(OneDevice(), Collected())
        with pytest.raises(ListenerError, match="no sample"), listening:
            pytest.fail("it said nothing")
