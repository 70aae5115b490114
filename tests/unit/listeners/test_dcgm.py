"""The listeners of dcgmi and nvidia-smi over programs that play them: real processes, pipes and signals."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from listeners import dcgm, program_listener
from listeners.dcgm import DcgmListener
from listeners.gpm import GpmListener
from listeners.smi import SmiListener
from pipeline.base.domain.records import Device, Slot
from pipeline.base.domain.samples import Field
from pipeline.base.system.errors import ListenerError
from tests.conftest import DATA
from tests.support.listener_contract import Collected, OneDevice, ProgramListenerContract, thread_of, wait_until
from tests.support.nvml_library import UUID
from tests.support.programs import write_script
from tests.support.simulated import Machine

# Short name and width of each field in DCGM 4.6.
FIELDS = {
    **{str(1001 + place): (name, 5) for place, name in enumerate(["GRACT", "SMACT", "SMOCC", "TENSO", "DRAMA"])},
    **{str(1006 + place): (name, 5) for place, name in enumerate(["FP64A", "FP32A", "FP16A"])},
    **{str(1009 + place): (name, 20) for place, name in enumerate(["PCITX", "PCIRX", "NVLTX", "NVLRX"])},
}
# Two busy blocks of an A100: GRACT, SMACT, SMOCC, TENSO and DRAMA were measured.
VALUES = {
    "1001": "0.999", "1002": "0.856", "1003": "0.624", "1004": "0.008", "1005": "0.000", "1006": "0.000",
    "1007": "0.512", "1008": "0.001", "1009": "13107200", "1010": "52428800", "1011": "0", "1012": "1048576",
}  # fmt: skip
READ = {
    "gract_ratio": 0.999,
    "smact_ratio": 0.856,
    "smocc_ratio": 0.624,
    "tensor_active_ratio": 0.008,
    "dram_active_ratio": 0.0,
    "fp64_active_ratio": 0.0,
    "fp32_active_ratio": 0.512,
    "fp16_active_ratio": 0.001,
    "pcie_tx_mib_per_s": 12.5,
    "pcie_rx_mib_per_s": 50.0,
    "nvlink_tx_mib_per_s": 0.0,
    "nvlink_rx_mib_per_s": 1.0,
}
REFUSED = "Error setting watches. Result: -6: Feature not supported"
NO_ENGINE = """Error: unable to establish a connection to the specified host: localhost
Error: Unable to connect to host engine. Host engine connection invalid/disconnected."""
PROGRAM = """#!{python} -S
import json, signal, sys, time
with open(__file__ + ".json") as file:
    play = json.load(file)
arguments = sys.argv[1:]
with open(__file__ + ".log", "a+") as file:
    file.seek(0)
    before = [json.loads(line) for line in file]
    file.write(json.dumps(arguments) + "\\n")
if play["engine_is_down"]:
    print(play["engine_is_down"])
    sys.exit(235)
if arguments[0] == "discovery":
    if arguments[1] == "-l" or before.count(arguments) >= play["hierarchy_is_late_by"]:
        print(play["discovery"][arguments[1]], end="")
    sys.exit(0)
