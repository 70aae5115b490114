"""The cost of MIG, the scaling of its profiles and the effect of co-runners, by the throughput of one job.

Arithmetic scales ideally with the multiprocessors of an instance, memory bandwidth with its memory slices.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain import mig_table
from pipeline.base.domain.sharing_modes import MIG, SERIAL
from pipeline.base.domain.window import WindowKind
from pipeline.report.evaluate.cells import Case, Cell, ratios
from pipeline.report.evaluate.publication import WHOLE_GPU, publications
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.read import labels

_FURTHER = (("7g", "3g"), ("4g", "2g"))
"""Pairs of profiles that are compared even if a profile of a size in between was measured."""

_BANDWIDTH = frozenset({"micro_copy", "micro_triad"})
"""Workloads that are limited by memory bandwidth."""
_HOST = frozenset({"micro_to_device", "micro_to_host", "micro_launch"})
"""Workloads that are limited by the host or by PCIe, which MIG does not divide."""

_NEARLY_WHOLE = 1.2
"""A profile is nearly the whole GPU if the GPU has less than this number times the profile's multiprocessors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The comparison of one job on a larger MIG profile (or the whole GPU) with the same job on a smaller profile.

    Attributes:
        larger, smaller: MIG profiles, or `WHOLE_GPU`.
        ratio: ratio of the throughputs.
        ideal: ratio of the multiprocessors, for memory bandwidth of the memory slices; `None` if unknown, or if the
            throughput depends on neither.
        published: published ratio, with the GPU in parentheses; empty if there is none.
    """

    case: Case
    larger: str
    smaller: str
    ratio: Estimate
    ideal: float | None
    published: str

    @property
    def loss_pct(self) -> float | None:
        """The slowdown, in per cent, on a profile that is nearly the whole GPU; `None` for any other step."""
        is_cost = self.larger == WHOLE_GPU and self.ideal is not None and self.ideal < _NEARLY_WHOLE
        return 100 * (1 - 1 / self.ratio.median) if is_cost else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRunnerEffect:
    """The throughput of jobs next to co-runners, relative to the same jobs without co-runners."""

    cell: Cell
    throughput_ratio: Estimate


def steps(cells: Sequence[Cell]) -> Iterator[Step]:
    """Yield the whole GPU over the largest profile, each profile over the next smaller, 7g over 3g, and 4g over 2g."""
    for case, by_place in group_by_profile(cells).items():
        further = [
            (larger, smaller)
            for larger, smaller in itertools.combinations(by_place, 2)
            if (cut_to_slices(larger), cut_to_slices(smaller)) in _FURTHER
        ]
        for larger, smaller in dict.fromkeys([*itertools.pairwise(by_place), *further]):
            if by_block := ratios(by_place[larger], by_place[smaller], by_place[smaller].throughput):
                yield Step(
                    case=case,
                    larger=larger,
                    smaller=smaller,
                    ratio=by_place[larger].estimate_speed_ratio(by_block),
                    ideal=compute_ideal(by_place[larger], by_place[smaller]),
                    published=_find_published(case.params[0], cut_to_slices(larger), cut_to_slices(smaller)),
                )


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


def compare_co_runners(cells: Sequence[Cell]) -> Iterator[CoRunnerEffect]:
    """Yield the effect of co-runners on each cell that was also measured without co-runners.

    Jobs at a given rate and steady mixes are left out.
    """
    ranked = [
        cell
        for cell in cells
        if cell.is_ranked and not cell.num_given and (not cell.case.is_mix or cell.window is WindowKind.WORK)
    ]
    alone = {_identify(cell): cell for cell in ranked if not cell.co_runners}
    for cell in ranked:
        other = alone.get(_identify(cell)) if cell.co_runners else None
        if other is not None and (by_block := ratios(cell, other, cell.throughput)):
            yield CoRunnerEffect(cell=cell, throughput_ratio=cell.estimate_speed_ratio(by_block))


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
