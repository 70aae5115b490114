"""Slurm as the workers of a study: one job array, a task a unit. Of several models of GPU an array each.

A task is a `run.py ... unit=K` of its own, started by a batch script that a user could have written: no process of ours
stands between Slurm and the study, so a signal of Slurm reaches it as it would on a terminal. `SIGTERM` comes some
time before the limit, to the study alone; it gives up its group, cleans the GPU and sends what it has. A task that is
requeued resumes. A task waits for a device that another task of its node holds, as nobody is there to try again.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pipeline.base.domain import layout
from pipeline.base.domain.machine_state import cpu_device
from pipeline.base.domain.records import Device, Plan, Result, Resume
from pipeline.base.system import entry_points, interrupts, squeue, user_command, words
from pipeline.base.system.command import Completed
from pipeline.base.system.command import run as run_program
from pipeline.base.system.errors import CommandError, ConfigError, TrackingError
from pipeline.base.system.interrupts import Interrupted, UndoStack
from pipeline.base.system.secrets import mask_text
from pipeline.base.system.words import counted
from pipeline.plan import schema, setting_checks
from pipeline.plan.schema import GpuConfig, GpuKind
from pipeline.record import task_output
from pipeline.record.invocation import STUDY, TASK
from pipeline.record.shards.overview import Overview, overview
from pipeline.record.shards.shard_states import DONE, Queue
from pipeline.record.shards.slurm_arrays import Submitted
from pipeline.scale import workers
from pipeline.scale.options import SlurmOptions
from pipeline.study.study_request import StudyRequest

_POLL_S = 5.0
_LIMIT_S = 60.0
_NO_LIMIT_S = 2**31 - 1
_ARRAY = "ARRAY_JOB_ID"  # stands where the shell puts the id
_SCRIPT = """\
#!/bin/bash
{directives}
{setup}
cd {folder} || exit 1
export {study_variable}={study}
export {task_variable}="$SLURM_CLUSTER_NAME/$SLURM_ARRAY_JOB_ID"_"$SLURM_ARRAY_TASK_ID"
echo "{start}$((${{SLURM_RESTART_COUNT:-0}} + 1)) of unit $SLURM_ARRAY_TASK_ID on $SLURMD_NODENAME" >&2
resume={resume}
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] && [ "$resume" = {no} ]; then resume=true; fi
limit_s={limit_s}
if [ -n "${{SLURM_JOB_END_TIME:-}}" ]; then
    left_s=$((SLURM_JOB_END_TIME - $(date +%s) - {signal_delay_s}))
    if [ "$left_s" -lt "$limit_s" ]; then limit_s=$((left_s > 0 ? left_s : 1)); fi
fi
exec {before} unit="$SLURM_ARRAY_TASK_ID" resume="$resume" time_limit_s="$limit_s" \\
    {plan_file} {after}
