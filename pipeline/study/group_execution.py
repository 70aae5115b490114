"""Prepares the device, starts listeners and jobs, measures and cleans up, for one group.

One `UndoStack` of the group owns everything that must be undone.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import os
import resource
import shutil
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from pipeline.base.domain import driver_programs, idle_measurements, layout
from pipeline.base.domain.marks import NO_MARKS, join
from pipeline.base.domain.protocols import Listener, Profiler, RunningGroup, Sharing, ShowGroup, Slots
from pipeline.base.domain.records import Group, Interpreter, Job, ListenerSpec, PackSettings, Required, Result, Slot
from pipeline.base.domain.tags import Tag, listener_tag
from pipeline.base.domain.window import WindowKind
from pipeline.base.system import factory, host_info, interrupts, words
from pipeline.base.system.errors import CollocationError, LaunchError, ListenerError, NoSensorError
from pipeline.base.system.factory import Spec
from pipeline.base.system.interrupts import UndoStack
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.clean.journal import Journal, replay
from pipeline.gpu.selftest import health_checks
from pipeline.launch.interleaving import Interleaving, Slice
from pipeline.launch.job_group import GroupFiles, JobGroup, JobStart
from pipeline.launch.job_state import JobState
from pipeline.launch.spawn import Spawner
from pipeline.launch.warm_start import WarmStart
from pipeline.observe import changed_files, endings, group_row, live_rate, phases
from pipeline.observe.changed_files import Changes
from pipeline.observe.clock import ClockWatch
from pipeline.observe.group_result import GroupResult, Observation
from pipeline.observe.idle_power import IdlePower
from pipeline.observe.phases import Phases
from pipeline.observe.row_marks import FOREIGN_LOAD
from pipeline.observe.sample_figures import Fields
from pipeline.prepare.device import gpu_health, lease
from pipeline.prepare.device.gpu_health import Health
from pipeline.prepare.device.nvml import NvmlError
from pipeline.record import trace
from pipeline.record.spool import Spool, SpoolRun
from pipeline.record.tracking_sender import Sender
from pipeline.study.pack_run import PackRun

if TYPE_CHECKING:
    from pipeline.rehearsal import Rehearsal

_OUR_PROGRAMS = PROJECT_DIR / "workloads"
BASELINE_TURNS = 2
"""Slices a round of a serial baseline, on which the comparisons of all other groups of its block rest."""
_SILENCE_S = 60.0
"""Time after which a message says how many jobs have printed the speed that is waited for."""
_SMALL_BYTES, _LARGE_BYTES = 1 << 25, 1 << 28
"""Job output up to the first size is read within about a second; above the second size, a message is printed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResources:
    """Resources that the groups of a study share.

    Attributes:
        interpreters: interpreters by requested environment.
        sender, warm_start: services that are idle during a window.
        show_group: function that returns a context that shows a group while the group runs.
        idle_power: power of the devices without work, as far as measured.
        outputs: device and inode of each file to which the orchestrator writes its messages.
        own_files: files and folders that the orchestrator, not a job, changes during a group; without the store.
        working_folder: working directory of the study and of its jobs, which they may remove.
        slices_s: length of the slices of each launch that ran, by the key of its first group.
        patterns: patterns of the rates that were sought, as far as found.
        whole_run_s: time in which a program whose rate is sought may end, to be measured as a whole.
        warned: warnings that were printed and apply to every group.
    """

    interpreters: Mapping[Spec, Interpreter]
    spool: Spool
    sender: Sender
    warm_start: WarmStart
    show_group: ShowGroup
    rehearsal: Rehearsal | None = None
    outputs: Collection[tuple[int, int]] = ()
    own_files: Collection[Path] = ()
    working_folder: Path = field(default_factory=Path.cwd)
    idle_power: IdlePower = field(default_factory=IdlePower)
    slices_s: dict[str, float] = field(default_factory=dict)
    patterns: dict[str, str | None] = field(default_factory=dict)
    whole_run_s: float = 0.0
    warned: set[str] = field(default_factory=set)

    def warn_once(self, text: str) -> None:
        """Print a warning that applies to all groups of a study only once; every group has it among its tags."""
        if text not in self.warned:
            self.warned.add(text)
            log.warning("%s", text)


