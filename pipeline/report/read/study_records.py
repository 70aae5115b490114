"""The records of an experiment that a report reads. The jobs of a row are its measured jobs, without co-runners."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base.domain import work_units
from pipeline.base.domain.layout import REHEARSAL
from pipeline.base.domain.machine_state import MachineState
from pipeline.base.domain.marks import NO_MARKS, Marks
from pipeline.base.domain.records import CO_RUNNERS, OTHER_GPUS, Result
from pipeline.base.domain.service_figures import OBJECTIVE
from pipeline.base.domain.sharing_modes import PARTITION, PROFILE, SERIAL, SharingMode
from pipeline.base.domain.window import DIAL, SETTLE_S, TURN_S, Place, WindowKind, parse_turns
from pipeline.base.system.errors import TrackingError
from pipeline.record.group_record import PACK, GroupRecord
from pipeline.report.read.labels import JobLabel


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job of a group.

    Attributes:
        run_id: id of the job's run; empty before MLflow has the run.
        label, digest: label and digest of the job's workload; equal labels mean equal programs.
        words: the part of the label in parentheses.
        size: letter of the job in a mix.
        program_digest: digest of the program without its environment.
        environment: digest of the job's own environment, if `params` name that of an equal case.
        place: facts of the job's placement: `device`, `gi_id`, `mig_profile`, ...
        start_ns, end_ns: start and end of the job's work, on the monotonic clock.
    """

    index: int
    run_id: str = ""
    label: str
    words: str = ""
    digest: str
    program_digest: str = ""
    environment: str = ""
    size: str | None
    result: Result | None
    metrics: Mapping[str, float]
    params: Mapping[str, str]
    place: Mapping[str, str]
    start_ns: int | None
    end_ns: int | None

    @property
    def unit(self) -> str:
        """The work unit of the job; empty if it is unknown."""
        return self.params.get(work_units.PARAM) or next(iter(work_units.find_common_units([self.metrics])), "")

    @property
    def is_rate_given(self) -> bool:
        """True if the user chose the rate of the job."""
        return work_units.GIVEN_RATE in self.params


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One group of a study, run once.

    Attributes:
        key: identity of the group, equal in every block.
        sharing, detail: parts of `mode`.
        profiles: profiles of the group's MIG instances, the largest first.
        options: options of the sharing mode, as requested or applied.
        settings: window, seed, device, ...; only rows with equal settings are compared.
        setting: the settings in which the row differs from other rows of the same jobs, in words.
        marks: why an `ok` row is invalid, and notes.
        start_ms, end_ms: start and end by the wall clock, since the epoch.
        start: id of the start of the orchestrator (tag `collocation.study`).
        co_runner_jobs: the jobs that loaded the device beside the measured ones.
        facts: provenance and notes of the record.
        later_plans: facts that differ in each plan that reuses the result, oldest first.
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
    co_runner_jobs: tuple[JobRow, ...] = ()
    facts: Mapping[str, str]
    later_plans: tuple[Mapping[str, str], ...] = ()
    store: Path | str = ""

    @property
    def is_valid(self) -> bool:
        """True if the row ended `ok` and no mark makes its figures invalid."""
        return self.result is Result.OK and not self.marks.invalid

    @property
    def run_in_block(self) -> tuple[str, int]:
        """The key of the group, and the number of this run of the group in its block."""
        return self.key, int(self.facts.get("baseline_run", "1"))

    @property
    def machine_state(self) -> MachineState:
        """The state of the machine during the run."""
        return MachineState.from_facts({**self.facts, "gpu_uuid": self.gpu_uuid, "boot_id": self.boot_id})

    @property
    def mode(self) -> str:
        """The label of the sharing mode: `naive`, `MPS 25 %`, `MIG 2g.10gb`."""
        return f"{self.sharing.word} {self.detail}".strip()

    @property
    def window_s(self) -> float | None:
        """The length of the window; `None` if unknown."""
        if "window_s" in self.metrics:
            return self.metrics["window_s"]
        begin, end = self.facts.get("window_start_ns", ""), self.facts.get("window_end_ns", "")
        return (int(end) - int(begin)) / 1e9 if begin.isdecimal() and end.isdecimal() else None

    @property
    def device_label(self) -> str:
        """The name of the device; `simulated NAME` for a simulated device."""
        name = self.device or "unknown device"
        return f"simulated {name}" if self.is_simulated else name

    @property
    def plan(self) -> str:
        """The identity of the plan, which all starts of a resumed study share."""
        return self.facts.get("plan") or self.start

    @property
    def plan_of_any_gpu(self) -> str:
        """The identity of the plan, which the same study on other GPU models shares."""
        return self.facts.get("plan_any_gpu") or self.plan

    @property
    def degree(self) -> int:
        return len(self.jobs)

    @property
    def co_runners(self) -> str:
        """The co-runners of the jobs, in words; empty without co-runners."""
        return dict(self.settings).get(CO_RUNNERS, "")

    @property
    def multiprocessors(self) -> int | None:
        """The multiprocessors of the first job's GPU instance or partition, else of the device; `None` if unknown."""
        if self.sharing.placement_fact in (PROFILE, PARTITION):
            key = PARTITION if self.sharing.placement_fact == PARTITION else "mig_multiprocessors"
            number = self.jobs[0].place.get(key, "") if self.jobs else ""
        else:
            number = self.facts.get("multiprocessors", "")
        return int(number) if number.isdecimal() else None

    @property
    def beside(self) -> str:
        """The number of other GPUs of the host that worked at the same time; empty if none did."""
        return dict(self.settings).get(OTHER_GPUS, "")

    @property
    def is_pack(self) -> bool:
        """True if the jobs are trials that come and go."""
        return PACK in self.params

    @property
    def is_mix(self) -> bool:
        return len({job.label for job in self.jobs}) > 1

    @property
    def unit(self) -> str:
        """The work unit that all jobs have in common; empty if the jobs have different units."""
        job_units = {job.unit for job in self.jobs}
        return job_units.pop() if len(job_units) == 1 else ""

    @property
    def called(self) -> tuple[JobLabel, ...]:
        """The labels of the jobs."""
        return tuple(JobLabel(job.label, job.size, job.words) for job in self.jobs)

    @property
    def is_sequential(self) -> bool:
        return self.sharing == SERIAL