"""


def run(asked: StudyRequest, _: UndoStack, options: SlurmOptions) -> int:
    """Submit the units of a study; with `wait`, the exit status says whether each of them has its rows."""
    uri, experiment = _refuse_what_has_no_array(asked, options), asked.config.tracking.experiment
    gres, plan = gres_of(options), _planned(asked)
    units, num_queued = _left(asked, uri, plan, len(gres))
    num_units = len(plan.unit_sizes)
    if not units:
        words.say(f"resume: {num_units - num_queued} of {counted(num_units, 'unit')} are done")
        return 1 if num_queued else 0
    folder = Path(options.folder).absolute()
    resume, limit_s = asked.config.resume, asked.config.time_limit_s
    scripts = {
        each: script_of(
            dataclasses.replace(options, gres=each), asked.invocation.words, units, resume, limit_s, folder, len(gres)
        )
        for each in gres
    }
    if asked.config.dry_run:
        what = asked.config.unit_of.name
        for script in scripts.values():
            sys.stdout.write(f"{mask_text(script)}{counted(len(units), 'unit')}, a {what} each; ")
            sys.stdout.write("the plan is made where the GPU is\n")
        return 0
    assert asked.sender is not None
    asked.sender.open(experiment, asked.root, uri, asked.config.tracking.series_points)
    asked.sender.store()  # before a task waits for hours to find that there is none
    jobs: dict[str, str] = {}
    where = ("status", "--experiment", experiment, "--uri", mask_text(uri))
    status = entry_points.spell("tracking", *where)
    with interrupts.held():  # what Slurm has taken is named, whatever the user does meanwhile
        for each, script in scripts.items():
            try:
                job = _submit(script, folder)
            except ConfigError as error:
                if not jobs:
                    raise
                how = "could not be cancelled" if _slurm("scancel", *jobs).status else "was cancelled"
                raise ConfigError(f"{error}; job array {', '.join(jobs)}, submitted before it, {how}") from error
            jobs[job] = f"{each} " if len(gres) > 1 else ""
            words.say(
                f"submitted {counted(len(units), 'unit')} of {num_units} as job array {job}"
                f"{f' for {each}' if len(gres) > 1 else ''}, output in {folder}"
            )
        words.say(f"look at it: {status} --watch; cancel it: scancel {' '.join(jobs)}")
        _note(asked, plan, list(jobs), folder)
    if not options.wait:
        return 0
    try:
        _wait(jobs)
    except Interrupted:
        words.say(f"the tasks go on; look at them: {status} --watch; cancel them: scancel {' '.join(jobs)}")
        raise
    found = _overview(uri, experiment)
    if found is not None:
        words.say(found.as_text(time.time()))
    return 0 if found is not None and found.is_done else 1


def _note(asked: StudyRequest, plan: Plan, arrays: list[str], folder: Path) -> None:
    """Have the store know the arrays, so that an overview shows tasks that wait."""
    now_ms = int(time.time() * 1000)
    assert asked.sender is not None
    try:
        new = Submitted(
            command_line=asked.invocation.masked,
            plan_any_gpu=plan.any_gpu_digest,
            num_units=len(plan.unit_sizes),
            cluster=squeue.read_cluster(),
            arrays=arrays,
            time_ms=now_ms,
            folder=str(folder),
        )
        asked.sender.submitted(asked.config.tracking.experiment, new)
    except (CommandError, TrackingError) as error:
        words.say(f"warning: tasks that wait will not be seen by pipeline.tracking status: {error}")


def gres_of(options: SlurmOptions) -> Sequence[str | None]:
    """What a task asks for, or of a study on several GPU models each of them; ConfigError if that is no such list."""
    gres = options.gres
    if gres is None or isinstance(gres, str):
        return (gres,)
    if not isinstance(gres, list) or not gres or not all(isinstance(each, str) for each in gres):
        raise ConfigError(
            f"hydra.launcher.gres={gres}: give the gres of a task, gpu:1, or a list: [gpu:h100:1,gpu:a100:1]"
        )
    if twice := [each for each in gres if gres.count(each) > 1]:
        raise ConfigError(f"hydra.launcher.gres names {twice[0]} twice: each is another model of GPU")
    return gres


def script_of(
    options: SlurmOptions,
    typed: Sequence[str],
    units: Sequence[int],
    resume: str,
    limit_s: float | None,
    folder: Path,
    num_models: int = 1,
) -> str:
    """Return the batch script of a job array with a task for each unit of a typed study on so many models of GPU."""
    at_a_time = f"%{options.array_parallelism}" if options.array_parallelism else ""
    given = {
        "job-name": "collocation",
        "array": ",".join(map(str, units)) + at_a_time,
        "nodes": 1,
        "ntasks": 1,
        "gres": options.gres,
        "signal": f"B:TERM@{options.signal_delay_s}",
        "requeue": True,
        "open-mode": "append",
        "output": task_output.locate(folder, "%A_%a"),
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "constraint": options.constraint,
        "cpus-per-task": options.cpus_per_task,
        "mem": options.mem,
        "time": options.timeout_min,
        **options.additional_parameters,
    }
    directives = [
        f"#SBATCH --{key}" if value is True else f"#SBATCH --{key}={shlex.quote(_one_line(key, value))}"
        for key, value in given.items()
        if value is not None
    ]
    (program, *ours), theirs = user_command.divide(typed)
    ours = [word for word in ours if not user_command.sets(word, ["dry_run"])]
    decided: dict[str, object] = {"gpu.models": num_models} if num_models > 1 else {}
    if not any(user_command.sets(word, ["wait"]) for word in ours):
        decided["wait"] = "true"
    plan_file = user_command.make_override("plan_file", folder / f"plan-{_ARRAY}.json")
    before = workers.command([sys.executable, str(Path(program).absolute()), *ours], decided)
    return _SCRIPT.format(
        directives="\n".join(directives),
        setup="\n".join(options.setup),
        folder=shlex.quote(str(Path.cwd())),
        study_variable=STUDY,
        task_variable=TASK,
        start=task_output.START,
        study=shlex.quote(shlex.join([program, *ours, *theirs])),
        resume=shlex.quote(resume),
        no=shlex.quote(Resume.NO),
        limit_s=min(_NO_LIMIT_S if limit_s is None else math.ceil(limit_s), _compute_time_of_task_s(options)),
        signal_delay_s=options.signal_delay_s,
        plan_file='"$SLURM_ARRAY_JOB_ID"'.join(map(shlex.quote, plan_file.split(_ARRAY))),
        before=shlex.join(before),
        after=shlex.join(theirs),
    )


def _compute_time_of_task_s(options: SlurmOptions) -> int:
    """Return how long a task may measure by its options; Slurm may say in the task that it is less."""
    return _NO_LIMIT_S if options.timeout_min is None else options.timeout_min * 60 - options.signal_delay_s


def _refuse_what_has_no_array(asked: StudyRequest, options: SlurmOptions) -> str:
    """The address of the tracking server; a ConfigError if tasks could not run the study."""
    workers.refuse_what_is_decided(asked.configs, "slurm")
    if (exporter := asked.config.exporter.name) != schema.NO_EXPORTER:
        raise ConfigError(
            f"hydra/launcher=slurm: tasks on one host would take the same port for exporter={exporter}; leave it out"
        )
    if (uri := asked.config.tracking.uri) is None:
        raise ConfigError(
            "hydra/launcher=slurm: workers on several hosts need a tracking server, and a local store is for one "
            "machine; add tracking=server tracking.uri=http://HOST:PORT"
        )
    if asked.config.dry_run == setting_checks.JSON:
        raise ConfigError("dry_run=json: hydra/launcher=slurm shows a batch script, which is no JSON; use dry_run=true")
    if options.timeout_min is not None and options.timeout_min * 60 <= options.signal_delay_s:
        raise ConfigError(
            f"hydra.launcher.timeout_min={options.timeout_min} leaves no time to measure: tasks give up their groups "
            f"hydra.launcher.signal_delay_s={options.signal_delay_s} s before; give "
            f"hydra.launcher.timeout_min={options.signal_delay_s // 60 + 1} or more, or a shorter signal_delay_s"
        )
    return uri


def _planned(asked: StudyRequest) -> Plan:
    """The plan, so that what every task would refuse is not submitted; where it is typed there may be no GPU."""
    return workers.planned(asked, _somewhere if asked.simulated is None else asked.simulated.find_device)


def _somewhere(gpu: GpuConfig) -> Device:
    """The device of a task, as far as it is known where the study is typed."""
    return cpu_device() if gpu.kind is GpuKind.cpu else Device(kind="nvidia", uuid="unknown", name="unknown")


def _one_line(key: str, value: object) -> str:
    if "\n" in str(value):
        raise ConfigError(f"hydra.launcher: {key} spans several lines; an option of sbatch is one")
    return str(value)


def _submit(script: str, folder: Path) -> str:
    """The id of the job array."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"submit-{layout.make_stamp()}.sh"
        path.touch(mode=0o600, exist_ok=False)  # the command line may hold secrets
        path.write_bytes(os.fsencode(script))  # with the working directory, which need not be UTF-8
    except OSError as error:
        raise ConfigError(f"hydra.launcher.folder={folder} cannot hold the batch script: {error.strerror}") from error
    done = _slurm("sbatch", "--parsable", str(path))
    if done.status != 0:
        raise ConfigError(f"Slurm refused the job array: {' '.join(done.stderr.split())}; its script is {path}")
    return done.stdout.strip().partition(";")[0]


