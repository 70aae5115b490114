"""Services on fractions of a GPU: half, a third, ... with the rest of the GPU idle, and loaded by the same service."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain import service_figures
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import SERIAL, SharingMode
from pipeline.base.system.grouping import group_by
from pipeline.report.evaluate import sweeps
from pipeline.report.evaluate.cells import Cell, ratios
from pipeline.report.evaluate.statistics import Estimate, times_in_words
from pipeline.report.evaluate.wording import join_words

_USERS = "outstanding"
_NAMES = {1: "whole", 2: "half", 3: "third", 4: "quarter"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fraction:
    """A service on a fraction of a GPU, or on the whole GPU.

    Attributes:
        service: name of the jobs, without their number of users.
        num_parts: number of equal services that load the whole GPU; 1 for the whole GPU.
        is_loaded: whether these services run; otherwise one service runs, and the rest of the GPU is idle.
        cells, wholes: cells of the fraction and of the whole GPU, by users of a service.
    """

    service: str
    num_parts: int
    is_loaded: bool
    cells: Mapping[int, Cell]
    wholes: Mapping[int, Cell]

    @property
    def name(self) -> str:
        """The fraction in words."""
        return _NAMES.get(self.num_parts, f"1/{self.num_parts}")

    @property
    def sharing(self) -> SharingMode:
        return next(iter(self.cells.values())).sharing

    @property
    def rest(self) -> str:
        """The state of the rest of the GPU; empty for the whole GPU."""
        return "" if self.num_parts == 1 else "loaded" if self.is_loaded else "idle"

    def compare_throughput(self, users: int) -> Estimate | None:
        """Return the throughput of one service over that of the same service on the whole GPU."""
        cell, reference = self.cells[users], self.wholes.get(users)
        if reference is None or not (cell.is_ranked and reference.is_ranked):
            return None
        by_block = ratios(cell, reference, cell.throughput)
        by_service = {block: ratio / cell.degree for block, ratio in by_block.items()}
        return cell.estimate_speed_ratio(by_service) if by_block else None

    def estimate_users(self) -> Estimate | str | None:
        """Estimate the number of users of a service within the objective, between two measured numbers of users.

        A text is a bound: in a block, no measured number of users meets the objective, or all do. `None` without an
        objective at a percentile, or if a latency is missing.
        """
        any_cell = next(iter(self.cells.values()))
        words, latency = read_objective(any_cell.case.params[0])
        by_users = {users: cell.values[latency] for users, cell in self.cells.items() if latency in cell.figures}
        if not words or len(by_users) < max(2, len(self.cells)):
            return None
        objective = float(any_cell.case.params[0][service_figures.OBJECTIVE])
        blocks = sorted(set.intersection(*map(set, by_users.values())))
        served = {
            block: _interpolate(objective, [(users, by_users[users][block]) for users in sorted(by_users)])
            for block in blocks
        }
        known = {block: users for block, users in served.items() if isinstance(users, float)}
        bounds = [bound for bound in served.values() if isinstance(bound, str)]
        return bounds[0] if bounds else any_cell.estimate(known) if known else None


def read_objective(params: Mapping[str, str]) -> tuple[str, str]:
    """Return the objective of a service in words and the latency that it limits; both are empty without one.

    Without a percentile, the objective limits no latency of the service.
    """
    if service_figures.OBJECTIVE not in params:
        return "", ""
    percentile = f"{sweeps.parse_number(params.get(service_figures.OBJECTIVE_PERCENTILE, '')) or 0:g}"
    words = f"{float(params[service_figures.OBJECTIVE]):g} ms"
    if percentile == "0":
        return f"latency within {words}", ""
    return f"p{percentile} within {words}", service_figures.name_worst(f"latency_p{percentile.replace('.', '')}_ms")


def _interpolate(objective: float, latencies: Sequence[tuple[int, float]]) -> float | str:
    """Return the number of users at which the latency first exceeds the objective, or a bound in words."""
    (fewest, lowest), (most, _) = latencies[0], latencies[-1]
    if lowest > objective:
        return f"fewer than {fewest}"
    for (users, latency), (more, higher) in itertools.pairwise(latencies):
        if higher > objective:
            return users + (more - users) * (objective - latency) / (higher - latency)
    return f"at least {most}"


def list_fractions(cells: Sequence[Cell]) -> Iterator[Fraction]:
    """Yield the whole GPU, then its fractions with idle and with loaded rest, for services whose clients wait.

    A fraction is the share of one job, of which a mode ran one job and several jobs.
    """
    ran = [cell for cell in cells if not cell.is_derived and cell.finding is not Result.SKIPPED]
    alone = [cell for cell in ran if not (cell.case.is_mix or cell.co_runners or cell.num_given)]
    for swept in sweeps.numbers(alone, 1, only=_USERS):
        shares: dict[tuple[SharingMode, str], dict[int, dict[int, Cell]]] = defaultdict(lambda: defaultdict(dict))
        for users, members in swept.cells.items():
            for cell in members:
                # Each job of a group has the same profile, whatever the number of jobs.
                share = cell.profiles[0] if len(set(cell.profiles)) == 1 else cell.detail
                shares[cell.sharing, share][cell.degree][int(users)] = cell
        wholes = shares.pop((SERIAL, ""), {}).get(1, {})
        parts = [by_degree for (mode, _), by_degree in shares.items() if mode.placement_fact and by_degree.keys() > {1}]
        if wholes and parts:
            yield Fraction(service=swept.what, num_parts=1, is_loaded=True, cells=wholes, wholes=wholes)
            for by_degree in sorted(parts, key=max):
                for degree in (1, max(by_degree)):
                    yield Fraction(
                        service=swept.what,
                        num_parts=max(by_degree),
                        is_loaded=degree > 1,
                        cells=by_degree[degree],
                        wholes=wholes,
                    )


def describe_fractions(cells: Sequence[Cell]) -> list[str]:
    """Return a sentence on the largest fraction of each sharing mode, for each service."""
    by_mode = group_by(list_fractions(cells), lambda part: (part.service, part.sharing))
    reference: Fraction | None = None
    sentences = []
    for members in by_mode.values():
        if members[0].num_parts == 1:
            (reference,) = members
            continue
        parts = [part for part in members if part.num_parts == members[0].num_parts]
        most = max(parts[0].cells)
        rates = [(part.compare_throughput(most), part.rest) for part in parts if most in part.cells]
        throughputs = [f"{times_in_words(ratio)} with the rest {rest}" for ratio, rest in rates if ratio is not None]
        users = [part.estimate_users() for part in (*parts, reference) if part is not None]
        numbers = [number.median for number in users if isinstance(number, Estimate)]
        if throughputs:
            cell = parts[0].cells[most]
            share = f"a {parts[0].name} of the GPU ({cell.mode})".replace("a half", "half")
            ratios_in_words = f"{join_words(throughputs)}, relative to the whole GPU"
            sentence = f"On {share}, the throughput of {parts[0].service} is {ratios_in_words}"
            if len(numbers) == len(parts) + 1:
                objective, _ = read_objective(cell.case.params[0])
                sentence += "; {:.1f} and {:.1f} instead of {:.1f} users have a ".format(*numbers) + objective
            sentences.append(f"{sentence}.{' (simulated)' if cell.is_simulated else ''}")
    return sentences
