"""Effects on the speed of jobs: of MIG and its profiles, of co-runners, of work on other GPUs, and of the step mode.

Arithmetic scales ideally with the multiprocessors of a MIG instance, memory bandwidth with its memory slices.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pipeline.base.domain import mig_table, work_units
from pipeline.base.domain.records import OTHER_GPUS
from pipeline.base.domain.sharing_modes import MIG, SERIAL
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.words import format_count, group_by
from pipeline.report.evaluate.cells import Case, Cell, label_cases
from pipeline.report.evaluate.contrasts import Contrast, contrast, contrast_cells
from pipeline.report.evaluate.metrics import TOTAL_TIME
from pipeline.report.evaluate.publication import WHOLE_GPU, publications
from pipeline.report.evaluate.quantities import merge_steady_windows
from pipeline.report.evaluate.statistics import MIN_FOR_INTERVAL, format_interval
from pipeline.report.evaluate.wording import describe_jobs
from pipeline.report.read import labels
from pipeline.report.read.study_records import JobRow, Row, Study

_FURTHER = (("7g", "3g"), ("4g", "2g"))
"""Pairs of profiles that are compared even if a profile of a size in between was measured."""

_BANDWIDTH = frozenset({"micro_copy", "micro_triad"})
"""Workloads that are limited by memory bandwidth."""
_HOST = frozenset({"micro_to_device", "micro_to_host", "micro_launch"})
"""Workloads that are limited by the host or by PCIe, which MIG does not divide."""

_NEARLY_WHOLE = 1.2
"""A profile is nearly the whole GPU if the GPU has less than this number times the profile's multiprocessors."""


class ProfileStep(NamedTuple):
    """The contrast of one job on a larger MIG profile (or the whole GPU) with the same job on a smaller profile.

    Attributes:
        larger, smaller: MIG profiles, or `WHOLE_GPU`.
        ideal: ratio of the multiprocessors, for memory bandwidth of the memory slices; `None` if unknown, or if the
            throughput depends on neither.
        published: published ratio, with the GPU in parentheses; empty if there is none.
    """

    pair: Contrast
    larger: str
    smaller: str
    ideal: float | None
    published: str

    @property
    def median(self) -> float:
        """The median ratio of the throughputs."""
        assert self.pair.ratio is not None
        return self.pair.ratio.median

    @property
    def loss_pct(self) -> float | None:
        """The slowdown, in per cent, on a profile that is nearly the whole GPU; `None` for any other step."""
        is_cost = self.larger == WHOLE_GPU and self.ideal is not None and self.ideal < _NEARLY_WHOLE
        return 100 * (1 - 1 / self.median) if is_cost else None


class SoloMode(NamedTuple):
    """A step mode in words, and the cell of one job alone in it."""

    step_mode: str
    cell: Cell


def steps(cells: Sequence[Cell]) -> Iterator[ProfileStep]:
    """Yield the whole GPU over the largest profile, each profile over the next smaller, 7g over 3g, and 4g over 2g."""
    for case, by_place in group_by_profile(cells).items():
        distant_pairs = [
            (larger, smaller)
            for larger, smaller in itertools.combinations(by_place, 2)
            if (cut_to_slices(larger), cut_to_slices(smaller)) in _FURTHER
        ]
        for larger, smaller in dict.fromkeys([*itertools.pairwise(by_place), *distant_pairs]):
            if (pair := contrast_cells(by_place[larger], by_place[smaller])) is not None:
                ideal = compute_ideal(by_place[larger], by_place[smaller])
                published = _find_published(case.params[0], cut_to_slices(larger), cut_to_slices(smaller))
                yield ProfileStep(pair, larger, smaller, ideal, published)


def group_by_profile(cells: Sequence[Cell]) -> dict[Case, dict[str, Cell]]:
    """Return the cells of one job without co-runners on the whole GPU and on MIG profiles, the largest first."""
    places: dict[Case, dict[str, Cell]] = defaultdict(dict)
    for cell in cells:
        is_one = cell.degree == 1 and not cell.case.is_mix and not cell.co_runners
        is_known = not cell.num_given and cell.is_ranked and cell.throughput in cell.values
        if is_one and is_known and (place := find_place(cell)) is not None:
            places[cell.case][place] = cell
    return {case: {place: by_place[place] for place in sort_places(by_place)} for case, by_place in places.items()}


def sort_places(places: Iterable[str]) -> list[str]:
    """Sort profiles by size, the largest first, after the whole GPU."""
    return sorted(places, key=lambda place: (place == WHOLE_GPU, labels.rank_profile(place)), reverse=True)


def compute_ideal(larger: Cell, smaller: Cell) -> float | None:
    """Return the ratio of multiprocessors, or of memory slices for memory bandwidth; `None` if neither is known."""
    workload = smaller.case.params[0].get("workload", "")
    if workload in _HOST:
        return None
    count = _count_memory_slices if workload in _BANDWIDTH else lambda cell: cell.multiprocessors
    numbers = count(larger), count(smaller)
    return numbers[0] / numbers[1] if numbers[0] and numbers[1] else None