def _slurm(*argv: str) -> Completed:
    if shutil.which(argv[0]) is None:
        raise ConfigError(f"hydra/launcher=slurm: there is no {argv[0]} on PATH, so no Slurm here")
    try:
        return run_program(argv, timeout_s=_LIMIT_S, check=False)
    except CommandError as error:
        raise ConfigError(str(error)) from error


def _wait(jobs: Mapping[str, str]) -> None:
    """Until no task of these arrays is in the queue; says each state when it changes, behind the array's words."""
    known: dict[str, str | None] = {}
    is_silent = False
    while True:
        try:
            states = squeue.read_states(jobs)
        except CommandError as error:
            if not is_silent:
                words.say(f"{error}; asked again until it answers")
            is_silent = True
            time.sleep(_POLL_S)
            continue
        is_silent = False
        for task in sorted(known.keys() | states.keys(), key=_in_order):
            state = states.get(task)
            if task not in known or known[task] != state:
                known[task] = state
                job, unit = _in_order(task)
                words.say(f"{jobs[str(job)]}unit {unit} | {_in_words(state)}")
        if not states:
            return
        time.sleep(_POLL_S)


def _in_words(state: str | None) -> str:
    if state is None:
        return "left the queue"
    name, _, reason = state.partition(" ")
    return f"{name.lower()}: {reason}" if reason else name.lower()