class GroupExecution:
    """Execution of one group; keeps all observations even if the group fails."""

    def __init__(self, group: Group, record: SpoolRun, resources: StudyResources, launch: Sequence[Group]) -> None:
        self.group, self.record, self.resources, self.launch = group, record, resources, launch
        self.slots: Sequence[Slot] = ()
        self.slices: Sequence[Slice] = ()
        self.jobs_at_first_steps: Mapping[int, int] = {}
        self.batches: list[Sequence[JobState]] = []
        self.reason: str | None = None
        self.unchecked = ""
        self.fields = Fields()
        self.places: list[dict[str, str]] = []
        self.tags: dict[str, str] = {}
        self.helpers: list[Listener] = []
        self.helper_cpu_s: dict[int, float] = {}  # last reading by PID, because a program may have ended since
        self.tool_cpu_s = self.tool_wall_s = 0.0
        self.phases = Phases()
        self.clock = ClockWatch()
        self.health = NO_MARKS

    def run(self) -> None:
        """Prepare the device, start listeners, run the jobs. Failures are kept; only the user's signal is raised."""
        before = self._read_health()
        if trouble := health_checks.find_marks(before, before, time.monotonic()).note:
            self.resources.warn_once(f"{self.group.device.name}: {trouble}")
        try:
            with self.clock, UndoStack() as stack:
                try:
                    self._set_up_and_run(stack)
                finally:
                    self.phases.begin(phases.CLEANUP)
        except CollocationError as error:
            self.reason = "; ".join([str(error), *getattr(error, "__notes__", [])])
            log.debug("%s: %s", self.group.name, self.reason, exc_info=True)
        except Exception as error:  # noqa: BLE001  the study continues after any failure of a group
            self.reason = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            self._keep_traceback(error, "failed in the orchestrator")
        finally:
            self._undo_again()
            self.health = health_checks.find_marks(before, self._read_health(), time.monotonic())
            self.phases.finish()

    def _read_health(self) -> Health | None:
        with suppress(NvmlError):  # a GPU that is lost fails the group
            return gpu_health.read(self.group.device) if self.group.device.is_gpu else None
        return None

    def judge_interrupted(self) -> GroupResult:
        """Return the row of a group that the user ended; with figures only if they can be computed quickly."""
        if self._bytes_to_read() > _SMALL_BYTES:
            return endings.make_row_without_figures(self.group, None, self._states())
        return self.judge(interrupted=True)

    def judge(self, *, interrupted: bool = False) -> GroupResult:
        """Return the row, and write its artifacts. An error in the evaluation of job output does not end the study."""
        if (num_bytes := self._bytes_to_read()) > _LARGE_BYTES:
            words.say(f"{self.group.display_name}: reading {num_bytes / 1e9:.1f} GB of job output")
        try:
            observation = self._observation(interrupted, self._changed_files())
            row = group_row.judge(self.group, observation)
            self.record.add_artifact(layout.PHASES, phases.as_json(row.spans, self.clock.record.offsets[0][1]))
            if self.slices:
                self.record.add_artifact(layout.SLICES, json.dumps([dataclasses.asdict(part) for part in self.slices]))
            self._warn_of_shared_files(row)
            self._warn_of_other_programs(row)
            trace.write(self.record, row, self.record.sink.samples, self.fields)
        except Exception as error:  # noqa: BLE001  the study continues after any failure of a group
            self._keep_traceback(error, "the figures could not be computed")
            return endings.make_row_without_figures(self.group, None if interrupted else error, self._states())
        return row

    def judge_others(self, row: GroupResult) -> list[GroupResult]:
        """Return the rows of the other groups of the launch, by their slices; none if the launch went wrong."""
        if not row.result.is_finding or row.result is Result.OOM:
            return []
        measured = {part.num_jobs for part in self.slices}
        return [self._judge_other(group) for group in self.launch[1:] if len(group.jobs) in measured]

    def remove_partial_files(self) -> None:
        """Remove what copies wrote to their folders before a search stopped them, which would soon fill the disk."""
        if self.resources.whole_run_s and self.group.window.stops_scripts:
            for state in self._states():
                if state.ended.told_ns is not None:
                    shutil.rmtree(state.folder / layout.OUTPUT, ignore_errors=True)

    def _judge_other(self, group: Group) -> GroupResult:
        tags = {Tag.LAUNCH: self.record.spool_id} | live_rate.make_tags(group, self.resources.patterns)
        group = live_rate.apply_patterns(group, self.resources.patterns)
        group = dataclasses.replace(group, device=self.group.device)
        states = self._states()[: len(group.jobs)]
        try:
            observation = self._observation(interrupted=False, changed=None)
            observation = dataclasses.replace(observation, batches=[states], launched=self._states(), spans=())
            row = group_row.judge(group, observation)
        except Exception as error:  # noqa: BLE001  as in `judge`
            self._keep_traceback(error, f"the figures of {group.name} could not be computed")
            return endings.make_row_without_figures(group, error, states)
        return dataclasses.replace(row, spans=(), tags=row.tags | tags)

    def _states(self) -> list[JobState]:
        return [state for batch in self.batches for state in batch]

    def _bytes_to_read(self) -> int:
        return sum(state.bytes_to_read for state in self._states())

    def _keep_traceback(self, error: Exception, failure: str) -> None:
        level = logging.DEBUG if isinstance(error, OSError) else logging.ERROR
        log.log(level, "%s: %s", self.group.name, failure, exc_info=error)
        with suppress(OSError):
            self.record.add_artifact(layout.ORCHESTRATOR_ERROR, "".join(traceback.format_exception(error)))

    def _undo_again(self) -> None:
        """Repeat the undo steps that failed: they may succeed now, and the next group needs a restored device."""
        device = self.group.device
        if device.is_gpu:
            with interrupts.hold_interrupts():
                try:
                    replay(Journal(self.group.gpu.lock_dir, device.uuid, driver_programs.find_device_programs(device)))
                except Exception as error:  # noqa: BLE001  the study continues after any failure of a group
                    log.warning("%s was not restored: %s", device.name, error)

    def _observation(self, interrupted: bool, changed: Changes | None) -> Observation:
        idle_power = self.resources.idle_power
        return Observation(
            batches=self.batches,
            samples=self.record.sink.samples,
            fields=self.fields,
            places=self.places,
            reason=self.reason,
            interrupted=interrupted,
            tool_cpu_s=self.tool_cpu_s if self.tool_wall_s else None,
            tool_wall_s=self.tool_wall_s or None,
            idle_w=idle_power.get_w(self.group, 0),
            waiting_w=idle_power.get_w(self.group, idle_measurements.count_contexts(self.group)),
            changed=changed,
            clock=self.clock.record,
            device_marks=self.health._replace(note=join([self.unchecked, self.health.note])),
            tags=tuple(self.tags.items()),
            spans=self.phases.spans,
            slices=self.slices,
            jobs_at_first_steps=self.jobs_at_first_steps,
        )

    def _changed_files(self) -> Changes | None:
        states = self._states()
        began = [state.started.at_ns for state in states if state.started is not None]
        workloads = [
            job.workload
            for job in self.group.jobs
            if not job.workload.is_in_own_folder and not Path(job.workload.script).is_relative_to(_OUR_PROGRAMS)
        ]
        is_shared = len(workloads) > 1 and not self.group.sequential
        if not began or not (is_shared or any(workload.rate.metric is not None for workload in workloads)):
            return None
        try:
            folder = self.resources.working_folder
            locks = Path(self.group.gpu.lock_dir).resolve().glob(f"{layout.SHARED_PREFIX}*")
            own_files = {*locks, self.resources.spool.root, *self.resources.own_files}
            clock, outputs = self.clock.record, self.resources.outputs
            changed = changed_files.find_changes(folder, min(began), clock, without=own_files, inodes=outputs)
        except OSError as error:  # a job may have removed the folder
            self.resources.warn_once(f"could not search for files that several jobs wrote: {error}")
            return None
        if not changed.is_whole:
            self.resources.warn_once(f"could not search for files that several jobs wrote: {folder} has too many files")
        return changed

    def _warn_of_other_programs(self, row: GroupResult) -> None:
        if FOREIGN_LOAD in row.marks.text and FOREIGN_LOAD not in self.resources.warned:
            self.resources.warned.add(FOREIGN_LOAD)
            log.warning("%s the machine: %s", FOREIGN_LOAD, host_info.describe_load())

    def _warn_of_shared_files(self, row: GroupResult) -> None:
        if (shared := row.tags.get(Tag.SHARED_FILES)) is not None:
            remedy = "separate them by workload.run_in=job_folder, or by {output_dir} in the arguments"
            self.resources.warn_once(f"{shared}; {remedy}")

    def _set_up_and_run(self, stack: UndoStack) -> None:
        group = self.group
        self.phases.begin(phases.SETUP)
        self._refuse_missing_files(group.jobs)
        self.unchecked = lease.refuse_strangers(group.device, group.gpu.tolerate)
        self.resources.idle_power.measure_idle(group, self.record.folder, self.record.sink, self.phases)
        self.phases.begin(phases.SETUP)
        profiler: Profiler = factory.build_object(group.profiler.build)
        stack.enter_context(profiler.prepare(group))
        sharing: Sharing = factory.build_object(group.sharing)
        slots = stack.enter_context(sharing.prepare(group, self.record.scratch))
        self.slots = slots.slots
        self.record.place(self.slots)
        self.places = [slot.placement for slot in slots.slots]
        listeners: list[tuple[ListenerSpec, Listener]] = [
            (spec, factory.build_object(spec.build, interval_ms=spec.interval_ms))
            for spec in group.listeners
            if not self._is_pointless(spec)
        ]
        running_group = RunningGroup(
            device=group.device,
            slots=slots.slots,
            folder=self.record.folder,
            samples=self.record.sink.samples,
        )
        for spec, listener in listeners:
            self._observe(spec, listener, running_group, stack)
        self.fields = Fields(listener.table for listener in self.helpers)
        running_group.tables = self.fields.tables
        self.record.add_artifact(layout.FIELDS, self.fields.as_json())
        if group.pack is not None:
            self._run_pack(group.pack, running_group, slots, profiler, stack)
            return
        stack.enter_context(self.resources.show_group(group, running_group))
        for jobs in [[job] for job in group.jobs] if group.sequential else [group.jobs]:
            self.phases.begin(phases.LAUNCH)
            self._refuse_missing_files(jobs)
            starts = [self._start(job, slots.slots[job.index], profiler) for job in jobs]
            files = GroupFiles(folder=self.record.folder, scratch=self.record.scratch, mark=self.record.spool_id)
            with UndoStack() as processes:
                go_on = group.is_of_different_programs
                running = JobGroup(starts, files, group.limits, block=group.block, pin_cpus=group.pin_cpus, go_on=go_on)
                self.batches.append(running.states)
                processes.enter_context(running)
                running_group.pids = running.pids
                if running.wait_ready():
                    self._measure(running, slots, starts, profiler)
            if running.went_wrong and not go_on:
                break

    def _run_pack(
        self, settings: PackSettings, running_group: RunningGroup, slots: Slots, profiler: Profiler, stack: UndoStack
    ) -> None:
        self.phases.begin(phases.WINDOW)
        self._refuse_missing_files(self.group.jobs)
        pack = PackRun(
            self.group, settings, self.record, lambda job: self._start(job, slots.slots[job.index], profiler)
        )
        self.batches.append(pack.states)
        running_group.describe = pack.summarize
        stack.enter_context(self.resources.show_group(self.group, running_group))
        files = GroupFiles(folder=self.record.folder, scratch=self.record.scratch, mark=self.record.spool_id)
        with UndoStack() as processes:
            running = processes.enter_context(JobGroup([], files, self.group.limits, block=self.group.block))
            running_group.pids = running.pids
            pack.run(running, running_group, partial(self._admit, slots))
        self.tags[Tag.PACK] = pack.describe()

    def _admit(self, slots: Slots, state: JobState) -> None:
        """Charge a trial's memory on a simulated GPU, and check the trial's place on the device."""
        if self.resources.rehearsal is not None:
            python = str(self.resources.interpreters[state.job.workload.env].python)
            self.resources.rehearsal.charge([state], slots.slots, [python], self.group.gpu.job_memory_mib)
        if not state.went_wrong and state.working_pid is not None:
            slots.verify({state.job.index: state.working_pid})

    def _measure(self, running: JobGroup, slots: Slots, starts: Sequence[JobStart], profiler: Profiler) -> None:
        group = self.group
        if self.resources.rehearsal is not None:
            pythons = [str(start.starter.interpreter.python) for start in starts]
            self.resources.rehearsal.charge(running.states, slots.slots, pythons, group.gpu.job_memory_mib)
            if running.went_wrong:
                return
        slots.verify(running.pids())
        self.resources.sender.finish_requests()
        self.resources.warm_start.await_imports()
        wait, sink = running.wait_at_barrier, self.record.sink
        self.resources.idle_power.measure_waiting(group, wait, sink, self.fields, self.phases)
        if running.went_wrong:
            return
        self.phases.begin(phases.LAUNCH if group.window.stops_scripts else phases.WINDOW)
        with self._measure_overhead():
            self._measure_window(running)
        self.phases.begin(phases.END, running.states[0].ended.told_ns)
        self._note_missing_reports(profiler, running.states)

    def _measure_window(self, running: JobGroup) -> None:
        group = self.group
        if group.window.stops_scripts:
            self._measure_printed(running)
            return
        if group.window.kind is not WindowKind.INTERLEAVED:
            running.measure(group.window)
            return
        turns = {len(other.jobs): 1 for other in self.launch}
        if any(other.sequential for other in self.launch):
            turns[1] = BASELINE_TURNS
        slice_s = group.window.slice_s or self.resources.slices_s.get(group.key, 0.0)
        window = dataclasses.replace(group.window, slice_s=slice_s)
        interleaving = Interleaving(running, window, turns, f"{group.seed}-{group.digest}")
        self.slices, self.jobs_at_first_steps = interleaving.slices, interleaving.jobs_at_first_steps
        interleaving.measure()
        self.resources.slices_s[group.key] = interleaving.window.slice_s

    def _measure_printed(self, running: JobGroup) -> None:
        """Stop the jobs when they have printed rates for long enough; then these are their rates from now on."""
        seconds, whole_run_s = self.group.window.seconds, self.resources.whole_run_s
        printed = live_rate.PrintedRates(running.states, seconds, whole_run_s=whole_run_s)
        begin_s = said_s = time.monotonic()

        def is_over() -> bool:
            nonlocal said_s
            now_s = time.monotonic()
            if printed.begin_ns is None and not self.slices and now_s - said_s > _SILENCE_S:
                said_s = now_s
                jobs = f"{printed.num_printing} of {words.format_count(len(running.states), 'job')}"
                words.say(
                    f"    starting up: {jobs} have printed a step or a speed ({words.format_duration(now_s - begin_s)})"
                )
            return printed.is_over()

        if len(self.launch) == 1:
            running.measure(self.group.window, is_over)
        else:
            self._measure_fewer(running, printed, is_over)
        begin_ns = self.slices[0].begin_ns if self.slices else printed.begin_ns
        first = running.states[0]
        self.phases.begin(phases.WINDOW, first.released_ns if first.ended.told_ns is None else begin_ns)
        for state in running.states:
            digest, was_stopped = state.job.workload.digest, state.ended.told_ns is not None
            if state.job.workload.rate.is_sought and (was_stopped or state.ended_well):
                self.resources.patterns[digest] = printed.patterns[digest] if was_stopped else None
        self.group = live_rate.apply_patterns(self.group, self.resources.patterns)
        jobs = {job.index: job for job in self.group.jobs}
        for state in running.states:
            state.job = jobs[state.job.index]

    def _measure_fewer(self, running: JobGroup, printed: live_rate.PrintedRates, is_over: Callable[[], bool]) -> None:
        """Measure the jobs of each group of the launch, most jobs first; then those that the next lacks are stopped."""
        running.release(running.states)
        numbers = [len(group.jobs) for group in self.launch]
        for number, fewer in itertools.pairwise([*numbers, 0]):
            states = running.states[:number]
            if not running.wait_end(states, is_over):
                return
            end_ns = time.monotonic_ns()
            if printed.begin_ns is not None and end_ns - printed.begin_ns >= self.group.window.seconds * 1e9:
                self.slices = [*self.slices, Slice(num_jobs=number, begin_ns=printed.begin_ns, end_ns=end_ns)]
            if any(state.has_ended for state in states):
                fewer = 0
            running.stop(states[fewer:])
            if running.went_wrong or not fewer:
                return
            printed.restart(fewer)

    def _refuse_missing_files(self, jobs: Sequence[Job]) -> None:
        """Raise `LaunchError` if the working directory or a script was removed; enter a directory made anew."""
        for job in jobs:
            folder, script = self.resources.working_folder, Path(job.workload.script)
            try:
                os.chdir(folder)
            except OSError as error:
                if not job.workload.is_in_own_folder:
                    raise LaunchError(f"job {job.name} cannot start in {folder}: {error.strerror}") from error
            if script.is_absolute() and not script.exists():
                raise LaunchError(f"job {job.name}: {script} was removed during the study; restore it")

    def _start(self, job: Job, slot: Slot, profiler: Profiler) -> JobStart:
        if self.group.device.is_simulated:  # hides all real GPUs from CUDA
            slot = dataclasses.replace(slot, visible_devices="")
        interpreter = self.resources.interpreters[job.workload.env]
        container, folder = interpreter.container, self.record.folder / layout.job_path(job.index)
        if self.group.profiler.is_none and container is None:
            # Libraries derive their number of threads from the CPUs that are available when they are imported.
            warm = None if self.group.pin_cpus else self.resources.warm_start.starter(job.workload, interpreter)
            return JobStart(job=job, slot=slot, starter=warm or Spawner(interpreter))
        # A profiler or a container must start the program itself.
        prefix = profiler.prefix(folder)
        if container is not None:
            study = self.resources.working_folder
            programs = [str(PROJECT_DIR), *job.workload.module_path, str(Path(job.workload.script).parent)]
            folders = [self.record.scratch, folder, study, *(study / program for program in programs)]
            prefix += container.spell(folders, folder / layout.OUTPUT if job.workload.is_in_own_folder else study)
        wrapper = profiler.name if container is None else container.program
        return JobStart(job=job, slot=slot, starter=Spawner(interpreter, prefix), wrapper=wrapper)

    def _note_missing_reports(self, profiler: Profiler, states: Sequence[JobState]) -> None:
        profiled = [state for state in states if not self.group.profiler.is_none and state.ended_well]
        without = [state.job.name for state in profiled if profiler.report(state.folder) is None]
        if without:
            message = (
                f"{profiler.name} wrote no report for {', '.join(without)}; see stdout.log and stderr.log of the job"
            )
            before = self.tags.get(Tag.NO_REPORT)
            self.tags[Tag.NO_REPORT] = f"{before}; {message}" if before else message
            log.warning("%s: %s", self.group.name, message)

    def _is_pointless(self, spec: ListenerSpec) -> bool:
        if spec.required is not Required.IF_GPU or self.group.device.is_gpu:
            return False
        self.tags[listener_tag(spec.name)] = "left out: no GPU"
        return True

    def _observe(self, spec: ListenerSpec, listener: Listener, running_group: RunningGroup, stack: UndoStack) -> None:
        observing = listener.observe(running_group, self.record.sink)
        with interrupts.hold_interrupts(), self._unless_required(spec):
            observing.__enter__()
            self.helpers.append(listener)
            if (source := listener.table.source) != spec.name:
                self.tags[listener_tag(spec.name)] = f"source: {source}"
            stack.push(partial(self._end_observing, spec, observing))

    def _end_observing(self, spec: ListenerSpec, observing: AbstractContextManager[None], *raised: Any) -> bool | None:
        if raised[1] is not None:
            return observing.__exit__(*raised)
        with self._unless_required(spec):
            observing.__exit__(None, None, None)
        return None

    @contextmanager
    def _unless_required(self, spec: ListenerSpec) -> Iterator[None]:
        try:
            yield
        except ListenerError as error:
            if spec.required is not Required.NO:
                raise
            self.tags[listener_tag(spec.name)] = f"absent: {error}"
            if not isinstance(error, NoSensorError):
                self.resources.warn_once(f"left out: {error}")

    @contextmanager
    def _measure_overhead(self) -> Iterator[None]:
        before_s, begin_ns = self._cpu_s(), time.monotonic_ns()
        try:
            yield
        finally:
            self.tool_cpu_s += self._cpu_s() - before_s
            self.tool_wall_s += (time.monotonic_ns() - begin_ns) / 1e9

    def _cpu_s(self) -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        for pid in (*self.resources.sender.pids(), *(pid for helper in self.helpers for pid in helper.pids())):
            with suppress(psutil.Error):
                times = psutil.Process(pid).cpu_times()
                self.helper_cpu_s[pid] = times.user + times.system
        return usage.ru_utime + usage.ru_stime + sum(self.helper_cpu_s.values())
