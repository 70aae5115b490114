"""One run of a study: holds the devices, runs the groups, sends the results and prints a summary."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeline.base.domain import layout
from pipeline.base.domain.protocols import RunningGroup, ShowGroup
from pipeline.base.domain.records import Group, Plan, Result, Resume
from pipeline.base.domain.tags import Tag
from pipeline.base.system import entry_points, host_info, interrupts, words
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.base.system.interrupts import Interrupted, UndoStack
from pipeline.base.system.paths import expand_path, shorten_path
from pipeline.base.system.words import format_count, format_duration
from pipeline.clean.journal import Journal
from pipeline.launch.window_length import SLICES_S
from pipeline.observe import endings, live_rate, output_rates, phases
from pipeline.observe.baseline_comparison import Comparison
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.observe.study_progress import MemoryForecast, Progress
from pipeline.observe.view import PlainView, make_view
from pipeline.plan import plan_builder, plan_text
from pipeline.plan.config_schema import ForeignLoad, Memory, OnFailure
from pipeline.plan.inventory import Inventory
from pipeline.prepare.device import lease
from pipeline.record import group_folder, provenance
from pipeline.record.group_folder import Survey
from pipeline.record.owner import spell_close_command
from pipeline.record.spool import Spool
from pipeline.record.store import local_store
from pipeline.study import executor, pack_trials, plans, stored_results, summary
from pipeline.study.climb import Climb
from pipeline.study.group_execution import StudyResources
from pipeline.study.stopping_rule import StoppingRule
from pipeline.study.study_request import StudyRequest

_BUSY_SHARE = 0.25
"""Share of the CPUs in use by other programs above which a warning is printed before the study."""
_AFTER_SIGNAL_S, _AFTER_SIGNAL_WHILE_SENDING_S = 20.0, 5.0
"""Time to send the remaining results after a signal; a scheduler sends SIGKILL half a minute after its first signal."""

_PART_ALONE = 0.5
"""Part of the minutes of a search that the job alone may take; a group of several jobs may take all."""
_SIGNAL_EARLY_S = 90.0


class StudyRun:
    """One run of a study on the devices of its plan."""

    def __init__(self, request: StudyRequest, inventory: Inventory, plan: Plan, *, waited_s: float) -> None:
        assert request.sender is not None
        self.waited_s, self.folder = waited_s, Path.cwd()  # jobs may remove the folder
        self.request, self.inventory, self.plan = request, inventory, plan
        self.config, self.sender, self.root = request.config, request.sender, request.root
        self.comparison = Comparison()
        self.rows: list[GroupResult] = []
        self.cpu_use = host_info.read_cpu_use()
        self.ended_by: Interrupted | None = None  # signal that arrived while results were being sent
        self.is_pack = self.config.pack.trials is not None
        if self.is_pack and len(plan.groups) > 1:
            raise ConfigError("the parts of a pack run on several GPUs; add hydra/launcher=gpus, or remove pack.part")
        self.ended_trials: list[JobResult] = []  # trials of a pack that earlier starts ended
        self.memory: MemoryForecast | None = None  # skips groups that will not fit
        self.unsent: tuple[Path, ...] = ()  # folders of groups that earlier studies could not send
        num_compared = len(plan_builder.select_compared(plan.groups))
        minutes = self.config.advise_minutes
        self.climb = None if minutes is None else Climb(plan.experiment, plan.groups, minutes)
        self.rule = None if plan.goal is None else StoppingRule(plan.experiment, plan.goal, num_compared)

    def take_devices(self, stack: UndoStack) -> None:
        """Hold the devices, and undo changes and end processes of killed orchestrators.

        Raises:
            InUseError: another user or study holds one of the devices.
        """
        gpu = self.config.gpu
        for device in self.plan.devices:
            stack.enter_context(lease.hold(device, Path(gpu.lock_dir)))
        # Processes of killed orchestrators are ended first; they would count as processes of other users below.
        survey = plans.end_leftovers(self.root)
        self.unsent = survey.ready
        if self.config.shard is None:  # a worker expects other workers on other hosts
            self._print_remote_groups(survey)
        for device in self.plan.devices:
            plans.undo_steps(device, gpu)
            if note := lease.refuse_strangers(device, gpu.tolerate):
                words.say(f"note: {note}; end them yourself")

    def _print_remote_groups(self, survey: Survey) -> None:
        for owner, number in Counter(survey.elsewhere.values()).items():
            words.say(
                f"note: host {owner} may still run {format_count(number, 'group')} in {self.root / layout.SPOOL}; "
                f"if this host has failed, run: {spell_close_command(self.root)}"
            )

    def run(self, showing: ShowGroup) -> int:
        """Open the store, run the missing groups, and show the results."""
        facts = self._facts()
        text = "".join(f"{key}: {value}\n" for key, value in sorted(facts.items()))
        programs = {job.workload.script: job.workload for group in self.plan.groups for job in group.jobs}
        origins = {script: provenance.find_origin(workload) for script, workload in programs.items()}
        artifacts = {layout.PLAN: f"{plan_text.format_plan(self.plan)}\n", layout.PROVENANCE: text}
        tracking, interpreters = self.config.tracking, self.inventory.interpreters
        self.sender.open(self.plan.experiment, self.root, tracking.uri, tracking.series_points)
        if tracking.uri is not None or not local_store.is_ready(self.root, self.plan.experiment):
            self._wait_for_store()  # an existing local store is opened while the first jobs start
        self._send_leftovers()
        groups, finished_rows = self._divide()
        if self.rule is not None:
            self.rule.refuse_other_gpus(finished_rows)
        self.spool = Spool(self.root, self.sender, facts, artifacts, interpreters, tracking.uri, origins)
        for line in (*plan_text.list_warnings(self.plan), *plan_text.list_notes(self.plan)):
            words.say(line)
        self._warn_of_other_programs()
        view = make_view(Progress(self.plan.groups, [row.result for row in finished_rows], groups))
        view.progress.is_open = self.climb is not None
        if self.rule is not None:
            self._print_block_forecast(self.rule, groups, finished_rows, view.progress)
        if self.config.memory is Memory.forecast:
            self.memory = MemoryForecast(self.plan.groups, stored_results.find_past_groups(self.request))
        begin_s = time.monotonic()
        try:
            self._add_rows(finished_rows)
            self._run(groups, view, showing)
        except Interrupted as interrupted:
            if self.request.invocation.slurm_task:  # Slurm, not the user, sent the signal
                words.say(f"{interrupted}{self._describe_limit(time.monotonic() - begin_s)}")
            raise
        finally:
            with interrupts.hold_interrupts():
                self._finish()
                self.request.summary = self._summarize(time.monotonic() - begin_s)
                self._print_time_shares(time.monotonic() - begin_s, finished_rows)
                is_sent = self._report_unsent()
            if self.ended_by is not None:
                raise self.ended_by
        if self.climb is not None:  # a group that failed beside others is part of the answer
            return 0 if is_sent and self.climb.recommendation is not None else 1
        is_whole = len(self.rows) == len(self.plan.groups)
        is_whole = is_whole and not pack_trials.have_failed(self.rows, self.ended_trials)
        return 0 if is_sent and is_whole and all(row.result.is_finding for row in self.rows) else 1

    def _divide(self) -> tuple[tuple[Group, ...], list[GroupResult]]:
        """Return the groups to run, and the rows of the finished ones."""
        if not self.is_pack:
            if self.config.resume == Resume.NO:
                return self.plan.groups, []
            return stored_results.divide(self.request, self.plan, self.inventory)
        pack = self.plan.groups[0]
        if self.config.resume != Resume.NO:
            remaining, ended_trials = pack_trials.divide(self.request, pack)
            if not remaining.jobs:
                return (), [pack_trials.make_row(pack, ended_trials)]
            pack, self.ended_trials = remaining, ended_trials
        return (pack_trials.begin_as_known(pack, stored_results.find_past_groups(self.request)),), []

    def _print_block_forecast(
        self, rule: StoppingRule, groups: Sequence[Group], finished_rows: Sequence[GroupResult], progress: Progress
    ) -> None:
        stored = finished_rows or stored_results.find_known(self.request, self.plan)
        for line in rule.forecast(groups, stored, stored_results.find_past_groups(self.request), only_known=True):
            words.say(line)
        progress.last_block, progress.is_least = rule.last_block, rule.is_least

    def _warn_of_other_programs(self) -> None:
        used, num_cpus = host_info.read_cpu_use().foreign_since(self.cpu_use), len(os.sched_getaffinity(0))
        if used > _BUSY_SHARE * num_cpus:
            keep = "" if self.config.foreign_load is ForeignLoad.note else ", or keep the rows with foreign_load=note"
            words.say(
                f"warning: other programs use {used:.1f} of {num_cpus} CPUs ({host_info.describe_load()}), so rows of "
                f"jobs that wait for CPUs will be marked; measure on an idle machine{keep}"
            )

    def _describe_limit(self, elapsed_s: float) -> str:
        limit_s = self.config.time_limit_s
        is_near = limit_s is not None and limit_s - elapsed_s - self.waited_s < _SIGNAL_EARLY_S
        return f", near the end of time_limit_s={limit_s:g}" if is_near else ""

    def _facts(self) -> dict[str, str]:
        facts = provenance.collect(self.inventory.interpreters, self.request.invocation)
        facts |= stored_results.list_plan_facts(self.request, self.plan) | {
            "other_gpus": str(self.config.gpu.other_gpus)
        }
        if self.config.shard is not None:
            facts["shard"] = str(self.config.shard)
        if self.config.resume == Resume.ACCEPT_ENVIRONMENT:
            facts["accepts_environment"] = "true"
        if self.request.reproduction is not None:
            facts["reproduces"] = self.request.reproduction.original.run_id
        return facts

    def _list_own_files(self) -> set[Path]:
        machine = {self.request.simulated.file} if self.request.simulated is not None else set()
        files = machine | {file.with_name(f"{file.name}.bin") for file in machine}
        if self.config.plan_file is not None:
            plan_file = expand_path("plan_file", self.config.plan_file).absolute()
            files |= {plan_file, plan_file.parent}
        return files

    def _wait_for_store(self) -> None:
        """Wait until the store is open. A worker continues without its server, because its launcher opened the store.

        Runs that earlier attempts of the same shard left open are closed, because the host of an attempt may have
        died, which no lock on this host can show.
        """
        try:
            self.sender.wait_for_store()
            if self.config.shard is not None:
                for name in self.sender.close_lost(self.plan, self.config.shard):
                    words.say(f"closed as interrupted: {name} of an earlier attempt of shard {self.config.shard}")
        except TrackingError as error:
            if self.config.plan_file is None or self.config.resume != Resume.NO:
                raise
            words.say(f"warning: {error}; new groups wait in the spool")

    def _send_leftovers(self) -> None:
        for folder in self.unsent:
            self.sender.send(folder)
        late = group_folder.list_amendments(self.root / layout.SPOOL)
        for file in late:
            self.sender.amend(file)
        if self.unsent or late:
            self.sender.finish_requests()

    def _run(self, groups: Sequence[Group], view: PlainView, showing: ShowGroup) -> None:
        @contextmanager
        def show_group(group: Group, running: RunningGroup) -> Iterator[None]:
            with view.show(group, running), showing(group, running):
                yield

        servers = executor.warm_start(groups, self.inventory.interpreters, is_enabled=self.config.warm_start)
        with UndoStack() as stack:
            resources = StudyResources(
                interpreters=self.inventory.interpreters,
                spool=self.spool,
                sender=self.sender,
                warm_start=stack.enter_context(servers),
                show_group=show_group,
                rehearsal=self.request.simulated,
                outputs=self.request.invocation.outputs,
                own_files=self._list_own_files(),
                working_folder=self.folder,
                slices_s=self._list_slice_lengths(),
                whole_run_s=0.0 if self.climb is None else self.climb.whole_run_s,
                patterns={k: v for row in self.rows for k, v in live_rate.read_tags(row.group, row.tags).items()},
            )
            begin_s, limit_s = time.monotonic() - self.waited_s, self.config.time_limit_s
            launches = deque(plan_builder.split_by_launch(groups))
            while launches:
                launch = launches.popleft()
                if self.rule is not None and self._is_goal_reached(self.rule, launch[0].block, view.progress):
                    break
                if self.climb is not None:
                    following = [group for other in launches for group in other if group.block == launch[0].block]
                    selected = self.climb.select(launch, self._list_latest_rows(), following)
                    pending = (launch if selected else [], *launches)
                    launches = deque(
                        filter(None, ([group for group in other if group not in selected] for other in pending))
                    )
                    unselected = [group for other in launches for group in other if group.block == launch[0].block]
                    view.progress.replace_next([*launch, *following], [*selected, *unselected])
                    if not selected:
                        continue
                    launch = selected
                if limit_s is not None and time.monotonic() - begin_s > limit_s:
                    words.say(f"time_limit_s={limit_s:g} is over; the remaining groups are not started")
                    break
                self.request.has_started = True
                rows = executor.run([self._skip_if_too_large(self._limit(group)) for group in launch], resources)
                for group in launch:
                    view.begin(group)
                    row = next(rows)
                    view.done(row)
                    self._add_rows([row])
                    is_first = len(self.rows) == 1 and row.result is Result.OK
                    if is_first and any(job.workload.rate.is_sought for job in group.jobs):
                        words.say(_describe_source(row))
                    if self.config.on_failure is OnFailure.stop and not row.result.is_finding:
                        words.say(
                            f"on_failure=stop: {group.display_name}: {row.result}; the remaining groups are not started"
                        )
                        return

    def _list_slice_lengths(self) -> dict[str, float]:
        """Return the length of slices that earlier starts of this study chose, by the key of the group."""
        slices = {row.group.key: row.tags.get(Tag.SLICES, "").partition(" x ")[2] for row in self.rows}
        return {key: length_s for key, text in slices.items() for length_s in SLICES_S if text == f"{length_s:g} s"}

    def _limit(self, group: Group) -> Group:
        """Limit a group of a search, which nothing else ends if a program prints no rate, or hardly any."""
        if self.config.advise_minutes is None:
            return group
        part = _PART_ALONE if group.sequential else 1.0
        group_s = min(group.limits.group_s, 60 * self.config.advise_minutes * part)
        return dataclasses.replace(group, limits=dataclasses.replace(group.limits, group_s=group_s))

    def _skip_if_too_large(self, group: Group) -> Group:
        need = None if self.memory is None else self.memory.forecast(group)
        return group if need is None or need.fits else dataclasses.replace(group, skip_reason=need.words)

    def _is_goal_reached(self, rule: StoppingRule, block: int, progress: Progress) -> bool:
        """Return whether the study ends before a block; its plan then ends there, too."""
        if any(row.group.block >= block for row in self.rows):  # the block has begun, or an earlier one runs again
            return False
        if is_reached := rule.stops_before(block, self._list_latest_rows()):
            self.plan = plan_builder.cut_plan(self.plan, lambda group: group.block < block)
        progress.last_block, progress.is_least = rule.last_block, rule.is_least
        return is_reached

    def _list_latest_rows(self) -> list[GroupResult]:
        return [self.comparison.get_latest(row) for row in self.rows]

    def _add_rows(self, rows: Sequence[GroupResult]) -> None:
        self.rows += rows
        if self.memory is not None:
            for row in rows:
                self.memory.add(row)
        new_rows = {row.group.digest: row for row in rows}
        changes = {changed.group.digest: changed for row in rows for changed in self.comparison.add(row)}
        for digest, changed in changes.items():
            new_row = new_rows.get(digest)
            if (
                new_row is not None
                and changed.result is new_row.result
                and changed.metrics.items() <= new_row.metrics.items()
            ):
                continue  # the store already has these figures, as in a resumed study
            self.spool.amend(changed)
            if changed.result is not Result.OK:
                words.say(f"{changed.group.display_name}: {changed.result}: {changed.reason}")

    def _summarize(self, elapsed_s: float) -> str:
        results = Counter(str(row.result) for row in self._list_latest_rows())
        ended = ", ".join(f"{number} {result}" for result, number in results.items()) or "none ended"
        num_groups = format_count(len(self.plan.groups), "group")
        if self.plan.goal is None and (num_missing := len(self.plan.groups) - len(self.rows)):
            ended += f", {num_missing} not finished"
        return f"{self.plan.experiment}: {num_groups}, {ended}, in {format_duration(elapsed_s)}"

    def _finish(self) -> None:
        if self.climb is not None and not self.rows and interrupts.has_ended_work():
            words.say("no group is complete, so nothing was kept; repeat the command")
        if self.climb is not None:
            ran = {row.group.digest for row in self.rows}
            self.plan = plan_builder.cut_plan(self.plan, lambda group: group.digest in ran)
        try:
            if self.rows and self.climb is not None:
                options = self.request.invocation.words_of_launcher or self.request.invocation.words
                answer = self.climb.answer(self._list_latest_rows(), options)
                sys.stdout.writelines(f"{line}\n" for line in answer)
            elif self.rows and self.is_pack:
                sys.stdout.writelines(f"{line}\n" for line in pack_trials.describe(self.rows[0], self.ended_trials))
            elif self.rows:
                # rows are still being sent
                journals = [Journal(Path(self.config.gpu.lock_dir), device.uuid) for device in self.plan.devices]
                rows, invocation = self._list_latest_rows(), self.request.invocation
                summary.show(self.plan.experiment, rows, invocation, self.request.reproduction, journals)
        finally:
            self._send_pending()
        if self.rows:
            for line in endings.describe_failures(self.rows, self._error_log):
                sys.stdout.write(f"{line}\n")
            failed = {
                run: row.group.name
                for row in self.rows
                if row.result.mlflow_status == "FAILED" and (run := self.spool.find_run(row))
            }
            summary.show_where(self.plan.experiment, self.config.tracking, self.sender, self.root, failed)
        if self.rule is not None:
            self._print_precision(self.rule)
        if self.climb is not None and self.rows:
            stored_results.assign_to_plan(self.request, self.plan, self.rows)
        self._print_resume_command()

    def _print_precision(self, rule: StoppingRule) -> None:
        if rule.stopped_after is not None:
            stored_results.assign_to_plan(self.request, self.plan, self.rows)
        if end := rule.describe_end(self._list_latest_rows()):
            words.say(end)

    def _send_pending(self) -> None:
        """Send the remaining groups; after a signal only for a short time. Unsent groups stay in the spool."""
        until_s = time.monotonic() + _AFTER_SIGNAL_S if interrupts.has_ended_work() else None
        try:
            with interrupts.allow():
                self.sender.finish_requests(until_s)
                for folder in list(self.sender.unsent):
                    self.sender.send(folder)  # the server may be available again
                self.sender.finish_requests(until_s)
                for file in self.spool.list_unsent_amendments():
                    self.sender.amend(file)
                self.sender.finish_requests(until_s)
        except Interrupted as error:
            self.ended_by = error
            self.sender.finish_requests(time.monotonic() + _AFTER_SIGNAL_WHILE_SENDING_S)
        self.spool.remove_if_empty()

    def _report_unsent(self) -> bool:
        unsent, late = len(self.sender.unsent), len(self.spool.list_unsent_amendments())
        of_others = [folder for folder in self.sender.unsent if folder.parent.name != self.spool.study]
        if unsent or late:
            command = entry_points.spell("tracking", "flush", "--root", str(self.root))
            figures = f"figures of {words.format_count(late, 'group')}"
            subject = words.format_count(unsent, "group") + (f" and {figures}" if late else "") if unsent else figures
            words.say(
                f"warning: {subject} could not be sent and wait in {self.root / layout.SPOOL}; the next study sends "
                f"them; to send them now, run: {command}"
            )
        return unsent == len(of_others) and not late

    def _error_log(self, row: GroupResult, index: int) -> str:
        folder = self.spool.locate_job(row, index)
        return f"{shorten_path(folder) if isinstance(folder, Path) else folder}/{layout.STDERR}"

    def _print_resume_command(self) -> None:
        if self.climb is not None and self.rows:  # its answer says how to go on
            return
        num_missing = len(self.plan.groups) - len(self.rows)
        num_failed = 0 if self.is_pack else sum(not row.result.is_finding for row in self.rows)
        if self.request.reproduction is None and (num_missing or num_failed):
            most = "" if self.plan.goal is None else "at most "  # the goal may be reached before
            parts = [f"{most}{num_missing} not finished"] * bool(num_missing)
            parts += [f"{num_failed} failed"] * bool(num_failed)
            all_groups = format_count(len(self.plan.groups), "group")
            invocation = self.request.invocation
            pronoun = "it" if num_missing + num_failed == 1 else "them"
            # A launcher prints its own command.
            command_hint = "" if invocation.has_launcher else f"; to run {pronoun}: {invocation.masked_resume_command}"
            words.say(f"{all_groups}: {', '.join(parts)}{command_hint}")
            if not self.folder.is_dir():
                words.say(f"the working folder {self.folder} was removed during the study; make it again first")

    def _print_time_shares(self, elapsed_s: float, finished_rows: Sequence[GroupResult]) -> None:
        new_metrics = [row.metrics for row in self.rows[len(finished_rows) :]]
        if not self.is_pack and (share := phases.describe_shares(new_metrics, elapsed_s)):
            words.say(f"{format_count(len(new_metrics), 'group')} in {format_duration(elapsed_s)}: {share}")


def _describe_source(row: GroupResult) -> str:
    """Say what the first run of a script has shown: whether what it prints is measured, or its whole run."""
    workload = row.group.jobs[0].workload
    if output_rates.is_counter(workload.rate.pattern):
        return f"note: {workload.name} prints the numbers of its steps, whose rise is measured without start-up"
    if (pattern := workload.rate.pattern) is not None:
        setting = shlex.quote(f'workload.metric_pattern="{pattern}"')
        return f"note: {workload.name} prints its speed, which is measured without start-up, as with {setting}"
    return f"note: the whole run of {workload.name} is measured, with start-up"