def _in_order(task: str) -> tuple[int, int]:
    """The numbers of a task: its job array's and its own."""
    job, _, number = task.partition("_")
    return int(job), int(number)


def _left(asked: StudyRequest, uri: str, plan: Plan, num_models: int) -> tuple[list[int], int]:
    """The units to submit, and how many are not done and in the queue already, which is said."""
    every = range(1, len(plan.unit_sizes) + 1)
    found = None if asked.config.resume == Resume.NO else _overview(uri, asked.config.tracking.experiment, _queue)
    if found is not None and found.unasked:
        words.say(f"warning: units that wait elsewhere are submitted here as well: {found.unasked}")
    if found is None or found.plan_any_gpu != plan.any_gpu_digest:  # as of a program that has changed since
        return list(every), 0
    done = _done(found, num_models)
    queued = {unit.number: unit.tasks for unit in found.units if unit.tasks}
    if queued:
        jobs = " ".join(sorted({task.partition("_")[0] for tasks in queued.values() for task in tasks}))
        words.say(f"units {', '.join(map(str, queued))} are still in the queue (job {jobs}): scancel {jobs}, or wait")
    return [number for number in every if number not in done and number not in queued], len(queued)


def _done(begun: Overview, num_models: int) -> set[int]:
    """The units that are complete on as many models as are asked for, without a group that may no longer be skipped."""
    if begun.num_models < num_models:
        return set()
    left = {unit.number for unit in begun.units if unit.state != DONE or Result.SKIPPED in unit.results}
    # Which gres had which model is not known: of several models, what one of them lacks is submitted to all.
    return {unit.number for unit in begun.units} - left


def _queue(cluster: str, arrays: Collection[str]) -> Mapping[str, str]:
    """What waits and runs; a ConfigError if Slurm does not answer: units in the queue would be submitted again."""
    try:
        return squeue.states_on(cluster, arrays)
    except CommandError as error:
        if error.status == 0:  # it did, and is that of another cluster
            raise
        raise ConfigError(f"cannot tell which units are in the queue: {error}; resume once Slurm answers") from error


def _overview(uri: str, experiment: str, queue: Queue = squeue.states_on) -> Overview | None:
    try:
        return overview(uri, experiment, queue)
    except TrackingError as error:
        words.say(str(error))
        return None
