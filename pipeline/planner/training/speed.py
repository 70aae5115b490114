"""The speed of a process on a share of a GPU: read from the profile, or predicted from other shares and marked.

Model: a work unit takes a + b / x seconds on a share x of the multiprocessors (a, b >= 0, fitted by relative error).
The prediction error is measured by leave-one-out: each measured cell is predicted from the other cells. Naive sharing
and MPS without limits are never predicted from other modes. Different programs under MPS slow each other down by their
loads, if these were measured.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pipeline.base.domain.sharing_modes import MIG, MIG_MPS, MPS, MPS_PERCENT, NAIVE, SERIAL
from pipeline.planner.profile_table import Row
from pipeline.planner.serving.problem import Model
from pipeline.prepare.mig import layouts
from pipeline.report.evaluate.predictions import Load, predict_slowdowns

_SHARED_WHOLE = (NAIVE.name, MPS.name)
_OF_A_SHARE = (MPS_PERCENT.name, MIG.name, MIG_MPS.name)
# Tolerance, because percentages are recorded with or without a fraction.
_SAME_SHARE = 1.0
_LEAST_POINTS = 2
Program = tuple[str, int | None]
"""Workload and batch size."""
_Point = tuple[float, float]
"""Share of the multiprocessors and rate of one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The share on which a process runs, with the fields of `profile_table.Row`.

    Attributes:
        processes: number of processes on the instance or GPU.
    """

    mode: str
    instance_profile: str | None = None
    share_percent: float | None = None
    processes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speed of one process.

    Attributes:
        energy_per_item_j: energy of the GPU per item while all its shares are busy; `None` if not measured.
        error_ratio: median error of predictions in the mode; `None` for a measurement, or if unknown.
    """

    rate_per_s: float
    energy_per_item_j: float | None
    memory_mib: float | None
    is_predicted: bool = False
    error_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutCell:
    """A measured cell and its prediction from the other cells: rates of one process in work units/s."""

    row: Row
    measured_per_s: float
    predicted_per_s: float

    @property
    def error_ratio(self) -> float:
        """The difference between prediction and measurement, relative to the measurement."""
        return abs(self.predicted_per_s / self.measured_per_s - 1)


