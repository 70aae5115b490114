"""Runs the trials of a pack: carries out the moves of a `TrialSchedule`, and reports rates, ends and memory to it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from pipeline.base.domain import layout
from pipeline.base.domain.protocols import RunningGroup
from pipeline.base.domain.records import Group, Job, PackSettings, Result
from pipeline.base.domain.trial_words import find_shared_words, spell_trial
from pipeline.base.system import interrupts, words
from pipeline.base.system.words import format_count, format_duration
from pipeline.launch import event_reader
from pipeline.launch.job_group import JobGroup, JobStart
from pipeline.launch.job_state import JobState
from pipeline.observe import endings
from pipeline.observe.live_rate import LiveRate
from pipeline.observe.sample_figures import Fields
from pipeline.record.spool import SpoolRun
from pipeline.study.trial_schedule import LEAST_TURNS, Move, Step, TrialSchedule

_LOOK_S = 0.5
"""Time after which rates and memory are read, if no trial ends before."""
_READ_SAMPLES = 500
_FIRST_ATTEMPT = "first_attempt"
"""Folder in a trial's output with the files of its first attempt, which was out of memory."""


class PackRun:
    """The trials of one group while they run.

    Attributes:
        states: states of the started trials, in the order of their starts; of a trial that started twice, the last.
    """

    def __init__(
        self, group: Group, settings: PackSettings, record: SpoolRun, start: Callable[[Job], JobStart]
    ) -> None:
        self._group, self._settings, self._record, self._start = group, settings, record, start
        self._shared_words = find_shared_words(group.jobs)
        self._schedule = TrialSchedule(
            len(group.jobs),
            most=settings.most,
            first=settings.first,
            is_fixed=settings.is_fixed,
            check_share=settings.check_share,
        )
        self.states: list[JobState] = []
        self._live: dict[int, JobState] = {}
        self._rates: dict[int, LiveRate] = {}
        self._took_s: list[float] = []
        self._num_ended, self._most_at_once = 0, 1
        self._begin_s = time.monotonic()

    def run(self, jobs: JobGroup, running_group: RunningGroup, admit: Callable[[JobState], None]) -> None:
        """Run all trials to their ends; `admit` is called with each one before it begins."""
        fields = Fields(running_group.tables)
        while not self._schedule.is_over:
            with interrupts.hold_interrupts():
                for move in self._schedule.choose(time.monotonic()):
                    self._carry_out(move, jobs)
            jobs.release_ready(_LOOK_S, admit)
            with interrupts.hold_interrupts():
                for state in list(self._live.values()):
                    if state.has_ended or state.started is None:
                        self._end(state, jobs)
            self._read(fields, running_group)

    def describe(self) -> str:
        """Describe what the pack did and what it gained: `24 trials in 41 min; ...`."""
        took_s = time.monotonic() - self._begin_s
        trials = format_count(len(self._group.jobs), "trial")
        text = f"{trials} in {format_duration(took_s)}, up to {self._most_at_once} at a time ({self._group.scenario})"
        turns = format_count(len(self._schedule.turns), "turn")
        if (serial := self._schedule.estimate_serial_s()) is None:
            claim = f"; no comparison with one at a time, because only {turns} of {LEAST_TURNS} were possible"
            return text + claim * (self._settings.check_share > 0)
        expected, least, most = map(format_duration, serial)
        return f"{text}; one at a time {expected} ({least} to {most}, from {turns} in which one trial ran alone)"

    def _carry_out(self, move: Move, jobs: JobGroup) -> None:
        if move.step is Step.HOLD:
            jobs.hold_process(self._live[move.trial])
        elif move.step is Step.CONTINUE:
            jobs.resume_process(self._live[move.trial])
        else:
            start = self._start(self._group.jobs[move.trial])
            self._record.begin_trial(move.trial, start.slot)
            state = jobs.add(start)
            self.states[:] = [earlier for earlier in self.states if earlier.job.index != move.trial] + [state]
            self._live[move.trial], self._rates[move.trial] = state, LiveRate(state)
        self._most_at_once = max(self._most_at_once, len(self._schedule.running))

    def _end(self, state: JobState, jobs: JobGroup) -> None:
        index = state.job.index
        log = event_reader.read(state.folder / layout.EVENTS, state.lifetime)
        ending = endings.judge_job(state, log, interrupted=False)
        trial = spell_trial(state.job, self._shared_words)
        del self._live[index], self._rates[index]
        jobs.remove(state)
        starts_again = self._schedule.note_end(
            index,
            time.monotonic(),
            has_failed=ending.result is not Result.OK,
            is_out_of_memory=ending.result is Result.OOM,
        )
        if starts_again:
            _set_aside(state.folder)
            words.say(f"    {trial}: out of memory; it starts again alone at the end")
            return
        self._record.end_trial(index, ending, state.ended.status)
        self._num_ended += 1
        lifetime = state.lifetime
        took_s = (lifetime.end_ns - lifetime.begin_ns) / 1e9 if state.has_ended else 0.0
        self._took_s.append(took_s)
        result = str(ending.result) if not ending.reason else f"{ending.result}: {ending.reason}"
        words.say(f"    {trial}: {result} ({format_duration(took_s)}; {self.summarize()})")

    def summarize(self) -> str:
        """Return the progress in one line: `7 of 24 ended, 3 at a time, 9 min saved, about 12 min left`."""
        ended = f"{self._num_ended} of {len(self._group.jobs)} ended, {self._schedule.number} at a time"
        if (serial := self._schedule.estimate_serial_s()) is not None:
            saved_s = serial[0] - (time.monotonic() - self._begin_s)
            ended += f", {format_duration(max(0.0, saved_s))} saved"
        num_left = len(self._group.jobs) - self._num_ended
        if not (self._took_s and num_left):
            return ended
        mean_s = sum(self._took_s) / len(self._took_s)
        spent_s = sum((time.monotonic_ns() - state.lifetime.begin_ns) / 1e9 for state in self._live.values())
        left_s = max(0.0, num_left * mean_s - spent_s) / self._schedule.number
        return f"{ended}, about {format_duration(left_s)} left"

    def _read(self, fields: Fields, running_group: RunningGroup) -> None:
        for index in self._schedule.running:
            if (rate := self._rates[index].read()) is not None:
                self._schedule.add_rate(index, rate)
                running_group.live_rates[index] = rate
        samples = running_group.samples[-_READ_SAMPLES:]
        used_mib = sum(fields.read_live_memory_mib(samples, index) or 0.0 for index in self._live)
        total_mib = running_group.device.memory_mib
        if total_mib is None:
            total_mib = int(used_mib + psutil.virtual_memory().available / 2**20)
        self._schedule.note_memory(used_mib, total_mib)


def _set_aside(folder: Path) -> None:
    """Move the files of a trial's first attempt below the output of its second one."""
    earlier = folder.with_name(f"{folder.name}.{_FIRST_ATTEMPT}")
    folder.rename(earlier)
    output = folder / layout.OUTPUT
    output.mkdir(parents=True)
    if (environment := earlier / layout.ENVIRONMENT).exists():
        shutil.copy(environment, folder)
    earlier.rename(output / _FIRST_ATTEMPT)
