"""The runs of an experiment as records: one `Row` a group, those alone that may stand beside each other.

`pipeline.report.selection` says which runs count, `pipeline.report.labels` what they are called.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import results
from pipeline.errors import ConfigError
from pipeline.report import labels, naming, selection
from pipeline.report.selection import Block
from pipeline.tags import GROUP, JOB, Tag, facts_of
from pipeline.types import Result, WindowKind

# Tags that are facts of a whole study, for provenance; params that jobs report of the software that they run.
_FACTS = (
    *("command_line", "git_commit", "git_changed", "host", "kernel", "cpus", "python", "driver_version"),
    *("cuda_version", "compute_capability", "multiprocessors", "persistence_mode", "compute_mode"),
    "plan",
)
_OPTION, _EXCLUSIVE = "scenario.", "exclusive_process"
_JOB_FACTS = ("torch", "timm", "cuda", "cudnn", "cublas")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job of a group.

    Attributes:
        label: of its workload; equal labels are equal programs.
        base_label: the label without the step mode: what eager, compiled and CUDA-graph runs share.
        digest: of its workload.
        size: the mix letter, if any.
        params: all params of its run.
        place: where it ran (`device`, `gi_id`, `mig_profile`, ...).
        start_ns, end_ns: of its work; monotonic clock.
    """

    index: int
    run_id: str
    name: str
    label: str
    base_label: str
    digest: str
    size: str | None
    result: Result | None
    reason: str
    metrics: Mapping[str, float]
    params: Mapping[str, str]
    place: Mapping[str, str]
    start_ns: int | None
    end_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One group of a study, run once.

    Attributes:
        digest: of the group in its block.
        key: the same for this group in every block.
        mode: label of the sharing mode (`naive`, `MPS 25 %`, `MIG 2g.10gb`).
        family: its kind, whatever the options: one of `labels.FAMILIES`.
        workloads: label of each job's workload.
        sizes: mix letter of each job, or `None`.
        setting: what tells the settings of this row (window, seed, ...) from others of its jobs; else empty.
        settings: these settings by name, all of which rows must share to be compared.
        is_mix: whether its jobs differ.
        is_sequential: whether its jobs ran one after another.
        flag: what is doubtful about a row that is `ok`, such as an overlap below the limit.
        start_ms, end_ms: wall clock, since the epoch.
        start: name of the start of the orchestrator that it belongs to.
        facts: provenance by name, as the run's tags have it.
        store: that holds its run.
    """

    run_id: str
    digest: str
    key: str
    name: str
    scenario: str
    mode: str
    family: str
    workloads: tuple[str, ...]
    sizes: tuple[str | None, ...]
    setting: str
    settings: tuple[tuple[str, str], ...]
    block: int
    result: Result
    reason: str
    flag: str
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
    def plan(self) -> str:
        """What tells its plan from others: of several starts where they name it (a resumed study), else of one."""
        return self.facts.get("plan") or self.start

    @property
    def degree(self) -> int:
        """How many jobs there are."""
        return len(self.workloads)

    @property
    def is_mix(self) -> bool:
        """Whether the jobs differ."""
        return len(set(self.workloads)) > 1

    @property
    def is_sequential(self) -> bool:
        """Whether this is a serial baseline."""
        return self.family == labels.SERIAL

    @property
    def options(self) -> dict[str, str]:
        """Options of the scenario, and what the GPU was made to be for it, by name."""
        return {key.removeprefix(_OPTION): value for key, value in _options(self.params).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What an experiment holds of its newest plan.

    Attributes:
        rows: one a group and block, in the order of block and start.
        blocks: each repeat, and how many of its groups have a result.
        left_out: number of runs that are not among the rows, by reason.
        num_planned: how many groups the newest plan of each store has in all its blocks; `None` where no run says.
        facts: by name, every value that the rows have (versions, commands, commits).
    """

    experiment: str
    rows: tuple[Row, ...]
    blocks: tuple[Block, ...]
    left_out: Mapping[str, int]
    num_planned: int | None
    facts: Mapping[str, tuple[str, ...]]

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices."""
        return tuple(dict.fromkeys(row.device for row in self.rows))

    @property
    def is_simulated(self) -> bool:
        """Whether anything here comes from a simulated GPU."""
        return any(row.is_simulated for row in self.rows)

    @property
    def num_complete_blocks(self) -> int:
        """Blocks in which every group of the study has a result."""
        return sum(block.num_missing == 0 for block in self.blocks)


def read(stores: Sequence[Path | str], experiment: str) -> Study:
    """The study in an experiment: of each group and block the newest finding, of each block one GPU and one boot.

    Args:
        stores: that have runs of it, such as those of several machines: folders of local stores, URIs of servers.
        experiment: MLflow experiment.

    Raises:
        ConfigError: two of the stores hold the same run, which would count twice.
        TrackingError: there is no such store or experiment.
    """
    found = [list(_rows_in(store, experiment)) for store in stores]
    held: dict[str, Path | str] = {}
    for row in (row for rows in found for row in rows if row is not None):
        if row.run_id in held:
            raise ConfigError(
                f"{held[row.run_id]} and {row.store} both hold run {row.run_id} of experiment {experiment!r}: "
                "one is a copy of the other, and its blocks would count twice; name one of them"
            )
        held[row.run_id] = row.store
    return study_of(experiment, *found)


def _rows_in(store: Path | str, experiment: str) -> Iterator[Row | None]:
    children: dict[str, list[Any]] = defaultdict(list)
    for run in results.find_runs(store, experiment, JOB):
        children[run.data.tags.get(Tag.PARENT_RUN, "")].append(run)
    for run in results.find_runs(store, experiment, GROUP):
        yield _raw(run, children.get(run.info.run_id, []), store)


def study_of(experiment: str, *found: Iterable[Row | None]) -> Study:
    """The study that rows make; `None` stands for a run that never got a result.

    Args:
        experiment: its name.
        found: the rows of each store. Each store has blocks of its own: those of the second follow those of the first.
    """
    rows: list[Row] = []
    num_without_result, num_blocks = 0, 0
    planned: list[int] = []
    for every in map(list, found):
        mine = [dataclasses.replace(row, block=row.block + num_blocks) for row in every if row is not None]
        num_without_result += len(every) - len(mine)
        num_blocks = max((row.block for row in mine), default=num_blocks)
        newest = max(mine, key=lambda row: row.start_ms, default=None)
        if newest is not None and newest.facts.get("plan_groups", "").isdigit():
            planned.append(int(newest.facts["plan_groups"]))
        rows += mine
    chosen = selection.choose(rows)
    left_out = {"no result: it runs, or was never closed": num_without_result, **chosen.left_out}
    named = naming.named(chosen.rows)
    return Study(
        experiment=experiment,
        rows=tuple(sorted(named, key=lambda row: (row.block, row.start_ms, row.run_id))),
        blocks=chosen.blocks,
        left_out={reason: number for reason, number in left_out.items() if number},
        num_planned=sum(planned) if planned else None,
        facts=_facts(named),
    )


def _raw(run: Any, children: Sequence[Any], store: Path | str) -> Row | None:
    """A run as a row, with labels that may not yet tell it from others; `None` if it has no result."""
    tags, params = run.data.tags, run.data.params
    facts = facts_of(tags)
    if run.info.status == "RUNNING" or facts.get("result") not in set(Result) or "digest" not in facts:
        return None
    if not children:
        return None
    jobs = tuple(sorted((_job(child) for child in children), key=lambda job: job.index))
    scenario = params.get("scenario", "")
    settings = _settings(params, facts)
    options = _options(params)
    return Row(
        run_id=run.info.run_id,
        digest=facts["digest"],
        key=repr((scenario, sorted(options.items()), [job.digest for job in jobs], settings)),
        name=run.info.run_name,
        scenario=scenario,
        mode="",
        family=labels.FAMILIES.get(scenario, scenario),
        workloads=tuple(job.label for job in jobs),
        sizes=tuple(job.size for job in jobs),
        setting="",
        settings=settings,
        block=int(facts["block"]) if facts.get("block", "").isdigit() else 1,
        result=Result(facts["result"]),
        reason=facts.get("reason", ""),
        flag=facts.get("flag", ""),
        metrics={key: value for key, value in run.data.metrics.items() if not key.startswith("system/")},
        params=params,
        window=WindowKind(params.get("window", WindowKind.STEADY)),
        device=facts.get("device", ""),
        gpu_uuid=facts.get("gpu_uuid", ""),
        boot_id=facts.get("boot_id", ""),
        is_simulated=facts.get("simulated") == "true",
        start_ms=run.info.start_time,
        end_ms=run.info.end_time,
        start=facts.get("study", ""),
        jobs=jobs,
        facts=facts,
        store=store,
    )


def _options(params: Mapping[str, str]) -> dict[str, str]:
    """The params that say how the GPU is shared. False is as good as absent: older runs lack `exclusive_process`."""
    options = {key: value for key, value in params.items() if key.startswith(_OPTION)}
    return options | ({_EXCLUSIVE: "true"} if params.get(_EXCLUSIVE) == "true" else {})


def _settings(params: Mapping[str, str], facts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if params.get("window") == WindowKind.WORK:
        epochs = params.get("window_epochs", "?")
        window = f"work, {epochs} epoch{'' if epochs == '1' else 's'}"
    else:
        window = f"steady, {params.get('window_seconds', '?')} s after {params.get('window_settle_s', '?')} s"
    return (
        ("device", ("simulated " if facts.get("simulated") == "true" else "") + facts.get("device", "")),
        ("window", window),
        ("seed", params.get("seed", "")),
        ("pinned CPUs", params.get("pin_cpus", "")),
        # Of a simulated GPU only; no name is ever left out, so that the settings of any two rows can be compared.
        ("memory of a job", f"{params['job_memory_mib']} MiB" if "job_memory_mib" in params else ""),
    )


def _job(run: Any) -> JobRow:
    tags, params = run.data.tags, run.data.params
    facts = facts_of(tags)
    index, workload = int(facts.get("index", "0")), params.get("workload", "")
    size = run.info.run_name.removeprefix(f"{index}-").removesuffix(workload).removesuffix("-")
    return JobRow(
        index=index,
        run_id=run.info.run_id,
        name=run.info.run_name,
        label=workload,
        base_label=workload,
        digest=facts.get("workload_digest", ""),
        size=size or None,
        result=Result(facts["result"]) if facts.get("result") in set(Result) else None,
        reason=facts.get("reason", ""),
        metrics={key: value for key, value in run.data.metrics.items() if not key.startswith("system/")},
        params=params,
        place={key[len("place.") :]: value for key, value in params.items() if key.startswith("place.")},
        start_ns=int(facts["start_ns"]) if facts.get("start_ns", "").isdigit() else None,
        end_ns=int(facts["end_ns"]) if facts.get("end_ns", "").isdigit() else None,
    )


def _facts(rows: Sequence[Row]) -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for row in rows:
        for name, value in row.facts.items():
            if name in _FACTS or (name.startswith("environment_") and name.endswith("_digest")):
                found[name][value] = None
        for job in row.jobs:
            for name in _JOB_FACTS:
                if reported := job.params.get(f"job.{name}"):
                    found[f"job_{name}"][reported] = None
        found["seed"][row.params.get("seed", "")] = None
    return {name: tuple(sorted(values)) for name, values in sorted(found.items())}