@dataclass(slots=True)
class Speeds:
    """The speeds of programs on one GPU model, from its rows.

    Attributes:
        held_out: cells that were predicted from the other cells.
    """

    model: Model
    rows: Sequence[Row]
    held_out: list[HeldOutCell] = field(init=False)
    _of: dict[Program, list[Row]] = field(init=False)
    _fits: dict[tuple[Program, str], tuple[float, float] | None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._of = defaultdict(list)
        for row in self.rows:
            self._of[row.workload, row.batch].append(row)
        self.held_out = list(self._hold_out_each())

    def find(self, program: Program, place: Place, *, is_mixed: bool = False) -> Speed | None:
        """Return the speed of a process, with `is_mixed` next to other programs; `None` if unknown."""
        row = self._find_row(program, place)
        if row is not None:
            memory = None if row.memory_mib is None else row.memory_mib / row.processes
            rate = row.throughput_per_s / row.processes
            return Speed(
                rate_per_s=rate, energy_per_item_j=row.energy_per_item_j, memory_mib=memory, is_predicted=is_mixed
            )
        x, fit = self.share(place), self._fit(program, place.mode)
        if x is None or fit is None:
            return None
        memory_mib = [row.memory_mib / row.processes for row in self._of[program] if row.memory_mib is not None]
        return Speed(
            rate_per_s=1 / (fit[0] + fit[1] / x),
            energy_per_item_j=None,
            memory_mib=max(memory_mib, default=None),
            is_predicted=True,
            error_ratio=None if is_mixed else self.error_ratio(place.mode, program),
        )

    def find_mixed(self, programs: Sequence[Program]) -> list[Speed] | None:
        """Predict the speeds of programs that run together under MPS; `None` unless the load of each is known."""
        alone = [self._find_row(program, Place(mode=SERIAL.name)) for program in programs]
        rows = [row for row in alone if row is not None and None not in (row.sensitivity_ratio, row.pressure_ratio)]
        if len(rows) < len(programs):
            return None
        loads = {row.cell: Load(row.sensitivity_ratio or 0.0, row.pressure_ratio or 0.0) for row in rows}
        slowdowns = predict_slowdowns([row.cell for row in rows], loads)
        return [
            Speed(
                rate_per_s=row.throughput_per_s / slowdown,
                energy_per_item_j=None,
                memory_mib=row.memory_mib,
                is_predicted=True,
            )
            for row, slowdown in zip(rows, slowdowns, strict=True)
        ]

    def find_alone(self, program: Program) -> Speed | None:
        """Return the speed of a process alone on the GPU or else on the largest instance with a known speed."""
        speed = self.find(program, Place(mode=SERIAL.name))
        profiles = layouts.list_slice_profiles(self.model.mig) if self.model.mig is not None else ()
        for mig_profile in reversed(profiles):
            speed = speed or self.find(program, Place(mode=MIG.name, instance_profile=mig_profile.name))
        return speed

    def error_ratio(self, mode: str, program: Program | None = None) -> float | None:
        """Return the median prediction error in a mode: of the program if known, else of all programs, else `None`."""
        of_mode = [cell for cell in self.held_out if cell.row.sharing_mode == mode]
        of_program = [cell for cell in of_mode if (cell.row.workload, cell.row.batch) == program]
        return statistics.median(cell.error_ratio for cell in of_program or of_mode) if of_mode else None

    def share(self, place: Place | Row) -> float | None:
        """Return the share of the multiprocessors (0 to 1) that a process may use; `None` if unknown."""
        if place.instance_profile is not None:
            if self.model.mig is None:
                return None
            ratio = self.model.mig.ideal_ratio(layouts.resolve(self.model.mig, place.instance_profile))
            return None if ratio is None else ratio / place.processes
        return place.share_percent / 100 if place.share_percent is not None else 1 / place.processes

    def _find_row(self, program: Program, place: Place) -> Row | None:
        def is_it(row: Row) -> bool:
            if row.processes != place.processes or row.instance_profile != place.instance_profile:
                return False
            if place.share_percent is None or row.share_percent is None:
                return place.share_percent == row.share_percent
            return abs(row.share_percent - place.share_percent) <= _SAME_SHARE

        modes = [place.mode]
        if place.processes == 1 and place.share_percent is None:
            if place.instance_profile is None:  # alone on the GPU, all modes are equal
                modes += [SERIAL.name, NAIVE.name, MPS.name]
            else:
                modes += [MIG.name, MIG_MPS.name]
        return next(
            (row for mode in modes for row in self._of[program] if row.sharing_mode == mode and is_it(row)), None
        )

    def _fit(self, program: Program, mode: str) -> tuple[float, float] | None:
        key = (program, mode)
        if key not in self._fits:
            points = self._points(self._of[program], mode)
            if mode in _SHARED_WHOLE and not any(row.sharing_mode == mode for row in self._of[program]):
                points = []  # other modes do not predict this mode
            elif mode in _OF_A_SHARE and not _is_enough(points):
                points = [
                    point for other in (*_OF_A_SHARE, MPS.name) for point in self._points(self._of[program], other)
                ]
            self._fits[key] = fit_speed(points) if _is_enough(points) and mode != SERIAL.name else None
        return self._fits[key]

    def _points(self, rows: Iterable[Row], mode: str) -> list[_Point]:
        points = []
        for row in rows:
            is_alone = row.processes == 1 and row.instance_profile is None and row.share_percent is None
            x = self.share(row) if row.sharing_mode == mode or is_alone else None
            if x is not None:
                points.append((x, row.throughput_per_s / row.processes))
        return points

    def _hold_out_each(self) -> Iterable[HeldOutCell]:
        for rows in self._of.values():
            for row in rows:
                if row.sharing_mode not in (*_SHARED_WHOLE, *_OF_A_SHARE) or self.share(row) in (None, 1.0):
                    continue
                points = self._points([other for other in rows if other is not row], row.sharing_mode)
                fit = fit_speed(points) if _is_enough(points) else None
                if fit is not None:
                    x = self.share(row)
                    assert x is not None
                    yield HeldOutCell(
                        row=row,
                        measured_per_s=row.throughput_per_s / row.processes,
                        predicted_per_s=1 / (fit[0] + fit[1] / x),
                    )


def _is_enough(points: Sequence[_Point]) -> bool:
    return len({round(x, 4) for x, _ in points}) >= _LEAST_POINTS


def fit_speed(points: Sequence[_Point]) -> tuple[float, float] | None:
    """Fit a and b of a + b / x seconds per work unit by least relative squares; `None` without points."""
    if not points:
        return None
    from scipy.optimize import nnls

    solution, _ = nnls([[rate, rate / x] for x, rate in points], [1.0] * len(points))
    a, b = map(float, solution)
    return (a, b) if a + b > 0 else None
