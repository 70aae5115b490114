"""Conversion of CARMA's job files to an experiment file: exclusive jobs run alone, collocated jobs together."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.base.domain.workload import escape_placeholders
from pipeline.base.system import entry_points
from pipeline.base.system.paths import expand_path
from pipeline.base.system.words import format_count
from pipeline.importer import carma_job, experiment_file
from pipeline.importer.carma_job import COLLOCATED, EXCLUSIVE, Job
from pipeline.importer.experiment_file import Imported, Program, Value, assign_name, override_value


def read(paths: Sequence[Path], name: str, *, is_together: bool = False, environments: str | None = None) -> Imported:
    """Import job files as an experiment with this name; with `is_together`, all jobs become one mix.

    Raises:
        ConfigError: a file cannot be read, or is not a job file.
    """
    jobs = [carma_job.read(path) for path in paths]
    taken = [job for job in jobs if not job.obstacle]
    prefixes = _find_prefixes(taken, environments)
    programs = _make_programs(taken, prefixes)
    together = [job for job in taken if is_together or job.mode == COLLOCATED]
    sizes: dict[Program, str] = {}
    alone = list(dict.fromkeys(programs[job.path] for job in taken if job not in together))
    blocks = [_make_block([program], sizes) for program in alone]
    if together:
        blocks.append(_make_block([programs[job.path] for job in together], sizes))
    origin = f"imported from {', '.join(path.name for path in paths)} by `{entry_points.spell('importer')}`"
    described = dict.fromkeys(f"{programs[job.path].label}: {_describe(job)}" for job in taken)
    text = experiment_file.format_file(
        blocks,
        sizes,
        head="\n# ".join([f"{format_count(len(blocks), 'group')}, {origin}.", *described]),
        defaults=[{"override /window": "work"}, *([{"override /env": "existing"}] if prefixes else [])],
        settings={"tracking": {"experiment": name}},
    )
    return Imported(
        text=text,
        num_read=len(jobs),
        unit="file",
        refused=[f"{job.path}: {job.obstacle}" for job in jobs if job.obstacle],
        notes=list(_list_notes(taken, prefixes, is_together=is_together)),
    )


def _find_prefixes(jobs: Sequence[Job], environments: str | None) -> Mapping[str, str]:
    """Return the folder of each environment by name; return nothing unless all folders are known."""
    named = {job.environment for job in jobs}
    if "" in named:
        return {}
    if environments is None:
        return {name: name for name in named} if all("/" in name for name in named) else {}
    folder = expand_path("--envs", environments).absolute()
    return {name: name if "/" in name else str(folder / name) for name in named}


def _make_programs(jobs: Sequence[Job], prefixes: Mapping[str, str]) -> dict[Path, Program]:
    commands = defaultdict[str, set[tuple[object, ...]]](set)
    for job in jobs:
        commands[_make_label(job)].add((job.script, job.args, job.environment))
    programs = {}
    for job in jobs:
        label = _make_label(job)
        if len(commands[label]) > 1:
            label = f"{label}_{_replace_marks(job.path.stem)}"
        values: dict[str, Value] = {"name": label, "script": job.script}
        if job.args:
            values["args"] = tuple(map(escape_placeholders, job.args))
        if prefixes:
            values["env_prefix"] = prefixes[job.environment]
        programs[job.path] = Program(workload="script", values=tuple(values.items()), name=label)
    return programs


def _make_label(job: Job) -> str:
    model = _replace_marks(job.model or Path(job.script).stem)
    return model if model.endswith(f"_{job.batch_size}") else f"{model}_bs{job.batch_size}"


def _replace_marks(text: str) -> str:
    return re.sub(r"\W", "_", text)


def _make_block(programs: Sequence[Program], sizes: dict[Program, str]) -> dict[str, Any]:
    block: dict[str, Any] = {"scenario": "naive"}
    if len(set(programs)) == 1:
        block |= {"workload": programs[0].workload, "degree": len(programs)}
        return block | {f"workload.{key}": override_value(value) for key, value in programs[0].values}
    return block | {"mix": override_value(tuple(assign_name(program, sizes) for program in programs))}


def _describe(job: Job) -> str:
    parts = [job.mode, f"model {job.model}", f"batch size {job.batch_size}", f"data set {job.dataset}"]
    if job.environment:
        parts.append(f"conda environment {job.environment}")
    parts += [
        f"{amount:g} MB {source}" if source == carma_job.MEASURED else f"{amount:g} MB estimated by {source}"
        for source, amount in job.memory_mib
    ]
    return ", ".join(parts)


def _list_notes(jobs: Sequence[Job], prefixes: Mapping[str, str], *, is_together: bool) -> list[str]:
    notes = []
    if jobs:
        notes.append(
            "model, data set, batch size and memory are only comments in the experiment file; jobs use the arguments "
            "of their commands"
        )
    names = sorted({job.environment for job in jobs if job.environment})
    if names and not prefixes:
        notes.append(
            f"conda environment {', '.join(names)}: not kept, because its folder is unknown; add --envs FOLDER, or run "
            "with env=existing env.prefix=FOLDER"
        )
    if variables := sorted({name for job in jobs for name in job.dropped}):
        notes.append(f"{', '.join(variables)}: not kept, because jobs use the device of their group")
    exclusive = [job for job in jobs if job.mode == EXCLUSIVE]
    if is_together and exclusive:
        notes.append(f"{EXCLUSIVE}: not kept for {format_count(len(exclusive), 'job')}, because of --together")
    elif len(exclusive) > 1:
        notes.append(f"{format_count(len(exclusive), 'exclusive job')} run alone; use --together for one mix of all")
    if len(jobs) - len(exclusive) == 1 and not is_together:
        notes.append(f"the only {COLLOCATED} job runs alone; add the files of its co-runners")
    return notes
