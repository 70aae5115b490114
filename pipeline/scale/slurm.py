"""The launcher `slurm`, which submits a job array with one task for each shard, and one array for each GPU model.

A task is a separate `run.py ... shard=K`, which the batch script starts with `exec`: no other process is between Slurm
and the study, so Slurm's signals reach the study as on a terminal. Some time before the limit, the study alone
gets `SIGTERM`; it aborts its group, restores the GPU and sends its rows. A requeued task resumes. A task waits if
another task of its node uses the device.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.base.domain import layout
from pipeline.base.domain.machine_state import cpu_device
from pipeline.base.domain.records import Device, Plan, Result, Resume
from pipeline.base.system import entry_points, interrupts, squeue, user_command, words
from pipeline.base.system.errors import CommandError, ConfigError, TrackingError
from pipeline.base.system.helper_program import Completed
from pipeline.base.system.helper_program import run as run_program
from pipeline.base.system.interrupts import Interrupted, UndoStack
from pipeline.base.system.secrets import mask_text
from pipeline.base.system.words import format_count
from pipeline.plan import config_schema
from pipeline.plan.config_schema import GpuConfig, GpuKind
from pipeline.record.invocation import STUDY, TASK
from pipeline.record.shards import task_messages
from pipeline.record.shards.overview import Overview, read_overview
from pipeline.record.shards.shard_states import DONE, Queue
from pipeline.record.shards.slurm_arrays import Submission
from pipeline.scale import worker_command
from pipeline.study.study_request import StudyRequest


@dataclass(kw_only=True)
class SlurmOptions:
    """Options of sbatch (`None`: the cluster's default) and of the launcher.

    Attributes:
        gres: gres of a task, such as `gpu:1`; with a list, the study runs on each gres in a separate job array.
        timeout_min: time limit of a task in minutes.
        array_parallelism: maximum number of tasks that run at the same time.
        setup: further lines of the batch script, such as `module load cuda`.
        additional_parameters: further options of sbatch by name without dashes.
        folder: folder of the batch script and the tasks' output, on a file system that the nodes share.
        signal_delay_s: seconds before the time limit at which Slurm sends SIGTERM to a task.
        wait: whether the launcher waits for the tasks.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: Any = "gpu:1"
    cpus_per_task: int | None = None
    mem: str | None = None
    timeout_min: int | None = None
    array_parallelism: int | None = None
    setup: list[str] = field(default_factory=list)
    additional_parameters: dict[str, Any] = field(default_factory=dict)
    folder: str = "slurm"
    signal_delay_s: int = 120
    wait: bool = True


_POLL_S = 5.0
_LIMIT_S = 60.0
_NO_LIMIT_S = 2**31 - 1
_ARRAY = "ARRAY_JOB_ID"  # placeholder, replaced by the shell variable
_SCRIPT = """\
#!/bin/bash
{directives}
{setup}
cd {folder} || exit 1
export {study_variable}={study}
export {task_variable}="$SLURM_CLUSTER_NAME/$SLURM_ARRAY_JOB_ID"_"$SLURM_ARRAY_TASK_ID"
echo "{start}$((${{SLURM_RESTART_COUNT:-0}} + 1)) of shard $SLURM_ARRAY_TASK_ID on $SLURMD_NODENAME" >&2
resume={resume}
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] && [ "$resume" = {no} ]; then resume=true; fi
limit_s={limit_s}
if [ -n "${{SLURM_JOB_END_TIME:-}}" ]; then
    left_s=$((SLURM_JOB_END_TIME - $(date +%s) - {signal_delay_s}))
    if [ "$left_s" -lt "$limit_s" ]; then limit_s=$((left_s > 0 ? left_s : 1)); fi
fi
exec {before} shard="$SLURM_ARRAY_TASK_ID" resume="$resume" time_limit_s="$limit_s" \\
    {plan_file} {after}
"""


def run(request: StudyRequest, _: UndoStack, options: SlurmOptions) -> int:
    """Submit the shards of a study; with `wait`, return 0 if every shard has its rows, else 1."""
    uri, experiment = _check_request(request, options), request.config.tracking.experiment
    gres, plan = list_gres(options), _plan(request)
    shards, num_queued = _select_shards(request, uri, plan, len(gres))
    num_shards = len(plan.shard_sizes)
    if not shards:
        words.say(f"resume: {num_shards - num_queued} of {format_count(num_shards, 'shard')} are done")
        return 1 if num_queued else 0
    folder = Path(options.folder).absolute()
    resume, limit_s = request.config.resume, request.config.time_limit_s
    scripts = {
        gpu: make_script(
            dataclasses.replace(options, gres=gpu), request.invocation.words, shards, resume, limit_s, folder, len(gres)
        )
        for gpu in gres
    }
    if request.config.dry_run:
        shard_kind = request.config.shard_of.name
        for script in scripts.values():
            sys.stdout.write(f"{mask_text(script)}{format_count(len(shards), 'shard')}, a {shard_kind} each; ")
            sys.stdout.write("each task is planned on its node\n")
        return 0
    assert request.sender is not None
    request.sender.open(experiment, request.root, uri, request.config.tracking.series_points)
    request.sender.wait_for_store()  # refuse a missing store before a task waits for hours
    jobs: dict[str, str] = {}
    status = entry_points.spell("tracking", "status", "--experiment", experiment, "--uri", mask_text(uri))
    with interrupts.hold_interrupts():  # the id of a submitted array is always printed
        for gpu, script in scripts.items():
            try:
                job = _submit(script, folder)
            except ConfigError as error:
                if not jobs:
                    raise
                outcome = "could not be cancelled" if _run_slurm("scancel", *jobs).status else "was cancelled"
                raise ConfigError(
                    f"{error}; job array {', '.join(jobs)}, which was submitted before, {outcome}"
                ) from error
            jobs[job] = f"{gpu} " if len(gres) > 1 else ""
            words.say(
                f"submitted {format_count(len(shards), 'shard')} of {num_shards} as job array {job}"
                f"{f' for {gpu}' if len(gres) > 1 else ''}, output in {folder}"
            )
        words.say(f"show its progress: {status} --watch; cancel it: scancel {' '.join(jobs)}")
        _note_arrays(request, plan, list(jobs), folder)
    if not options.wait:
        return 0
    try:
        _wait(jobs)
    except Interrupted:
        words.say(f"the tasks continue; show their progress: {status} --watch; cancel them: scancel {' '.join(jobs)}")
        raise
    progress = _read_overview(uri, experiment)
    if progress is not None:
        words.say(progress.as_text(time.time()))
    return 0 if progress is not None and progress.is_done else 1


def _note_arrays(request: StudyRequest, plan: Plan, arrays: list[str], folder: Path) -> None:
    assert request.sender is not None
    try:
        new = Submission(
            command_line=request.invocation.masked_command,
            plan_any_gpu=plan.any_gpu_digest,
            num_shards=len(plan.shard_sizes),
            cluster=squeue.read_cluster(),
            arrays=arrays,
            time_ms=int(time.time() * 1000),
            folder=str(folder),
        )
        request.sender.note_arrays(request.config.tracking.experiment, new)
    except (CommandError, TrackingError) as error:
        words.say(f"warning: pipeline.tracking status will not show waiting tasks: {error}")


def list_gres(options: SlurmOptions) -> Sequence[str | None]:
    """Return the gres of each GPU model of the study; `None` is the cluster's default."""
    gres = options.gres
    if gres is None or isinstance(gres, str):
        return (gres,)
    if not isinstance(gres, list) or not gres or not all(isinstance(gpu, str) for gpu in gres):
        raise ConfigError(
            f"hydra.launcher.gres={gres} is neither a gres nor a list of gres; write gpu:1 or [gpu:h100:1,gpu:a100:1]"
        )
    if twice := [gpu for gpu in gres if gres.count(gpu) > 1]:
        raise ConfigError(f"hydra.launcher.gres names {twice[0]} twice; name each GPU model once")
    return gres


def make_script(
    options: SlurmOptions,
    typed: Sequence[str],
    shards: Sequence[int],
    resume: str,
    limit_s: float | None,
    folder: Path,
    num_models: int = 1,
) -> str:
    """Return the batch script of a job array with one task for each shard."""
    at_a_time = f"%{options.array_parallelism}" if options.array_parallelism else ""
    sbatch_options = {
        "job-name": "collocation",
        "array": ",".join(map(str, shards)) + at_a_time,
        "nodes": 1,
        "ntasks": 1,
        "gres": options.gres,
        "signal": f"B:TERM@{options.signal_delay_s}",
        "requeue": True,
        "open-mode": "append",
        "output": task_messages.locate(folder, "%A_%a"),
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
        f"#SBATCH --{key}" if value is True else f"#SBATCH --{key}={shlex.quote(_check_one_line(key, value))}"
        for key, value in sbatch_options.items()
        if value is not None
    ]
    (program, *options_typed), arguments = user_command.divide(typed)
    options_typed = [word for word in options_typed if not user_command.sets(word, ["dry_run"])]
    decided: dict[str, object] = {"gpu.models": num_models} if num_models > 1 else {}
    if not any(user_command.sets(word, ["wait"]) for word in options_typed):
        decided["wait"] = "true"
    plan_file = user_command.make_override("plan_file", folder / f"plan-{_ARRAY}.json")
    limits_s = [_NO_LIMIT_S if limit_s is None else math.ceil(limit_s)]
    if options.timeout_min is not None:  # the batch script applies an earlier end time of the task
        limits_s.append(options.timeout_min * 60 - options.signal_delay_s)
    before = worker_command.make_command([sys.executable, str(Path(program).absolute()), *options_typed], decided)
    return _SCRIPT.format(
        directives="\n".join(directives),
        setup="\n".join(options.setup),
        folder=shlex.quote(str(Path.cwd())),
        study_variable=STUDY,
        task_variable=TASK,
        start=task_messages.START,
        study=shlex.quote(shlex.join([program, *options_typed, *arguments])),
        resume=shlex.quote(resume),
        no=shlex.quote(Resume.NO),
        limit_s=min(limits_s),
        signal_delay_s=options.signal_delay_s,
        plan_file='"$SLURM_ARRAY_JOB_ID"'.join(map(shlex.quote, plan_file.split(_ARRAY))),
        before=shlex.join(before),
        after=shlex.join(arguments),
    )


def _check_request(request: StudyRequest, options: SlurmOptions) -> str:
    """Refuse a study that Slurm tasks cannot run; return the address of its tracking server."""
    worker_command.refuse_decided_keys(request.configs, "slurm")
    if (exporter := request.config.exporter.name) != config_schema.NO_EXPORTER:
        raise ConfigError(
            f"exporter={exporter} conflicts with hydra/launcher=slurm, because tasks on one host would share its port; "
            "remove exporter"
        )
    if (uri := request.config.tracking.uri) is None:
        raise ConfigError(
            "hydra/launcher=slurm needs a tracking server, because its tasks run on other machines; add "
            "tracking=server tracking.uri=http://HOST:PORT"
        )
    if request.config.dry_run == config_schema.JSON:
        raise ConfigError("dry_run=json does not work with hydra/launcher=slurm; use dry_run=true")
    if options.timeout_min is not None and options.timeout_min * 60 <= options.signal_delay_s:
        raise ConfigError(
            f"hydra.launcher.timeout_min={options.timeout_min} leaves no time to measure, because tasks end "
            f"hydra.launcher.signal_delay_s={options.signal_delay_s} s earlier; set "
            f"hydra.launcher.timeout_min={options.signal_delay_s // 60 + 1} or more, or a shorter signal_delay_s"
        )
    return uri


def _plan(request: StudyRequest) -> Plan:
    """Plan the study to refuse it before submission if every task would; the submit host may lack a GPU."""
    return worker_command.make_plan(
        request, _make_unknown_device if request.simulated is None else request.simulated.find_device
    )


def _make_unknown_device(gpu: GpuConfig) -> Device:
    """Return a placeholder for the device of a task, because its node is unknown."""
    return cpu_device() if gpu.kind is GpuKind.cpu else Device(kind="nvidia", uuid="unknown", name="unknown")


def _check_one_line(key: str, value: object) -> str:
    if "\n" in str(value):
        raise ConfigError(f"hydra.launcher: {key} has a line break; write it on one line")
    return str(value)


def _submit(script: str, folder: Path) -> str:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"submit-{layout.make_stamp()}.sh"
        path.touch(mode=0o600, exist_ok=False)  # the command line may hold secrets
        path.write_bytes(os.fsencode(script))  # the working directory in it may not be UTF-8
    except OSError as error:
        raise ConfigError(
            f"hydra.launcher.folder={folder}: the batch script cannot be written ({error.strerror}); choose another "
            "folder"
        ) from error
    done = _run_slurm("sbatch", "--parsable", str(path))
    if done.status != 0:
        raise ConfigError(
            f"Slurm refused the job array: {' '.join(done.stderr.split())}; check the batch script {path}"
        )
    return done.stdout.strip().partition(";")[0]


def _run_slurm(*argv: str) -> Completed:
    if shutil.which(argv[0]) is None:
        raise ConfigError(f"hydra/launcher=slurm found no {argv[0]} on PATH; run this command on a host with Slurm")
    try:
        return run_program(argv, timeout_s=_LIMIT_S, check=False)
    except CommandError as error:
        raise ConfigError(str(error)) from error


def _wait(jobs: Mapping[str, str]) -> None:
    """Report changes of the tasks' states until no task of these arrays is in the queue."""
    last_states: dict[str, str | None] = {}
    is_silent = False
    while True:
        try:
            states = squeue.read_states(jobs)
        except CommandError as error:
            if not is_silent:
                words.say(f"{error}; retrying until Slurm replies")
            is_silent = True
            time.sleep(_POLL_S)
            continue
        is_silent = False
        for task in sorted(last_states.keys() | states.keys(), key=_parse_task):
            state = states.get(task)
            if task not in last_states or last_states[task] != state:
                last_states[task] = state
                job, shard = _parse_task(task)
                name, _, reason = state.partition(" ") if state else ("left the queue", "", "")
                words.say(f"{jobs[str(job)]}shard {shard} | {': '.join(filter(None, (name.lower(), reason)))}")
        if not states:
            return
        time.sleep(_POLL_S)


def _parse_task(task: str) -> tuple[int, int]:
    job, _, number = task.partition("_")
    return int(job), int(number)


def _select_shards(request: StudyRequest, uri: str, plan: Plan, num_models: int) -> tuple[list[int], int]:
    """Return the shards to submit and the number of shards already in the queue, which are reported."""
    numbers = range(1, len(plan.shard_sizes) + 1)
    progress = (
        None
        if request.config.resume == Resume.NO
        else _read_overview(uri, request.config.tracking.experiment, _ask_queue)
    )
    if progress is not None and progress.unasked:
        words.say(f"warning: shards in the queue of another cluster are also submitted here: {progress.unasked}")
    if progress is None or progress.plan_any_gpu != plan.any_gpu_digest:  # for example after a change of a program
        return list(numbers), 0
    done = _find_done(progress, num_models)
    queued = {shard.number: shard.tasks for shard in progress.shards if shard.tasks}
    if queued:
        jobs = " ".join(sorted({task.partition("_")[0] for tasks in queued.values() for task in tasks}))
        words.say(
            f"shards {', '.join(map(str, queued))} are still in the queue (job {jobs}); wait, or run scancel {jobs}"
        )
    return [number for number in numbers if number not in done and number not in queued], len(queued)


def _find_done(overview: Overview, num_models: int) -> set[int]:
    """Return the shards that are complete on every requested GPU model; a shard with skipped groups is not."""
    if overview.num_models < num_models:
        return set()
    unfinished = {shard.number for shard in overview.shards if shard.state != DONE or Result.SKIPPED in shard.results}
    # It is unknown which gres had which model, so a shard that one model lacks is submitted for all models.
    return {shard.number for shard in overview.shards} - unfinished


def _ask_queue(cluster: str, arrays: Collection[str]) -> Mapping[str, str]:
    """Read Slurm's queue; refuse to submit if this fails, because queued shards would be submitted again."""
    try:
        return squeue.read_cluster_states(cluster, arrays)
    except CommandError as error:
        if error.status == 0:  # squeue works, but for another cluster
            raise
        raise ConfigError(
            f"the shards in the queue cannot be read: {error}; start again with resume=true when Slurm replies"
        ) from error


def _read_overview(uri: str, experiment: str, queue: Queue = squeue.read_cluster_states) -> Overview | None:
    try:
        return read_overview(uri, experiment, queue)
    except TrackingError as error:
        words.say(str(error))
        return None
