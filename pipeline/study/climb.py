"""The groups of a study that looks for the best number of jobs (`advise_minutes`), chosen while it runs.

In the first block, each sharing mode gets more jobs while its speed-up rises: one more at a time. If each number needs
a launch of its own, their number doubles while they nearly keep their speed, then two more come at a time, and up to
four jobs one more; a mode that falls far behind another one gets no more. A later block repeats the groups that may
still be the answer and the best one of each mode, and adds the untried numbers half-way to the nearest tried ones. The
study ends when the answer is decided, or when its minutes are over.

Scripts that are measured by a counter that they print pay for their start-up less often: the first block always doubles
their number, and measures two numbers in a launch, and a later block starts the most copies of a mode once. In such a
launch, some copies are stopped for each next number.
"""

from __future__ import annotations

import dataclasses
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pipeline.base.domain.normalisation import SPEEDUP
from pipeline.base.domain.records import Group, Result
from pipeline.base.domain.service_figures import OBJECTIVE_MET_WORST
from pipeline.base.domain.sharing_modes import MPS, NAIVE, SERIAL
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.words import format_count, format_duration, group_by, say
from pipeline.observe import output_rates
from pipeline.observe.group_result import GroupResult
from pipeline.record import invocation

if TYPE_CHECKING:
    from pipeline.report.evaluate.recommendation import Recommendation

_RUNGS_OF_LAUNCH = 3
"""Numbers of jobs that a launch of the first block adds, if one launch measures several."""
_LAST_BY_ONE = 4
"""Number of jobs up to which the first block adds one at a time although each number needs a launch of its own."""
_KEPT_OF_FEW, _KEPT_OF_MANY = 0.9, 0.75
"""Part of its speed alone that each job must keep for the first block to double their number: below four, above."""
_MANY, _LONGEST_SHARE = 16, 0.25
"""Number of jobs above which no launch may be expected to take longer than this share of the minutes."""
_FAR_BEHIND = 0.8
"""Part of the speed of another mode, with as many jobs, below which a mode gets no more jobs in the first block."""
_LEAST_RISE = 0.02
"""Relative rise of the speed-up below which a mode gets no more jobs in the first block."""
_NEARLY = 0.9
"""Part of the best speed-up of a mode above which both neighbours of an untried number leave it out."""
_GROUPS_OF_A_SEARCH = 30
"""Groups that a search needs, about, to be decided."""
_OF_THE_SEARCH = ("-m", "--multirun", "+experiment=advise", "advise_minutes", "resume")
"""Words and keys of a search that the command of its answer lacks."""
_WINDOWS_OF_A_NUMBER = 2
"""Windows that another number of copies takes in a launch, about: some are stopped, and the speed settles."""
_LEAST_BLOCKS = 2
"""Blocks of a candidate with which an answer may be decided once the minutes are over."""
_BLOCKS_WITHOUT_FIGURE = 2
"""Blocks after which a study ends if none of its groups has a valid speed-up."""


