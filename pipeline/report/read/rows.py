"""The runs of an experiment, read as one comparable row for each group."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.base.domain import stored_names
from pipeline.base.domain.marks import read_marks
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import mode_of
from pipeline.base.domain.tags import GROUP, JOB, Tag, list_facts_by_plan, read_facts
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.base.system.grouping import group_by
from pipeline.base.system.words import escape_controls
from pipeline.record.store import results
from pipeline.record.store.portable_paths import PortablePaths
from pipeline.report.read import hosts, row_labels, selection, stored_values
from pipeline.report.read.baseline_runs import average_runs
from pipeline.report.read.environments import name_environments
from pipeline.report.read.pooling import describe_pooled, pool_programs, pool_slices
from pipeline.report.read.selection import Choice, separate_simulated
from pipeline.report.read.study_records import JobRow, Row, Study

FACTS = {
    "command_line": "commands",
    "git_commit": "git commit",
    "git_changed": "uncommitted changes",
    "program_commit": "commit of the scripts",
    "plan": "plan",
    "precision_goal_pct": "precision goal of repeats=auto (%)",
    "seed": "seeds",
    "host": "host",
    "cpus": "CPUs",
    "cpu_model": "CPU model",
    "cpu_sockets": "CPU sockets",
    "numa_nodes": "NUMA nodes",
    "memory_mib": "memory of the host (MiB)",
    "os": "operating system",
    "kernel": "kernel",
    "driver_version": "driver",
    "cuda_version": "CUDA of the driver",
    "compute_capability": "compute capability",
    "multiprocessors": "multiprocessors",
    "replay": "replay of sensors and counters",  # of studies of earlier versions
    "persistence_mode": "persistence mode",
    "compute_mode": "compute mode",
    "power_limit_w": "power limit (W)",
    "ecc_mode": "ECC mode",
    "graphics_clock_setting_mhz": "graphics clock setting (MHz)",
    "memory_clock_setting_mhz": "memory clock setting (MHz)",
    "python": "Python",
    "job_torch": "torch",
    "job_timm": "timm",
    "job_transformers": "transformers",
    "job_cuda": "CUDA of torch",
    "job_cudnn": "cuDNN",
    "job_cublas": "cuBLAS",
}
"""Words for the facts of a study and of its jobs' software (`job_`), in the order of the page."""


def read(
    stores: Sequence[Path | str], experiment: str, *, pools_hosts: bool = True, choice: Choice | None = None
) -> Study:
    """Read the study in an experiment: the newest finding of each group and block, with one machine state per block.

    If an experiment has real and simulated rows, the simulated rows are left out unless `choice` names them.

    Raises:
        ConfigError: two stores have the same run, or `choice` names an unknown study or device.
        TrackingError: a store or the experiment does not exist.
    """
    by_store = _read_rows(stores, experiment)
    rows = list(filter(None, itertools.chain(*by_store)))
    if choice:
        choice = choice.check(rows)
        rows = [row for row in rows if choice.includes(row)]
    real, left_out = separate_simulated(rows)
    run_ids = {row.run_id for row in real}
    by_store = [[row for row in members if (row.run_id in run_ids if row else not choice)] for members in by_store]
    study = study_of(experiment, *by_store, pools_hosts=pools_hosts)
    return dataclasses.replace(
        study, left_out={**left_out, **study.left_out}, choice=choice.words if choice is not None else ""
    )


def read_apart(store: Path | str, experiment: str) -> list[Study]:
    """Return the studies of an experiment in one store: one study of real devices, one of simulated devices.

    Raises:
        TrackingError: the store or the experiment does not exist.
    """
    (store_rows,) = _read_rows([store], experiment)
    rows = list(filter(None, store_rows))
    kinds = [[row for row in rows if row.is_simulated == is_simulated] for is_simulated in (False, True)]
    return [study_of(experiment, members, pools_hosts=False) for members in kinds if members]