def _count_memory_slices(cell: Cell) -> int | None:
    model = mig_table.models().get(mig_table.find_model_name(cell.device))
    if model is None or cell.sharing != MIG:
        return None if model is None else model.memory_slices
    profile = model.find_profile(mig_table.split_name(cell.profiles[0])[0])
    return None if profile is None else profile.memory_slices


def compare_co_runners(cells: Sequence[Cell]) -> list[Contrast]:
    """Return the effect of co-runners on each cell that was also measured without co-runners.

    Jobs at a given rate and steady mixes are left out.
    """
    ranked = [
        cell
        for cell in cells
        if cell.is_ranked and not cell.num_given and (not cell.case.is_mix or cell.window is WindowKind.WORK)
    ]
    alone = {_identify(cell): cell for cell in ranked if not cell.co_runners}
    return contrast(ranked, lambda cell: bool(cell.co_runners), lambda cell: alone.get(_identify(cell)))


def find_place(cell: Cell) -> str | None:
    """Return the MIG profile of a job, `WHOLE_GPU` for a job alone on the GPU, and `None` for any other job."""
    if cell.sharing == SERIAL:
        return WHOLE_GPU
    return cell.profiles[0] if cell.sharing == MIG and cell.profiles else None


def cut_to_slices(place: str) -> str:
    """Return the slices of a profile: `3g` for `3g.20gb`."""
    return place.partition(".")[0]


def _identify(cell: Cell) -> tuple[object, ...]:
    mode = (cell.sharing, cell.profiles) if cell.sharing == MIG else (cell.sharing, cell.detail)
    return (cell.case.workloads, cell.case.is_mix, cell.degree, cell.device, cell.settings, *mode)


def _find_published(params: Mapping[str, str], larger: str, smaller: str) -> str:
    """Return `2.17 to 2.21 (A100-SXM4-40GB)`; empty if no publication has these settings."""
    parts = []
    for publication in publications():
        program = publication.program(params)
        for finding in publication.findings:
            is_meant = program is not None and program.name in finding.workloads
            is_step = (finding.larger, finding.smaller) == (larger, smaller)
            if is_meant and is_step and not publication.differences(finding, params, is_mix=False):
                low, high = min(finding.ratios), max(finding.ratios)
                words = f"{low:.3f}" if low == high else f"{low:.3f} to {high:.3f}"
                parts.append(f"{words} ({'; '.join([publication.gpu, *finding.slips])})")
    return "; ".join(parts)


def compare_other_gpus(study: Study, cells: Sequence[Cell]) -> Iterator[Contrast]:
    """Yield the effect of work on other GPUs of the host on each group that also ran without it, since the same boot.

    The cell of a contrast ran while other GPUs worked (`count_other_gpus`), the other one without such work.
    """
    cases = label_cases(study)
    cell_of = {(cell.case, cell.degree, cell.mode): cell for cell in cells}
    quiet: dict[tuple[object, ...], dict[int, Row]] = defaultdict(dict)
    busy: dict[tuple[object, ...], dict[int, Row]] = defaultdict(dict)
    for row in study.rows:
        if row.is_valid:
            by_block = busy[(*_identify_row(row), row.beside)] if row.beside else quiet[_identify_row(row)]
            by_block[row.block] = row
    for (*identity, _), rows in busy.items():
        references = quiet[tuple(identity)]
        shares = {block: _compare_rows(row, references.get(block)) for block, row in rows.items()}
        if ratios := {block: share for block, share in shares.items() if share is not None}:
            first = next(iter(ratios))
            pair = rows[first], references[first]
            cell, other = (cell_of[cases[row.run_id], row.degree, row.mode] for row in pair)
            ratio = cell.estimate(ratios)
            yield Contrast(cell=cell, against="no other GPU works", ratios=ratios, ratio=ratio, other=other)


def count_other_gpus(pair: Contrast) -> int:
    """Return the number of other GPUs that work in a contrast of `compare_other_gpus`."""
    return int(dict(pair.cell.settings)[OTHER_GPUS])


def find_reference(pair: Contrast) -> Cell:
    """Return the cell without work on other GPUs of a contrast of `compare_other_gpus`."""
    assert pair.other is not None
    return pair.other


def describe_other_gpus(pair: Contrast) -> str:
    """Return a contrast of `compare_other_gpus` as a sentence."""
    activity = _name_others(count_other_gpus(pair))
    return f"{_name_group(pair)} keeps {_format_share(pair)} of its speed while {activity}.{_mark_simulated(pair)}"