class Climb:
    """The choice of groups, and the answer.

    Attributes:
        recommendation: the recommendation after the last complete block; `None` without a valid speed-up.
        is_decided: whether another block would not change the recommendation.
    """

    def __init__(
        self, experiment: str, groups: Sequence[Group], minutes: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.experiment, self.minutes, self._clock = experiment, minutes, clock
        self.recommendation: Recommendation | None = None
        self.is_decided = False
        self._begin_s = clock()
        self._is_first, self._stops_some = True, False
        self._is_cut_off = False  # the speed still rises at the most copies that the minutes allowed
        self._launched: tuple[int, float] | None = None  # the last launch: its number of jobs, and its begin
        self._took_s: dict[int, float] = {}  # of the last launch with each number of jobs
        self._block, self._chosen = 1, set[str]()
        shared = {group.key: group for group in groups if not group.sequential and group.skip_reason is None}
        self._ladders = [
            sorted(members, key=lambda group: len(group.jobs))
            for members in group_by(shared.values(), _identify_mode).values()
        ]

    def select(
        self, launch: Sequence[Group], rows: Sequence[GroupResult], following: Sequence[Group] = ()
    ) -> list[Group]:
        """Return the groups that run next in one launch, after the rows of this study; empty if none does.

        They are groups of a planned launch, and those of the groups of its block that follow that can join them.
        """
        if self._launched is not None:
            number, begin_s = self._launched
            self._took_s[number] = self._clock() - begin_s
        self._stops_some = bool(rows) and _is_counted(rows)
        selected = self._select(launch, rows)
        if selected and self._stops_some:
            is_first = self._block == 1
            selected = self._join_twice(selected, following) if is_first else self._join(selected, rows, following)
        # A launch of a later block that measures several numbers does not tell how long one takes.
        is_timed = bool(selected) and not (self._stops_some and self._block > 1 and len(selected) > 1)
        self._launched = (len(selected[0].jobs), self._clock()) if is_timed else None
        return selected

    def _select(self, launch: Sequence[Group], rows: Sequence[GroupResult]) -> list[Group]:
        if rows and self._is_first:
            self._is_first = False
            if rows[0].group.window.kind is WindowKind.WORK:
                self._warn_of_long_runs()
        if self.remaining_s > 0 and launch[0].block != self._block:
            self._begin_block(launch[0].block, rows)
        if any(_fails_alone(row) for row in rows):
            return []
        if self._is_over(len(launch[0].jobs)):  # only the job alone, without which groups of its block have no speed-up
            of_block = [row for row in rows if row.group.block == self._block == launch[0].block]
            is_missing = bool(of_block) and not any(row.group.sequential for row in of_block)
            return [group for group in launch if group.sequential] if is_missing else []
        if self.is_decided:
            return []
        ran = {row.group.digest for row in rows}
        groups = [group for group in launch if group.skip_reason is None and group.digest not in ran]
        if self._block > 1:
            return [group for group in groups if group.sequential or group.key in self._chosen]
        if any(group.sequential for group in groups):
            return groups
        if not groups or (len(launch) == 1 and self._skips(launch[0], rows)):
            return []
        return groups[-_RUNGS_OF_LAUNCH:] if self._rises(groups, rows) else []

    def _skips(self, group: Group, rows: Sequence[GroupResult]) -> bool:
        """Return whether the first block leaves a number of jobs out, which needs a launch of its own."""
        ladder = self._find_ladder(group)
        keys = {member.key for member in ladder}
        tried = [(len(row.group.jobs), row.metrics.get(SPEEDUP, 0.0)) for row in rows if row.group.key in keys]
        number, speed = max(tried, default=(1, 1.0))
        speeds = [
            row.metrics.get(SPEEDUP, 0.0) for row in rows if row.group.key not in keys and len(row.jobs) == number
        ]
        if speed < _FAR_BEHIND * max(speeds, default=0.0) or self._takes_long(len(group.jobs)):
            return True
        least_kept, step = (_KEPT_OF_FEW, 1) if number < _LAST_BY_ONE else (_KEPT_OF_MANY, 2)
        least_kept = 0.0 if self._stops_some else least_kept
        most = 2 * number if number > 1 and speed > least_kept * number else number + step
        return any(len(group.jobs) < len(member.jobs) <= most for member in ladder)

    def _takes_long(self, num_jobs: int, most: int = _MANY) -> bool:
        """Return whether a launch of more than `most` jobs, after the largest so far, would take too many minutes."""
        smaller, largest = [0, 0, *sorted(self._took_s)][-2:]
        if num_jobs <= max(most, largest) or not largest:
            return False
        took_s, mean_s = self._took_s[largest], self._took_s[largest] / largest
        of_one_s = (took_s - self._took_s.get(smaller, 0.0)) / (largest - smaller)
        of_one_s = min(max(of_one_s, mean_s / 2), mean_s)  # launches scatter
        return took_s + (num_jobs - largest) * of_one_s > _LONGEST_SHARE * 60 * self.minutes

    def _join_twice(self, selected: list[Group], following: Sequence[Group]) -> list[Group]:
        """Return a selected group of the first block, after that with twice as many jobs unless this takes long."""
        if selected[0].sequential:
            return selected
        mode, number = _identify_mode(selected[0]), 2 * len(selected[0].jobs)
        twice = [
            group
            for group in following
            if len(group.jobs) == number and _identify_mode(group) == mode and group.skip_reason is None
        ]
        joined = [*twice, *selected]
        if not twice or self._takes_long(number, most=1) or not _can_share_launch(joined):
            return selected
        return joined

    def _join(self, selected: Sequence[Group], rows: Sequence[GroupResult], following: Sequence[Group]) -> list[Group]:
        """Return selected groups with the following ones of their mode that the block runs, most jobs first."""
        ran = {row.group.digest for row in rows}
        chosen = [
            group
            for group in following
            if group.digest not in ran and group.skip_reason is None and (group.sequential or group.key in self._chosen)
        ]
        mode = _identify_mode(selected[0])
        joined = [group for group in (*selected, *chosen) if _identify_mode(group) == mode]
        joined.sort(key=lambda group: -len(group.jobs))
        while joined and self._is_over(
            len(joined[0].jobs), _WINDOWS_OF_A_NUMBER * joined[0].window.seconds * len(joined)
        ):
            del joined[0]
        return joined if _can_share_launch(joined) else list(selected)

    def _find_ladder(self, group: Group) -> Sequence[Group]:
        """Return the groups with each number of jobs in the mode of a group."""
        return next(ladder for ladder in self._ladders if any(member.key == group.key for member in ladder))

    @property
    def whole_run_s(self) -> float:
        """The longest run of the job alone of which the minutes allow enough."""
        return 60 * self.minutes / _GROUPS_OF_A_SEARCH

    @property
    def remaining_s(self) -> float:
        """The seconds until no group is started."""
        return 60 * self.minutes - (self._clock() - self._begin_s)

    def _is_over(self, num_jobs: int, more_s: float = 0.0) -> bool:
        """Return whether the minutes are over, or most of a launch, which may take more, would come after them."""
        took_s = max((seconds for number, seconds in self._took_s.items() if number <= num_jobs), default=0.0)
        return self.remaining_s <= (took_s + more_s) / 2

    def evaluate(self, rows: Sequence[GroupResult]) -> None:
        """Update the recommendation, and the groups that the next block runs."""
        # Imported late, because the modules of the report take long to import.
        from pipeline.report.evaluate.cells import label_cases, make_cells
        from pipeline.report.evaluate.recommendation import recommend
        from pipeline.report.read.result_rows import make_study_of_results

        study = make_study_of_results(self.experiment, rows)
        self.recommendation = recommendation = recommend(make_cells(study))
        if recommendation is None:
            self._chosen = {group.key for ladder in self._ladders for group in ladder[:1]}
            return
        cases = label_cases(study)
        keys = {(cases[row.run_id], row.degree, row.mode): row.key for row in study.rows}
        best = recommendation.best_of_modes
        cells = [recommendation.choice, recommendation.fastest, *recommendation.open, *best]
        contenders = {keys.get((cell.case, cell.degree, cell.mode), "") for cell in cells}
        ran = {row.group.key for row in rows}
        slower = {
            keys[cell.case, cell.degree, cell.mode]
            for cell in best
            if not cell.sharing.gives_up and recommendation.is_slower(cell)
        }
        speeds = {
            keys[cell.case, cell.degree, cell.mode]: cell.estimates[SPEEDUP].median
            for cell in (*recommendation.candidates[1:], *recommendation.without_isolation)
        }
        between = {keys[cell.case, cell.degree, cell.mode] for cell in best} - slower
        if self._stops_some and self._block <= _LEAST_BLOCKS:  # fewer copies than the choice take little time
            choice = recommendation.choice
            between |= {keys.get((choice.case, choice.degree, choice.mode), "")}
        rungs = set(self._list_next_rungs(between, ran, speeds))
        self._chosen = contenders | rungs
        fastest = recommendation.fastest
        fastest_key = keys.get((fastest.case, fastest.degree, fastest.mode), "")
        ladder = next((groups for groups in self._ladders if fastest_key in {group.key for group in groups}), [])
        self._is_cut_off = recommendation.rises_at_end and any(len(group.jobs) > fastest.degree for group in ladder)
        self.is_decided = recommendation.is_decided and not rungs

    def _warn_of_long_runs(self) -> None:
        group_s = self._clock() - self._begin_s
        if group_s > self.whole_run_s:
            num_groups = 60 * self.minutes / group_s
            say(
                f"note: the job alone took {format_duration(group_s)}, so {self.minutes:g} min are about "
                f"{num_groups:.0f} groups, which may not decide; shorten its run to about "
                f"{self.whole_run_s:.0f} s (fewer steps), or add minutes"
            )

    def _begin_block(self, block: int, rows: Sequence[GroupResult]) -> None:
        self._block = block
        self.evaluate(rows)
        if self.recommendation is None and block > _BLOCKS_WITHOUT_FIGURE:
            self.is_decided = True

    def _rises(self, groups: Sequence[Group], rows: Sequence[GroupResult]) -> bool:
        """Return whether the speed-up still rises below groups of one mode, the last of which has the fewest jobs."""
        ladder = self._find_ladder(groups[-1])
        by_key = {row.group.key: row for row in rows}
        num_jobs = len(groups[-1].jobs)
        below = [by_key[member.key] for member in ladder if len(member.jobs) < num_jobs and member.key in by_key]
        if not below:
            return groups[-1].key == ladder[0].key
        if below[-1].metrics.get(OBJECTIVE_MET_WORST, 1.0) < 1:  # of a service; more copies answer later still
            return False
        speeds = [row.metrics.get(SPEEDUP, 0.0) for row in below]
        return below[-1].result is Result.OK and speeds[-1] > (1 + _LEAST_RISE) * max(speeds[:-1], default=1.0)

    def _list_next_rungs(self, best: set[str], ran: set[str], speeds: Mapping[str, float]) -> Iterator[str]:
        """Yield the groups with numbers of jobs half-way between the best of each mode and the next tried.

        A number between two others gains nothing if they are nearly as fast as the best one, or if more copies at the
        speed of each of the fewer ones would still be slower than the best number. A number above all others gains
        nothing if the best one is no faster than the next fewer ones.
        """
        for ladder in self._ladders:
            keys = [group.key for group in ladder]
            tried = [place for place, key in enumerate(keys) if key in ran]
            for place in (place for place, key in enumerate(keys) if key in best):
                below = max((other for other in tried if other < place), default=-1)
                step = 1 if len(ladder[place].jobs) < _LAST_BY_ONE else 2
                above = min((other for other in tried if other > place), default=min(place + 2 * step, len(keys)))
                for other in (below, above):
                    half = (other + place) // 2
                    is_valid = 0 <= half < len(keys) and keys[half] not in ran
                    is_known = 0 <= other < len(keys) and keys[other] in speeds
                    best_speed = speeds.get(keys[place], 0.0)
                    is_flat = is_known and speeds[keys[other]] > _NEARLY * best_speed
                    if is_known and other < place:  # more copies do not run faster each
                        of_one = speeds[keys[other]] / len(ladder[other].jobs)
                        is_flat |= of_one * len(ladder[place - 1].jobs) < best_speed
                    if (
                        other == above and above not in tried and below >= 0
                    ):  # the speed must rise up to the best number
                        is_flat |= best_speed < (1 + _LEAST_RISE) * speeds.get(keys[below], 0.0)
                    if is_valid and not is_flat:
                        first, last = sorted((place, other))
                        places = range(first + step, last, step) if self._stops_some else ()
                        untried = [ladder[number] for number in places or (half,)]
                        yield from (group.key for group in untried if not self._takes_long(len(group.jobs)))

    def answer(self, rows: Sequence[GroupResult], words: Sequence[str]) -> Iterator[str]:
        """Yield the lines of the answer; `words` is the command line of the study."""
        from pipeline.report.evaluate.recommendation import describe_recommendation

        self.evaluate(rows)
        is_over = self._is_over(max(self._took_s, default=1))
        if self.recommendation is not None and not self.is_decided and is_over:
            with_few = dataclasses.replace(self.recommendation, enough_blocks=_LEAST_BLOCKS)
            if with_few.is_decided:
                self.recommendation, self.is_decided = with_few, True
        is_decided = self.is_decided and not self._is_cut_off
        device = rows[0].group.device
        minutes = f"advise_minutes={2 * self.minutes:g}"
        command = invocation.mask_command(invocation.spell_changed_command(words, "resume=true", minutes))
        go_on = f"go on:  {command}   # keeps what was measured, for {2 * self.minutes:g} more minutes"
        if failed := next(filter(_fails_alone, rows), None):
            if failed.result is Result.TIMEOUT:
                is_sought = any(job.workload.rate.is_sought for job in failed.group.jobs)
                other = "let it print lines such as step 120" if is_sought else "set metric_pattern"
                limit = format_duration(failed.group.limits.group_s)
                yield f"No answer: in {limit}, the job alone did not end, and printed too few step numbers or speeds."
                yield f"Shorten its run (fewer steps), add minutes, or {other}."
            else:
                yield "No answer: the job fails alone."
            return
        if (recommendation := self.recommendation) is None:
            yield f"No answer: no group of several jobs has a valid speed-up; {_explain(rows)}"
            yield from [] if self.is_decided else [go_on]
            return
        yield from describe_recommendation(
            recommendation,
            memory_mib=device.memory_mib if device.is_gpu else None,
            is_decided=is_decided,
            is_cut_off=self._is_cut_off,
        )
        yield ""
        yield from _list_remarks(rows, has_intervals=recommendation.has_intervals)
        choice = recommendation.choice
        if choice.degree > 1:
            number = [] if choice.case.is_mix else [f"degree={choice.degree}"]
            new = [f"scenario={choice.sharing.name}", *number, "baseline=never"]
            command = invocation.spell_changed_command(words, *new, without=_OF_THE_SEARCH)
            hint = "" if choice.case.is_mix else "   # equal copies; for trials that differ: +experiment=pack"
            yield f"run it: {invocation.mask_command(command)}{hint}"
        if not is_decided:
            yield go_on


def _list_remarks(rows: Sequence[GroupResult], *, has_intervals: bool) -> Iterator[str]:
    """Yield what was measured and where, and the marks of the groups."""
    device, blocks = rows[0].group.device, format_count(len({row.group.block for row in rows}), "block")
    ranges = "in parentheses: 95 % intervals" if has_intervals else "a range (95 %) needs more"
    yield f"{blocks} (rounds; once: in one of them) on {device.name}; {ranges}."
    if rows[0].group.window.stops_scripts:
        name = rows[0].group.jobs[0].workload.name
        what = "rise of the step numbers" if _is_counted(rows) else "speed"
        yield f"Measured is the {what} that {name} prints; its start-up does not count."
    num_groups = format_count(len(rows), "group")
    if invalid := [row.marks.invalid for row in rows if row.marks.invalid]:
        yield f"Invalid: {len(invalid)} of {num_groups}: {textwrap.shorten(invalid[0], 120)}."
    if notes := [row.marks.note for row in rows if row.marks.note and not row.marks.invalid]:
        yield f"Noted (ok*): {len(notes)} of {num_groups}: {textwrap.shorten(notes[0], 120)}."
    if device.is_simulated:
        yield "The GPU is simulated: this shows what an answer looks like, not what a GPU does."
    elif not device.is_gpu:
        yield "The jobs ran on the CPU: the answer is about this machine, not about a GPU."


def _is_counted(rows: Sequence[GroupResult]) -> bool:
    """Return whether a script is measured by a counter, which shows its speed at once when other copies are stopped.

    A printed speed may be an average since the start.
    """
    patterns = {job.workload.rate.pattern for job in rows[0].group.jobs}
    return rows[0].group.window.stops_scripts and all(map(output_rates.is_counter, patterns))


def _identify_mode(group: Group) -> tuple[str, str]:
    """Return the mode of a group; the job alone is one naive job."""
    return NAIVE.name if group.sequential else group.scenario, str(group.options)


def _can_share_launch(groups: Sequence[Group]) -> bool:
    """Return whether copies can be stopped one after another, without a share of the GPU or of CPUs for each."""
    return (
        len({job.workload.digest for group in groups for job in group.jobs}) == 1
        and all(group.scenario in (SERIAL.name, NAIVE.name, MPS.name) for group in groups)
        and not any(group.pin_cpus or not group.profiler.is_none for group in groups)
    )


def _fails_alone(row: GroupResult) -> bool:
    return row.group.sequential and row.result in (Result.FAILED, Result.TIMEOUT)


def _explain(rows: Sequence[GroupResult]) -> str:
    reasons = [row.marks.invalid or row.reason for row in rows if row.marks.invalid or row.reason]
    if reasons:
        return textwrap.shorten(reasons[0], 200)
    is_alone = all(row.group.sequential for row in rows)
    return "only the job alone was measured" if is_alone else "the jobs have no rate in common"