def _read_rows(stores: Sequence[Path | str], experiment: str) -> list[list[Row | None]]:
    by_store = [list(_read_store(store, experiment)) for store in stores]
    held: dict[str, Path | str] = {}
    for row in filter(None, itertools.chain(*by_store)):
        if row.run_id in held:
            raise ConfigError(
                f"{held[row.run_id]} and {row.store} both have run {row.run_id} of experiment {experiment!r}; "
                "name only one of them"
            )
        held[row.run_id] = row.store
    return by_store


def _read_store(store: Path | str, experiment: str) -> Iterator[Row | None]:
    jobs = results.find_runs(store, experiment, JOB)
    children = group_by(jobs, lambda run: run.data.tags.get(Tag.PARENT_RUN, ""))
    groups = results.find_runs(store, experiment, GROUP)
    identity = _identity(groups)
    # A store and its bundle give the same report.
    salt = "" if Path(store).is_file() else results.open_existing(store, experiment).read_salt(experiment)
    paths = PortablePaths(((run.data.tags, run.data.params) for run in (*groups, *jobs)), salt)
    for run in (*groups, *jobs):
        stored_values.check(run, store)
        run.data.tags.update(paths.mask_tags(run.data.tags))
        run.data.params.update({key: paths.mask(text) for key, text in run.data.params.items()})
    for run in groups:
        yield _make_row(run, children.get(run.info.run_id, []), store, identity)


def _identity(groups: Iterable[Any]) -> Tag:
    """Choose the digest that identifies programs; it excludes packages if the user accepted other environments."""
    accepts = any(run.data.tags.get(Tag.ACCEPTS_ENVIRONMENT) == "true" for run in groups)
    return Tag.PROGRAM_DIGEST if accepts else Tag.WORKLOAD_DIGEST


def study_of(experiment: str, *rows_of_stores: Iterable[Row | None], pools_hosts: bool = True) -> Study:
    """Make one study of the rows of all stores; `None` represents a run without a result.

    Block numbers continue from one store to the next, except for shards of one plan. Blocks of different hosts are
    repeats of each other only with `pools_hosts`.
    """
    stores: list[list[Row]] = []
    num_without_result, num_blocks = 0, 0
    planned: list[int] = []
    first_of_plan: dict[str, int] = {}  # number of blocks that precede a plan that ran as shards
    for store_rows in map(list, rows_of_stores):
        known = set(first_of_plan)
        numbered = []
        for row in filter(None, store_rows):
            before = first_of_plan.setdefault(row.plan, num_blocks) if "shard" in row.facts else num_blocks
            numbered.append(dataclasses.replace(row, block=row.block + before))
        num_without_result += len(store_rows) - len(numbered)
        num_blocks = max([num_blocks, *(row.block for row in numbered)])
        newest = [
            list_facts_by_plan(part[-1].facts)[-1].get("plan_groups", "")
            for part in selection.parts(selection.keep_newest_plans(numbered, Counter()))
            if part[-1].plan not in known
        ]
        planned += [int(number) for number in newest if number.isdecimal()]
        stores.append(numbered)
    newest_first = sorted(itertools.chain(*stores), key=lambda row: row.start_ms, reverse=True)
    older: Counter[str] = Counter()
    stores = pool_slices(stores)
    if len(stores) > 1:
        stores = pool_programs([selection.keep_newest_plans(rows, older) for rows in stores])
    chosen, not_chosen = selection.choose(list(itertools.chain(*stores)))
    left_out = {"no result: still running, or never closed": num_without_result, **(older + Counter(not_chosen))}
    runs = [row for _, block_rows in chosen for row in block_rows]
    single = average_runs(runs, left_out)
    pooled = dict.fromkeys(describe_pooled(single))
    members, environments = name_environments(single)
    named = row_labels.label_rows(members if pools_hosts else hosts.separate_hosts(members))
    shown = {row.start for row in named}
    return Study(
        experiment=experiment,
        rows=tuple(sorted(named, key=lambda row: (row.block, row.start_ms, row.run_id))),
        blocks=tuple(block for block, _ in chosen),
        left_out={reason: number for reason, number in left_out.items() if number},
        num_planned=sum(planned) - len(runs) + len(single) if planned else None,
        facts=_facts(named),
        not_shown=tuple(dict.fromkeys(row.start for row in newest_first if row.start not in shown)),
        environments=(*environments, *pooled),
    )


