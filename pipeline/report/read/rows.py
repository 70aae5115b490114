"""The runs of an experiment, read as one comparable row for each group."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pipeline.base.domain.sharing_modes import mode_of
from pipeline.base.domain.window import WindowKind
from pipeline.base.system import paths
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import announce
from pipeline.record.group_record import GroupRecord, JobRecord
from pipeline.record.store import results
from pipeline.record.store.bundle_reader import is_bundle
from pipeline.record.store.local_store import explain_missing
from pipeline.record.store.portable_paths import PortablePaths
from pipeline.record.store.results import list_experiments
from pipeline.report.read import pooling, row_labels, selection
from pipeline.report.read.environments import name_environments
from pipeline.report.read.pooling import average_runs, describe_pooled, pool_programs, pool_slices
from pipeline.report.read.selection import Choice, separate_simulated
from pipeline.report.read.study_records import JobRow, Row, Study, check_record

FACTS = {
    "command_line": "commands",
    "git_commit": "git commit",
    "git_changed": "uncommitted changes",
    "program_commit": "commit of the scripts",
    "program_changed": "uncommitted changes of the scripts",
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
    by_store = []
    for store in stores:
        with announce(f"reading {store}"):
            by_store.append(list(_read_store(store, experiment)))
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
    groups = results.read_groups(store, experiment)
    # A store and its bundle give the same report.
    salt = "" if is_bundle(store) else results.open_existing(store, experiment).read_salt(experiment)
    paths = PortablePaths(groups, salt)
    # Programs are identified without their packages if the user accepted other environments.
    is_any_environment = any(group.facts.get("accepts_environment") == "true" for group in groups)
    for group in groups:
        yield make_row(paths.mask_record(group), store, is_any_environment=is_any_environment)


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
        earlier_plans = set(first_of_plan)
        numbered = []
        for row in filter(None, store_rows):
            before = first_of_plan.setdefault(row.plan, num_blocks) if "shard" in row.facts else num_blocks
            numbered.append(dataclasses.replace(row, block=row.block + before))
        num_without_result += len(store_rows) - len(numbered)
        num_blocks = max([num_blocks, *(row.block for row in numbered)])
        newest = [
            dict(part[-1].facts, **dict(*part[-1].later_plans[-1:])).get("plan_groups", "")
            for part in selection.parts(selection.keep_newest_plans(numbered, Counter()))
            if part[-1].plan not in earlier_plans
        ]
        planned += [int(number) for number in newest if number.isdecimal()]
        stores.append(numbered)
    newest_first = sorted(itertools.chain(*stores), key=lambda row: row.start_ms, reverse=True)
    older: Counter[str] = Counter()
    stores = pool_slices(stores)
    if len(stores) > 1:
        stores = pool_programs([selection.keep_newest_plans(rows, older) for rows in stores])
    selected_blocks, not_selected = selection.choose(list(itertools.chain(*stores)))
    left_out = {"no result: still running, or never closed": num_without_result, **(older + Counter(not_selected))}
    runs = [row for _, block_rows in selected_blocks for row in block_rows]
    single = average_runs(runs, left_out)
    pooled = dict.fromkeys(describe_pooled(single))
    members, environments = name_environments(single)
    named = row_labels.label_rows(members if pools_hosts else pooling.separate_hosts(members))
    shown = {row.start for row in named}
    return Study(
        experiment=experiment,
        rows=tuple(sorted(named, key=lambda row: (row.block, row.start_ms, row.run_id))),
        blocks=tuple(block for block, _ in selected_blocks),
        left_out={reason: number for reason, number in left_out.items() if number},
        num_planned=sum(planned) - len(runs) + len(single) if planned else None,
        facts=_facts(named),
        not_shown=tuple(dict.fromkeys(row.start for row in newest_first if row.start not in shown)),
        environments=(*environments, *pooled),
    )


def make_row(group: GroupRecord, store: Path | str, *, is_any_environment: bool) -> Row | None:
    """Make a row of a group, without distinguishing labels; return `None` if the group has no result."""
    if group.result is None or not group.digest or not group.jobs:
        return None
    check_record(group, store)
    all_jobs = [_make_job(job, is_any_environment=is_any_environment) for job in group.jobs]
    co_runners = [job for job, recorded in zip(all_jobs, group.jobs, strict=True) if recorded.is_co_runner]
    jobs, settings = tuple(job for job in all_jobs if job not in co_runners), tuple(group.settings.items())
    return Row(
        run_id=group.run_id,
        key=repr((group.scenario, sorted(group.options.items()), [job.digest for job in jobs], settings)),
        name=group.name,
        scenario=group.scenario,
        sharing=mode_of(group.scenario),
        options=group.options,
        settings=settings,
        block=group.block,
        result=group.result,
        reason=group.reason,
        marks=group.marks,
        metrics=group.metrics,
        params=group.params,
        window=WindowKind.STEADY if group.window is None else group.window.kind,
        device=group.device,
        gpu_uuid=group.gpu_uuid,
        boot_id=group.facts.get("boot_id", ""),
        is_simulated=group.is_simulated,
        start_ms=group.start_ms,
        end_ms=group.end_ms,
        start=group.study,
        jobs=jobs,
        co_runner_jobs=tuple(co_runners),
        facts=_collect_facts(group),
        later_plans=group.later_plans,
        store=store,
    )


def _collect_facts(group: GroupRecord) -> dict[str, str]:
    facts = group.facts | group.notes
    commit, is_changed = facts.pop("program_commit", ""), facts.get("program_changed") == "true"
    if commit not in ("", facts.get("git_commit")):
        facts["program_commit"] = f"{commit}{', changed' if is_changed else ''}"
    typed = {
        "study": group.study,
        "block": str(group.block),
        "baseline_run": str(group.baseline_run) if group.baseline_run > 1 else "",
        "plan_shard": str(group.shard or ""),
        "case": str(group.case or ""),
        "scenario": group.scenario,
        "profiler": group.profiler,
        "device": group.device,
        "gpu_uuid": group.gpu_uuid,
        "simulated": "true" if group.is_simulated else "",
        "digest": group.digest,
        "result": "" if group.result is None else group.result.value,
        "reason": group.reason,
        "invalid": group.invalid,
        "flag": group.note,
    }
    return facts | {name: text for name, text in typed.items() if text}


def _make_job(job: JobRecord, *, is_any_environment: bool) -> JobRow:
    return JobRow(
        index=job.index,
        run_id=job.run_id,
        label=job.params.get("workload", ""),
        digest=job.program_digest if is_any_environment else job.digest,
        program_digest=job.program_digest,
        size=job.size,
        result=job.result,
        metrics=job.metrics,
        params=job.all_params,
        place=job.placement,
        start_ns=job.work_start_ns,
        end_ns=job.work_end_ns,
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


def add_store_arguments(parser: argparse.ArgumentParser, among: argparse._MutuallyExclusiveGroup | None = None) -> None:
    """Add `--experiment` (to the group `among` of exclusive options, if there is one), `--root` and `--uri`."""
    default = f" (default: the only one, else {paths.DEFAULT_EXPERIMENT})" if among is None else ""
    help_text = f"tracking.experiment of the study{default}"
    (among or parser).add_argument("--experiment", metavar="NAME", help=help_text)
    parser.add_argument(
        "--root",
        type=Path,
        action="append",
        default=[],
        help=f"folder of a local store, or a bundle (default: {paths.DEFAULT_ROOT}); repeat the option to add one",
    )
    uri = "URI of a tracking server; repeat the option to add a server"
    parser.add_argument("--uri", action="append", default=[], help=uri)


def add_source_arguments(parser: argparse.ArgumentParser, root_help: str) -> None:
    """Add `--experiment`, and either `--root` or `--uri`, of a command that reads one experiment of one store."""
    parser.add_argument("--experiment", default=paths.DEFAULT_EXPERIMENT, metavar="NAME", help="tracking.experiment")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--root", type=Path, default=paths.DEFAULT_ROOT, help=f"{root_help} (default: {paths.DEFAULT_ROOT})"
    )
    source.add_argument("--uri", help="URI of a tracking server")


def named_stores(arguments: argparse.Namespace) -> Sequence[Path | str]:
    """Return the named stores; set the experiment, if none is named, to the only one in these stores.

    Raises:
        ConfigError: a store does not have the experiment.
        TrackingError: a store does not exist.
    """
    stores = [*arguments.root, *arguments.uri] or [paths.DEFAULT_ROOT]
    if arguments.experiment is None:
        experiments = set().union(*_list_experiments(stores).values())
        arguments.experiment = experiments.pop() if len(experiments) == 1 else paths.DEFAULT_EXPERIMENT
    for store in stores:
        find_stores([store], arguments.experiment)
    return stores


def find_stores(stores: Sequence[Path | str], experiment: str) -> list[Path | str]:
    """Return the stores that have an experiment.

    Raises:
        ConfigError: no store has the experiment.
        TrackingError: a store does not exist.
    """
    names = _list_experiments(stores)
    if matches := [store for store in stores if experiment in names[store]]:
        return matches
    experiments = sorted({name for store_names in names.values() for name in store_names})
    remedy = "choose one with --experiment: "
    raise ConfigError(explain_missing(experiment, " and ".join(map(str, stores)), experiments, remedy))


def _list_experiments(stores: Sequence[Path | str]) -> dict[Path | str, list[str]]:
    """Return the names of the experiments in each store, without the one that MLflow creates in every store."""
    return {store: [name for name in list_experiments(store) if name != "Default"] for store in stores}
