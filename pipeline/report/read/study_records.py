"""The records of an experiment that a report reads. The jobs of a row are the measured ones, without co-runners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain import work_units
from pipeline.base.domain.machine_state import MachineState
from pipeline.base.domain.marks import NO_MARKS, Marks
from pipeline.base.domain.records import CO_RUNNERS, OTHER_GPUS, Result, WindowKind
from pipeline.base.domain.sharing_modes import PARTITION, PROFILE, SERIAL, SharingMode
from pipeline.report.read.labels import JobLabel


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job of a group.

    Attributes:
        run_id: empty before MLflow has the run.
        label, digest: of its workload; equal labels are equal programs.
        words: the part of the label in parentheses.
        size: its letter in a mix.
        place: `device`, `gi_id`, `mig_profile`, ...
        start_ns, end_ns: of its work; monotonic clock.
    """

    index: int
    run_id: str = ""
    label: str
    words: str = ""
    digest: str
    size: str | None
    result: Result | None
    metrics: Mapping[str, float]
    params: Mapping[str, str]
    place: Mapping[str, str]
    start_ns: int | None
    end_ns: int | None

    @property
    def unit(self) -> str:
        """The work unit of the job."""
        return self.params.get(work_units.PARAM, work_units.SAMPLES)

    @property
    def is_rate_given(self) -> bool:
        """True if the user chose its rate."""
        return work_units.GIVEN_RATE in self.params


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One group of a study, run once.

    Attributes:
        key: the same for this group in every block.
        sharing, detail: parts of `mode`.
        profiles: of its MIG instances, the largest first.
        options: of the scenario, as given or applied.
        settings: window, seed, device, ...; rows are compared only if they are equal.
        setting: the settings in which it differs from other rows of the same jobs, in words.
        marks: why an `ok` row is invalid, and notes.
        start_ms, end_ms: wall clock, since the epoch.
        start: id of the start of the orchestrator (tag `collocation.study`).
        facts: provenance, from the tags of the run.
    """

    run_id: str
    key: str
    name: str
    scenario: str
    sharing: SharingMode
    detail: str = ""
    profiles: tuple[str, ...] = ()
    options: Mapping[str, object]
    setting: str = ""
    settings: tuple[tuple[str, str], ...]
    block: int
    result: Result
    reason: str
    marks: Marks = NO_MARKS
    metrics: Mapping[str, float]
    params: Mapping[str, str]
    window: WindowKind
    device: str
    gpu_uuid: str
    boot_id: str
    is_simulated: bool
    start_ms: int
    end_ms: int | None
    start: str
    jobs: tuple[JobRow, ...]
    facts: Mapping[str, str]
    store: Path | str = ""

    @property
    def is_valid(self) -> bool:
        """True if it ended well and its figures may be compared."""
        return self.result is Result.OK and not self.marks.invalid

    @property
    def machine_state(self) -> MachineState:
        """The state of the machine in which it ran."""
        return MachineState.from_facts({**self.facts, "gpu_uuid": self.gpu_uuid, "boot_id": self.boot_id})

    @property
    def mode(self) -> str:
        """Label of its sharing mode: `naive`, `MPS 25 %`, `MIG 2g.10gb`."""
        return f"{self.sharing.word} {self.detail}".strip()

    @property
    def window_s(self) -> float | None:
        """The length of its window; `None` if unknown."""
        if "window_s" in self.metrics:
            return self.metrics["window_s"]
        begin, end = self.facts.get("window_start_ns", ""), self.facts.get("window_end_ns", "")
        return (int(end) - int(begin)) / 1e9 if begin.isdigit() and end.isdigit() else None

    @property
    def device_in_words(self) -> str:
        """Its device; `simulated NAME` for a simulated one."""
        name = self.device or "unknown device"
        return f"simulated {name}" if self.is_simulated else name

    @property
    def plan(self) -> str:
        """The identity of its plan, which the starts of a resumed study share."""
        return self.facts.get("plan") or self.start

    @property
    def plan_of_any_gpu(self) -> str:
        """The identity of its plan, shared by the same study on other GPU models."""
        return self.facts.get("plan_any_gpu") or self.plan

    @property
    def degree(self) -> int:
        return len(self.jobs)

    @property
    def co_runners(self) -> str:
        """The co-runners of its jobs, in words; empty if there are none."""
        return dict(self.settings).get(CO_RUNNERS, "")

    @property
    def multiprocessors(self) -> int | None:
        """Multiprocessors of the first job's GPU instance or partition, else of the device; `None` if not known."""
        if self.sharing.placement_fact in (PROFILE, PARTITION):
            key = PARTITION if self.sharing.placement_fact == PARTITION else "mig_multiprocessors"
            number = self.jobs[0].place.get(key, "") if self.jobs else ""
        else:
            number = self.facts.get("multiprocessors", "")
        return int(number) if number.isdigit() else None

    @property
    def beside(self) -> str:
        """The number of other GPUs of the host that worked; empty if none did."""
        return dict(self.settings).get(OTHER_GPUS, "")

    @property
    def is_mix(self) -> bool:
        return len({job.label for job in self.jobs}) > 1

    @property
    def unit(self) -> str:
        """The work unit that all its jobs have in common; empty if they have none."""
        job_units = {job.unit for job in self.jobs}
        return job_units.pop() if len(job_units) == 1 else ""

    @property
    def called(self) -> tuple[JobLabel, ...]:
        """The label of each of its jobs."""
        return tuple(JobLabel(job.label, job.size, job.words) for job in self.jobs)

    @property
    def is_sequential(self) -> bool:
        return self.sharing == SERIAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One repeat on one kind of device, in one machine state.

    Attributes:
        num_expected: groups that any block has.
        num_missing: those of them without a finding in this block.
    """

    number: int
    device: str
    machine_state: MachineState
    num_groups: int
    num_expected: int
    num_missing: int

    @property
    def gpu_uuid(self) -> str:
        return dict(self.machine_state.facts).get("gpu_uuid", "")

    @property
    def boot_id(self) -> str:
        return dict(self.machine_state.facts).get("boot_id", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The rows of the newest plan of each part of an experiment.

    Attributes:
        rows: one for each group and block, by block and start.
        left_out: number of runs that are not among the rows, by reason.
        num_planned: groups in all blocks of the newest plans; `None` if unknown.
        not_shown: starts of the orchestrator without any of these rows, the newest first.
        choice: options of the report that chose these rows.
        environments: how the packages of jobs differ, a sentence for each environment but the first.
        facts: by name, every value that the rows have (versions, commands, commits).
    """

    experiment: str
    rows: tuple[Row, ...]
    blocks: tuple[Block, ...]
    left_out: Mapping[str, int]
    num_planned: int | None
    facts: Mapping[str, tuple[str, ...]]
    not_shown: tuple[str, ...] = ()
    choice: str = ""
    environments: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.device for row in self.rows))

    @property
    def is_simulated(self) -> bool:
        return any(row.is_simulated for row in self.rows)

    @property
    def num_complete_blocks(self) -> int:
        """Blocks in which every group of the study has a result."""
        return sum(block.num_missing == 0 for block in self.blocks)