def _make_row(run: Any, children: Sequence[Any], store: Path | str, identity: Tag) -> Row | None:
    """Make a row of a run, without distinguishing labels; return `None` if the run has no result."""
    tags, params = run.data.tags, run.data.params
    facts = read_facts(tags)
    if (commit := tags.get(Tag.GIT_COMMIT, "")) not in ("", facts.get("git_commit")):
        facts["program_commit"] = f"{commit}{', changed' if tags.get(Tag.PROGRAM_CHANGED) == 'true' else ''}"
    is_over = run.info.status != "RUNNING" and facts.get("result") in set(Result) and "digest" in facts
    if not is_over or not children:
        return None
    beside = {child.info.run_id for child in children if Tag.CO_RUNNER in child.data.tags}
    all_jobs = sorted((_job(child, identity) for child in children), key=lambda job: job.index)
    jobs = tuple(job for job in all_jobs if job.run_id not in beside)
    scenario = params.get("scenario", "")
    try:
        planned = json.loads(facts["planned"])
        settings, options = (
            tuple(stored_names.rename(planned["settings"], stored_names.SETTINGS).items()),
            planned["options"],
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise TrackingError(
            f"run {run.info.run_id} in {store} has no settings and options, because an earlier version recorded it; "
            "choose another experiment, or delete the run"
        ) from error
    return Row(
        run_id=run.info.run_id,
        key=repr((scenario, sorted(options.items()), [job.digest for job in jobs], settings)),
        name=escape_controls(run.info.run_name),
        scenario=scenario,
        sharing=mode_of(scenario),
        options=options,
        settings=settings,
        block=int(facts["block"]) if facts.get("block", "").isdecimal() else 1,
        result=Result(facts["result"]),
        reason=facts.get("reason", ""),
        marks=read_marks(tags),
        metrics=results.select_figures(run),
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
        co_runner_jobs=tuple(job for job in all_jobs if job.run_id in beside),
        facts=facts,
        store=store,
    )


def _job(run: Any, identity: Tag) -> JobRow:
    tags, params = run.data.tags, run.data.params
    facts, workload = read_facts(tags), params.get("workload", "")
    return JobRow(
        index=int(facts.get("index", "0")),
        run_id=run.info.run_id,
        label=workload,
        digest=tags.get(identity, ""),
        program_digest=tags.get(Tag.PROGRAM_DIGEST, ""),
        size=facts.get("size"),
        result=Result(facts["result"]) if facts.get("result") in set(Result) else None,
        metrics=results.select_figures(run),
        params=params,
        place={key[len("placement.") :]: value for key, value in params.items() if key.startswith("placement.")},
        start_ns=int(facts["start_ns"]) if facts.get("start_ns", "").isdecimal() else None,
        end_ns=int(facts["end_ns"]) if facts.get("end_ns", "").isdecimal() else None,
    )


def _facts(rows: Sequence[Row]) -> dict[str, tuple[str, ...]]:
    texts: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        facts = dict(row.facts) | {"seed": row.params.get("seed", "")}
        params = [param for job in row.jobs for param in job.params.items()]
        reported = [(key.replace(".", "_", 1), value) for key, value in params if key.startswith("job.")]
        for name, value in (*facts.items(), *reported):
            if value and (name in FACTS or re.fullmatch(r"environment_.*_digest", name)):
                texts[name].add(value)
    return {name: tuple(sorted(values)) for name, values in sorted(texts.items())}
