"""The cost of MIG, the scaling of its profiles and the effect of co-runners, by the throughput of one job."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain.sharing_modes import MIG, SERIAL
from pipeline.base.domain.window import WindowKind
from pipeline.report.evaluate.cells import Case, Cell, ratios
from pipeline.report.evaluate.publication import WHOLE_GPU, publications
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.read import labels

_FURTHER = (("7g", "3g"), ("4g", "2g"))
"""Pairs of profiles that are compared even if a profile of a size in between was measured."""

_NEARLY_WHOLE = 1.2
"""A profile is nearly the whole GPU if the GPU has less than this number times the profile's multiprocessors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The comparison of one job on a larger MIG profile (or the whole GPU) with the same job on a smaller profile.

    Attributes:
        larger, smaller: MIG profiles, or `WHOLE_GPU`.
        ratio: ratio of the throughputs.
        ideal: ratio of the multiprocessors.
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
    places: dict[Case, dict[str, Cell]] = defaultdict(dict)
    for cell in cells:
        is_one = cell.degree == 1 and not cell.case.is_mix and not cell.co_runners
        is_known = not cell.num_given and cell.is_ranked and cell.throughput in cell.values
        if is_one and is_known and (place := find_place(cell)) is not None:
            places[cell.case][place] = cell
    for case, by_place in places.items():
        profiles = sorted((p for p in by_place if p != WHOLE_GPU), key=labels.rank_profile, reverse=True)
        if not profiles:
            continue
        in_order = [WHOLE_GPU] * (WHOLE_GPU in by_place) + profiles
        further = [
            (larger, smaller)
            for larger, smaller in itertools.combinations(profiles, 2)
            if (cut_to_slices(larger), cut_to_slices(smaller)) in _FURTHER
        ]
        for larger, smaller in dict.fromkeys([*itertools.pairwise(in_order), *further]):
            if by_block := ratios(by_place[larger], by_place[smaller], by_place[smaller].throughput):
                num_larger, num_smaller = by_place[larger].multiprocessors, by_place[smaller].multiprocessors
                yield Step(
                    case=case,
                    larger=larger,
                    smaller=smaller,
                    ratio=by_place[smaller].estimate(by_block),
                    ideal=num_larger / num_smaller if num_larger and num_smaller else None,
                    published=_find_published(case.params[0], cut_to_slices(larger), cut_to_slices(smaller)),
                )


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
            yield CoRunnerEffect(cell=cell, throughput_ratio=cell.estimate(by_block))


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