def summarize_other_gpus(pairs: Iterable[Contrast]) -> list[str]:
    """Return, for each number of working GPUs, a sentence on the groups that keep the least and most of their speed."""
    return [_summarize_groups(groups) for _, groups in sorted(group_by(pairs, count_other_gpus).items())]


def _summarize_groups(groups: Sequence[Contrast]) -> str:
    lowest, *higher = sorted(groups, key=lambda pair: pair.gain)
    activity = _name_others(count_other_gpus(lowest))
    sentence = f"While {activity}, {_name_group(lowest)} keeps {_format_share(lowest)} of its speed"
    if higher:
        sentence += f" (the lowest of {len(groups)} groups) and {_name_group(higher[-1])} {_format_share(higher[-1])}"
        sentence += " (the highest)"
    return f"{sentence}; {_count_differing(groups)}.{_mark_simulated(lowest)}"


def _count_differing(groups: Sequence[Contrast]) -> str:
    intervals = [(pair.ratio.low, pair.ratio.high) for pair in groups if pair.ratio is not None]
    bounded = [(low, high) for low, high in intervals if low is not None and high is not None]
    if not bounded:
        return f"an interval needs {MIN_FOR_INTERVAL} blocks"
    num = sum(not low <= 1 <= high for low, high in bounded)
    return f"{num or 'none'} of {format_count(len(bounded), 'interval')} {'exclude' if num > 1 else 'excludes'} 1"


def _name_group(pair: Contrast) -> str:
    group = find_reference(pair)
    return f"{group.mode} with {describe_jobs(group.case, group.degree)}"


def _format_share(pair: Contrast) -> str:
    assert pair.ratio is not None
    return f"{pair.ratio.median:.3f}{format_interval(pair.ratio, '.3f')}"


def _name_others(number: int) -> str:
    return "another GPU works" if number == 1 else f"{number} other GPUs work"


def _mark_simulated(pair: Contrast) -> str:
    return " (simulated)" if pair.cell.is_simulated else ""


def _identify_row(row: Row) -> tuple[object, ...]:
    settings = tuple(pair for pair in row.settings if pair[0] != OTHER_GPUS)
    return row.scenario, repr(sorted(row.options.items())), tuple(job.digest for job in row.jobs), settings


def _compare_rows(row: Row, reference: Row | None) -> float | None:
    """Divide the speed of a group by that of its reference; for mixes, return the mean over the jobs.

    Fixed work is compared by its time. Jobs at a given rate are not compared.

    Returns:
        The ratio; `None` if a speed is unknown or the machine states differ.
    """
    if reference is None or not row.machine_state.is_same(reference.machine_state):
        return None
    if any(job.is_rate_given for job in row.jobs):
        return None
    if row.window is WindowKind.WORK:
        return _divide(reference, row, TOTAL_TIME)
    if not row.is_mix:
        return _divide(row, reference, work_units.total_of(row.unit))
    jobs = zip(row.jobs, reference.jobs, strict=True)
    shares = [_divide(job, other, work_units.rate_of(job.unit)) for job, other in jobs]
    present_shares = [share for share in shares if share is not None]
    return statistics.fmean(present_shares) if len(present_shares) == len(shares) else None


def _divide(row: Row | JobRow, reference: Row | JobRow, name: str) -> float | None:
    over, under = row.metrics.get(name, 0.0), reference.metrics.get(name, 0.0)
    return over / under if over > 0 and under > 0 else None


def find_serial(case: Case, cells: Sequence[Cell]) -> Cell | None:
    """Return the cell of one job of a case alone; `None` if it did not run."""
    return next((cell for cell in cells if (cell.case, cell.degree, cell.sharing) == (case, 1, SERIAL)), None)


def list_other_modes(case: Case, cells: Sequence[Cell]) -> list[SoloMode]:
    """Return the runs alone of the workload of a case in other step modes, with equal settings or in a steady window.

    If a step mode was measured in several windows, that of the case is chosen.
    """
    serial = find_serial(case, cells)
    if serial is None or labels.STEP_MODE not in case.params[0]:
        return []
    program, settings = labels.identify_program(case.params[0]), merge_steady_windows(serial.settings, serial.window)
    by_step_mode: dict[str, Cell] = {}
    for cell in cells:
        if (cell.degree, cell.sharing) != (1, SERIAL):
            continue
        step_mode, is_same = cell.case.params[0].get(labels.STEP_MODE, ""), cell.settings == serial.settings
        is_alike = labels.identify_program(cell.case.params[0]) == program
        is_alike = is_alike and merge_steady_windows(cell.settings, cell.window) == settings
        is_other = step_mode != case.params[0][labels.STEP_MODE]
        if is_alike and is_other and (is_same or step_mode not in by_step_mode):
            by_step_mode[step_mode] = cell
    return [SoloMode(labels.format_param_value(labels.STEP_MODE, mode), cell) for mode, cell in by_step_mode.items()]