@dataclass(frozen=True, slots=True, kw_only=True)
class StressorCounters:
    """Means of hardware counters while a stressor alone loaded one resource, in one block.

    Attributes:
        place: resource and dial; an idle turn has the resource `IDLE`.
        num_cpus: number of CPUs that the study could use; `None` if unknown.
        means: mean of each counter that was read, by the name of its quantity.
    """

    device: str
    gpu_uuid: str
    block: int
    place: Place
    num_cpus: int | None
    means: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One repeat of a study on one kind of device, in one machine state.

    Attributes:
        num_expected: number of different groups in all blocks.
        num_missing: number of these groups without a finding in this block.
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
        rows: one row for each group and block, by block and start.
        left_out: number of runs that are not among the rows, by reason.
        num_planned: number of groups in all blocks of the newest plans; `None` if unknown.
        not_shown: starts of the orchestrator without any of these rows, the newest first.
        not_drawn: a sentence on each figure that cannot be drawn.
        choice: options of the report that chose these rows.
        environments: sentences on the packages of each environment except the first, compared with the first, and on
            what pooled rows differ in.
        counters: counters of stressors that ran alone; empty unless the report has read them.
        facts: all values of each fact of the rows, by its name (versions, commands, commits).
    """

    experiment: str
    rows: tuple[Row, ...]
    blocks: tuple[Block, ...]
    left_out: Mapping[str, int]
    num_planned: int | None
    facts: Mapping[str, tuple[str, ...]]
    not_shown: tuple[str, ...] = ()
    not_drawn: tuple[str, ...] = ()
    choice: str = ""
    environments: tuple[str, ...] = ()
    counters: tuple[StressorCounters, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.device for row in self.rows))

    @property
    def is_simulated(self) -> bool:
        return any(row.is_simulated for row in self.rows)

    @property
    def is_rehearsal(self) -> bool:
        """True if the figures mean nothing: on a simulated GPU, or with small workloads."""
        return self.is_simulated or self.experiment.endswith(REHEARSAL)

    @property
    def num_complete_blocks(self) -> int:
        """The number of blocks in which every group of the study has a result."""
        return sum(block.num_missing == 0 for block in self.blocks)


def check_record(group: GroupRecord, store: Path | str) -> None:
    """Check the notes and params of a group and its jobs.

    Raises:
        TrackingError: a value has another form than this project records.
    """
    for run in (group, *group.jobs):
        for kind, values, forms in (("note", run.notes, _NOTES), ("param", run.params, _PARAMS)):
            for key in forms.keys() & values.keys():
                try:
                    forms[key](values[key])
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                    raise TrackingError(
                        f"run {run.run_id} in {store} has an impossible {kind} {key}={values[key][:40]!r}; "
                        "delete the run"
                    ) from error


def _check_figures(text: str) -> None:
    for facts in json.loads(text).values():
        "".join((facts["title"], facts["unit"], facts["summary"]))


def _check_list(text: str, convert: Callable[[Any], object] = str) -> None:
    for part in list(json.loads(text)):
        convert(part)


_NOTES: Mapping[str, Callable[[str], object]] = {
    **dict.fromkeys(("rates", "first_losses"), lambda text: json.loads(text).items()),
    "turns": parse_turns,
    "figures": _check_figures,
}
_PARAMS: Mapping[str, Callable[[str], object]] = {
    **dict.fromkeys((DIAL, TURN_S, SETTLE_S, OBJECTIVE), float),
    "resources": _check_list,
    "dials": lambda text: _check_list(text, float),
}