options = dict(zip(arguments[1::2], arguments[2::2]))
ids = options["-e"].split(",")
count, delay_s = int(options.get("-c", 0)), int(options["-d"]) / 1e3
labels = [target.replace("gpu:", "GPU ").replace("i:", "GPU-I ") for target in options["-i"].split(",")]
if play["ignores_sigterm"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
def show(label, cells):
    print(label.ljust(16) + "".join(cell.ljust(play["fields"][id][1] + 8) for cell, id in zip(cells, ids)))
def show_header():
    show("#Entity", [play["fields"][id][0] for id in ids])
    print("ID", flush=True)
print(play["first"], end="")
if play["replay"]:
    print(play["replay"], flush=True, end="")
    time.sleep(60)
show_header()
if set(ids) & set(play["refused"]) or len(ids) > play["most_together"]:
    print("\\n" + play["refusal"])
    sys.exit(play["refusal_status"])
number = 0
while True:
    for label in labels:
        cells = play["rows"].get(label, play["values"])
        show(label, [cells.get(id, "") for id in ids])
    print(end="", flush=True)
    number += 1
    if number == count:
        break
    while play["chatter"]:
        print(play["chatter"], flush=True)
        time.sleep(0.05)
    if play["last"]:
        print(play["last"])
        sys.exit(241)
    time.sleep(delay_s)
    if number % 2 == 0:
        show_header()
"""


@dataclass
class Dcgmi:
    """A program that plays dcgmi in front of an engine that knows two GPUs; ours is its number 1.

    Attributes:
        rows: cells by field id of single entities, instead of `values`.
        refused: fields that the engine does not group; it refuses all of a list for one of them.
        most_together: how many fields it watches at once.
        hierarchy_is_late_by: how often the list of instances is asked for in vain.
        replay: a whole output, instead of one made from the rows.
        first, chatter, last: said before the table; again and again after the first rows; after them, before it ends.
    """

    path: Path
    values: dict[str, str] = field(default_factory=lambda: dict(VALUES))
    rows: dict[str, dict[str, str]] = field(default_factory=dict)
    fields: dict[str, tuple[str, int]] = field(default_factory=lambda: dict(FIELDS))
    discovery: dict[str, str] = field(
        default_factory=lambda: {f"-{kind}": (DATA / f"dcgmi_discovery_{kind}.txt").read_text() for kind in "lc"}
    )
    hierarchy_is_late_by: int = 0
    engine_is_down: str = ""
    refused: tuple[str, ...] = ()
    refusal: str = REFUSED
    refusal_status: int = 250
    most_together: int = 99
    replay: str = ""
    first: str = ""
    chatter: str = ""
    last: str = ""
    ignores_sigterm: bool = False

    def write(self) -> str:
        Path(f"{self.path}.json").write_text(
            json.dumps({key: value for key, value in vars(self).items() if key != "path"})
        )
        self.path.write_text(PROGRAM.format(python=sys.executable))
        self.path.chmod(0o755)
        return str(self.path)

    def list_calls(self, kind: str) -> list[list[str]]:
        """The calls of one kind, in order."""
        calls = [json.loads(line) for line in Path(f"{self.path}.log").read_text().splitlines()]
        return [call for call in calls if call[0] == kind]

    def first_samples(self, *gi_ids: int | None, count: int = 1) -> Collected:
        group, sink = OneDevice(), Collected()
        group.slots = tuple(Slot(visible_devices="", gi_id=gi_id) for gi_id in gi_ids)  # type: ignore[assignment]
        with DcgmListener(1000, program=self.write()).observe(group, sink):
            wait_until(lambda: len(sink) >= count)
        return sink


@pytest.fixture
def dcgmi(tmp_path: Path) -> Dcgmi:
    dcgmi = Dcgmi(tmp_path / "dcgmi")
    dcgmi.write()
    return dcgmi


class TestDcgmListener(ProgramListenerContract):
    """The contract, over a program that plays dcgmi."""

    listener = DcgmListener

    @pytest.fixture
    def stand_in(self, dcgmi: Dcgmi) -> Dcgmi:
        return dcgmi


def test_values_are_in_the_units_of_their_names(dcgmi: Dcgmi) -> None:
    sample = dcgmi.first_samples(None)[0]
    assert sample.gi_id is None
    assert sample.values == pytest.approx(READ)


def test_fields_can_be_compared_with_those_of_gpm() -> None:
    dcgm_fields, gpm_fields = (
        [(field.name, field.unit) for field in listener.fields] for listener in (DcgmListener, GpmListener)
    )
    assert dcgm_fields == gpm_fields


def test_the_gpu_is_found_by_uuid_and_fields_are_asked_for_by_id(dcgmi: Dcgmi) -> None:
    dcgmi.first_samples()
    ids = ",".join(FIELDS)
    assert dcgmi.list_calls("dmon") == [["dmon", "-e", ids, "-i", "gpu:1", "-d", "1000"]]


def test_instances_are_asked_for_by_entity_and_told_apart_by_nvml_id(dcgmi: Dcgmi) -> None:
    """The other GPU has an instance 2 too, and 13 begins like 1."""
    dcgmi.rows = {"GPU-I 7": {"1001": "0.250"}, "GPU-I 8": {"1001": "0.750"}}
    samples = dcgmi.first_samples(13, 2, 13, count=3)
    assert dcgmi.list_calls("dmon")[0][4] == "gpu:1,i:7,i:8"
    assert [(sample.gi_id, sample.values["gract_ratio"]) for sample in samples] == [
        (None, 0.999),
        (2, 0.25),
        (13, 0.75),
    ]


def test_an_instance_that_the_engine_sees_late_is_waited_for(dcgmi: Dcgmi) -> None:
    dcgmi.hierarchy_is_late_by = 1
    assert [sample.gi_id for sample in dcgmi.first_samples(2, count=2)] == [None, 2]
    assert len([call for call in dcgmi.list_calls("discovery") if call[1] == "-c"]) == 2


def test_an_instance_that_the_engine_does_not_know_is_left_out_with_a_warning(
    dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dcgm, "_NEW_INSTANCE_LIMIT_S", 0.1)
    assert [sample.gi_id for sample in dcgmi.first_samples(1, 2, count=2)][:2] == [None, 2]
    assert "does not list GPU instance 1" in caplog.text


@pytest.mark.parametrize("layout", ["v4", "v3", "v2"])
def test_a_blank_cell_shifts_nothing(dcgmi: Dcgmi, layout: str) -> None:
    dcgmi.replay = (DATA / f"dcgmi_dmon_{layout}.txt").read_text()
    samples = dcgmi.first_samples(2, 13, count=6)
    assert [sample.gi_id for sample in samples] == [None, 2, 13] * 2, "the header that is repeated is no row"
    device, blank, full = samples[3:]
    assert device.values == pytest.approx(
        READ | {"gract_ratio": 0.845, "smact_ratio": 0.84, "dram_active_ratio": 0.3}, rel=1e-9
    )
    assert blank.values == {
        "gract_ratio": 0.986,
        "smact_ratio": 0.97,
        "smocc_ratio": 0.691,
        "dram_active_ratio": 0.33,
        "fp32_active_ratio": 0.6,
        "fp16_active_ratio": 0.002,
    }
    assert full.values == {
        "gract_ratio": 0.986,
        "smact_ratio": 0.934,
        "smocc_ratio": 0.653,
        "tensor_active_ratio": 0.009,
        "dram_active_ratio": 0.33,
        "fp64_active_ratio": 0.0,
        "fp32_active_ratio": 0.61,
        "fp16_active_ratio": 0.001,
    }


@pytest.mark.parametrize("column", ["SMXYZ", "     "])
def test_a_column_of_another_name_is_absent_with_one_warning(
    dcgmi: Dcgmi, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    recording = (DATA / "dcgmi_dmon_v4.txt").read_text()
    assert recording.count("SMACT") == 2, "the header comes twice"
    dcgmi.replay = recording.replace("SMACT", column).replace("0.840", "0.840" if column.strip() else "     ")
    for sample in dcgmi.first_samples(count=2):
        assert sample.values == pytest.approx(
            {name: value for name, value in READ.items() if name != "smact_ratio"}
            | {"gract_ratio": 0.845, "dram_active_ratio": 0.3}
        )
    assert caplog.text.count("no column SMACT") == 1


def test_a_row_of_an_entity_that_was_not_asked_for_is_no_sample(dcgmi: Dcgmi) -> None:
    header, units, row = (DATA / "dcgmi_dmon_v4.txt").read_text().splitlines()[:3]
    foreign_rows = [f"{label:16}{row[16:].replace('0.845', '0.111')}" for label in ("GPU 0", "GPU-I 1", "GPU-CI 1")]
    dcgmi.replay = "\n".join([header, units, *foreign_rows, row, ""])
    assert [(sample.gi_id, sample.values["gract_ratio"]) for sample in dcgmi.first_samples()] == [(None, 0.845)]


def test_cells_that_stand_below_no_column_are_no_row(dcgmi: Dcgmi) -> None:
    header, units, row = (DATA / "dcgmi_dmon_v4.txt").read_text().splitlines()[:3]
    torn = row[:16] + "   " + row[16:].replace("0.845", "", 1)
    dcgmi.replay = f"{header}\n{units}\n{torn}\n{row}\n"
    assert [sample.values["gract_ratio"] for sample in dcgmi.first_samples()] == [0.845]


@pytest.mark.parametrize("cell", ["N/A", "", "140737488355328.000", "140737488355330.000"])
def test_what_is_not_available_is_absent(dcgmi: Dcgmi, cell: str, caplog: pytest.LogCaptureFixture) -> None:
    dcgmi.values["1004"] = cell
    dcgmi.fields["1004"] = ("TENSO", 20)
    assert dcgmi.first_samples()[0].values == pytest.approx(
        {name: value for name, value in READ.items() if name != "tensor_active_ratio"}
    )
    assert not caplog.records, "that is normal and no reason to warn"


@pytest.mark.parametrize("cell", ["12...", "nan", "1,0"])
def test_what_is_no_number_is_absent_with_a_warning(dcgmi: Dcgmi, cell: str, caplog: pytest.LogCaptureFixture) -> None:
    dcgmi.values["1004"] = cell
    assert "tensor_active_ratio" not in dcgmi.first_samples()[0].values
    assert f"'{cell}' in column TENSO" in caplog.text


def test_a_row_of_nothing_is_no_sample(dcgmi: Dcgmi) -> None:
    """On Hopper the first row has no profiling figures yet."""
    header, units, row = (DATA / "dcgmi_dmon_v4.txt").read_text().splitlines()[:3]
    dcgmi.replay = f"{header}\n{units}\n{'GPU 1':16}{'N/A          ' * 8}\n{row}\n"
    assert [sample.values["gract_ratio"] for sample in dcgmi.first_samples()] == [0.845]


def test_lines_that_are_no_rows_are_no_samples(dcgmi: Dcgmi) -> None:
    dcgmi.first = "Warning: the engine is of another version\n\nGPU 1 has a fan\nGPU 0           0.1          0.1\n"
    assert dcgmi.first_samples()[0].values == pytest.approx(READ)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("status", [250, 0])
def test_a_field_that_is_refused_is_found_and_left_out(
    dcgmi: Dcgmi, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As on an L40S, which has no FP64 counter: the engine refuses the whole list and does not say why."""
    dcgmi.refused, dcgmi.refusal_status = ("1006",), status
    values = dcgmi.first_samples()[0].values
    assert values == pytest.approx({name: value for name, value in READ.items() if name != "fp64_active_ratio"})
    assert "refuses field 1006 (FP64A)" in caplog.text
    assert REFUSED in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.slow
def test_fields_that_are_too_many_together_are_dropped_from_the_end(
    dcgmi: Dcgmi, caplog: pytest.LogCaptureFixture
) -> None:
    dcgmi.most_together = 11
    assert dcgmi.first_samples()[0].values.keys() == READ.keys() - {"nvlink_rx_mib_per_s"}
    assert "1012 (NVLRX)" in caplog.text


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ("-34: doing so requires the host engine to be running as root.", r"running as root.*run it as root"),
        ("-33: This request is serviced by a module of DCGM that is not currently loaded", "profiling module"),
    ],
)
def test_an_engine_that_refuses_everything_is_an_error_with_its_words(dcgmi: Dcgmi, refusal: str, words: str) -> None:
    dcgmi.refused = tuple(FIELDS)
    dcgmi.refusal = f"Error setting watches. Result: {refusal}"
    with pytest.raises(ListenerError, match=rf"refuses every field .Error setting.*{words}") as refused:
        dcgmi.first_samples()
    assert ("run it as root" in str(refused.value)) == ("-34" in refusal)


def test_an_engine_that_does_not_answer_is_an_error_with_the_remedy(dcgmi: Dcgmi) -> None:
    dcgmi.engine_is_down = NO_ENGINE
    with pytest.raises(ListenerError, match=r"Unable to connect to host engine.*nv-hostengine"):
        dcgmi.first_samples()


@pytest.mark.parametrize("is_named", [False, True])
def test_a_missing_program_is_an_error_with_the_remedy(
    tmp_path: Path, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    named = {"program": str(tmp_path / "dcgmi")} if is_named else {}
    words = f"needs {tmp_path}/dcgmi; install NVIDIA DCGM" if is_named else "dcgmi, which is not on PATH; install"
    with pytest.raises(ListenerError, match=words), DcgmListener(1000, **named).observe(OneDevice(), Collected()):
        pytest.fail("there is no dcgmi")


def test_a_simulated_gpu_never_reaches_the_program_on_path(dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{dcgmi.path.parent}:{os.environ['PATH']}")
    simulated = OneDevice(Device(kind="simulated", uuid=UUID, name="H100"))
    for listener in (DcgmListener(1000), DcgmListener(1000, program=str(dcgmi.path))):
        with pytest.raises(ListenerError, match="simulated H100"), listener.observe(simulated, Collected()):
            pytest.fail("there is no dcgmi for it")
    assert not Path(f"{dcgmi.path}.log").exists(), "it was not even started"


def test_a_gpu_that_the_engine_does_not_know_is_an_error(dcgmi: Dcgmi) -> None:
    dcgmi.discovery["-l"] = dcgmi.discovery["-l"].replace(UUID, "GPU-0")
    with pytest.raises(ListenerError, match=f"does not list GPU {UUID}"):
        dcgmi.first_samples()


def test_an_engine_that_goes_away_is_an_error_with_its_words(dcgmi: Dcgmi) -> None:
    dcgmi.last = "Error getting values information. Return -21: Host engine connection invalid/disconnected"
    listener = DcgmListener(1000, program=dcgmi.write())
    with pytest.raises(ListenerError, match=r"status 241.*disconnected"), listener.observe(OneDevice(), Collected()):
        wait_until(lambda: thread_of(listener) is None)
    assert len(dcgmi.list_calls("dmon")) == 1, "that is no refusal, and nothing is tried again"


def test_one_that_says_nothing_is_an_error_in_time(dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DcgmListener, "start_limit_s", 1.0)
    dcgmi.replay = "\n"
    with pytest.raises(ListenerError, match="no sample"):
        dcgmi.first_samples()


def test_an_engine_whose_profiling_is_paused_is_an_error_in_time(dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcgm, "_BLANK_LIMIT_S", 0.3)
    dcgmi.values = dict.fromkeys(FIELDS, "N/A")
    with (
        pytest.raises(ListenerError, match=r"prints no values; .* profile --resume`"),
        DcgmListener(200, program=dcgmi.write()).observe(OneDevice(), Collected()),
    ):
        pytest.fail("there are no values")


def test_one_that_only_complains_is_an_error_with_its_words(dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DcgmListener, "start_limit_s", 2.0)
    monkeypatch.setattr(program_listener, "_END_LIMIT_S", 0.2)
    dcgmi.chatter = "Error getting values information"
    listener = DcgmListener(200, program=dcgmi.write())
    with (
        pytest.raises(
            ListenerError, match=r"no row for 2\.2 s; fix the cause that the program printed, .*: Error getting values"
        ),
        listener.observe(OneDevice(), Collected()),
    ):
        wait_until(lambda: thread_of(listener) is None)


def _read_recording() -> tuple[dict[str, str], dict[str, str]]:
    """Columns of the recorded query of an H100: as asked for to header, and to value (without unit)."""
    command, header, *_ = (DATA / "h100" / "query.txt").read_text().splitlines()
    row = (DATA / "h100" / "query_nounits.txt").read_text().splitlines()[1].split(", ")
    match = re.search(r"--query-gpu=(\S+)", command)
    assert match is not None
    columns, printed = match[1].split(","), header.split(", ")
    # nvidia-smi takes the name that it prints as well as the short one.
    names = [*columns, *(cell.split(" [")[0] for cell in printed)]
    return dict(zip(names, printed * 2, strict=True)), dict(zip(names, row * 2, strict=True))


SMI_PROGRAM = """#!{python} -S
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
        self.path.write_text(SMI_PROGRAM.format(python=sys.executable, uuid=UUID, **settings))
        self.path.chmod(0o755)
        return str(self.path)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    header, row = _read_recording()
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
        _, words, _ = (DATA / "h100" / "query_i9.txt").read_text().splitlines()
        program = write_script(tmp_path / "nvidia-smi", f"echo {words}; exit 6")
        listening = SmiListener(1000, program=str(program)).observe(OneDevice(), Collected())
        with pytest.raises(ListenerError, match=r"status 6.*No devices were found"), listening:
            pytest.fail("there is no GPU")

    def test_one_that_says_nothing_is_an_error_in_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program = write_script(tmp_path / "nvidia-smi", "exec sleep 60")
        monkeypatch.setattr(SmiListener, "start_limit_s", 0.3)
        listening = SmiListener(1000, program=str(program)).observe(OneDevice(), Collected())
        with pytest.raises(ListenerError, match="no sample"), listening:
            pytest.fail("it said nothing")
