"""Integer programmes over GPUs, which offer slots, and instances, which occupy slots and serve; solved by HiGHS.

A column counts the GPUs or instances of one sort, because GPUs of a model are equal and instances are independent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pipeline.planner.serving.problem import Option, Problem
from pipeline.planner.serving.solution import Status, ceil

# Statuses of `scipy.optimize.milp`.
_OPTIMAL, _INFEASIBLE = 0, 2


@dataclass(frozen=True, slots=True)
class Counts:
    """A solution: the count of each column (`None` without a solution), and the lower bound of the cost."""

    columns: list[int] | None
    bound: int | None
    status: Status


class Programme:
    """The integer programme that serves all services at the least cost, on at most `most_gpus` GPUs.

    Attributes:
        cost: cost of each column.
        rates: share of the service's rate that each column serves, for each service.
    """

    def __init__(self, problem: Problem, most_gpus: float = math.inf) -> None:
        self.cost: list[float] = []
        self.rates: list[dict[int, float]] = [{} for _ in problem.services]
        self.most_gpus = most_gpus
        self._limits = [model.limit for model in problem.models]
        self._share = problem.share
        self._most: list[float] = []
        self._gpus: list[dict[int, float]] = [{} for _ in problem.models]
        self._slots: dict[Hashable, dict[int, float]] = defaultdict(dict)
        self._rows: list[tuple[Mapping[int, float], float, float]] = []

    def add_column(self, cost: float, most: float = math.inf) -> int:
        """Add a column and return its position."""
        self.cost.append(cost)
        self._most.append(most)
        return len(self.cost) - 1

    def add_gpu(self, model: int, slots: Mapping[Any, int], cost: float = 0) -> int:
        """Add a column of GPUs of a model with their number of slots of each kind."""
        column = self.add_column(cost)
        self._gpus[model][column] = 1
        for kind, count in slots.items():
            self._slots[kind][column] = -count
        return column

    def add_instance(self, option: Option, cost: float = 0, most: float = math.inf, slot: Hashable = None) -> int:
        """Add a column of instances of a configuration; an instance occupies a slot of its kind, or `slot`."""
        column = self.add_column(cost, most)
        self.rates[option.service][column] = self._share(option)
        self._slots[option.kind if slot is None else slot][column] = 1
        return column

    def add_row(self, row: Mapping[int, float], low: float = -math.inf, high: float = math.inf) -> None:
        """Add a constraint: a weighted sum of columns between two limits."""
        self._rows.append((row, low, high))

    def build_constraints(self, rates: Sequence[float] | None = None) -> tuple[Any, Any, Any]:
        """Return a sparse matrix `[row, column]` and the limits of its rows; the first rows are the services.

        `rates` are the shares of the services' rates that are required (default 1). No column counts more than the
        required share, which improves the bound.
        """
        import numpy as np
        from scipy.sparse import csr_array

        needed = rates or [1.0] * len(self.rates)
        rows: list[tuple[Mapping[int, float], float, float]] = [
            ({column: min(share, least) for column, share in row.items()}, least, math.inf)
            for row, least in zip(self.rates, needed, strict=True)
        ]
        # Rows are in the order of the instances, because HiGHS takes a third longer in the order of the GPUs.
        rows += [(row, -math.inf, 0) for row in sorted(self._slots.values(), key=max)]
        limited = zip(self._gpus, self._limits, strict=True)
        rows += [(row, -math.inf, limit) for row, limit in limited if limit is not None]
        if self.most_gpus < math.inf:
            rows.append(({column: 1.0 for row in self._gpus for column in row}, -math.inf, self.most_gpus))
        rows += self._rows
        weights = [weight for row, _, _ in rows for weight in row.values()]
        columns = [column for row, _, _ in rows for column in row]
        ends = [0, *accumulate(len(row) for row, _, _ in rows)]
        matrix = csr_array((weights, columns, ends), shape=(len(rows), len(self.cost)))
        return matrix, np.array([low for _, low, _ in rows]), np.array([high for _, _, high in rows])

    def solve(self, time_limit_s: float, rates: Sequence[float] | None = None, bounds: Any = None) -> Counts:
        """Find the whole numbers with the least cost; the bound is valid if costs are whole numbers."""
        import numpy as np

        optimum = self.optimise(time_limit_s, rates, bounds, integrality=np.ones(len(self.cost)))
        lowest = optimum.mip_dual_bound
        bound = ceil(lowest) if lowest is not None and math.isfinite(lowest) else None
        if optimum.x is None:
            return Counts(None, bound, "infeasible" if optimum.status == _INFEASIBLE else "unknown")
        status: Status = "optimal" if optimum.status == _OPTIMAL else "feasible"
        return Counts([int(count) for count in np.rint(optimum.x)], bound, status)

    def optimise(
        self, time_limit_s: float, rates: Sequence[float] | None = None, bounds: Any = None, integrality: Any = None
    ) -> Any:
        """Return the result of `scipy.optimize.milp`; without `integrality`, solve the linear programme."""
        from scipy import optimize

        return optimize.milp(
            self.cost,
            integrality=integrality,
            bounds=bounds or optimize.Bounds(0, self._most),
            constraints=optimize.LinearConstraint(*self.build_constraints(rates)),
            options={"time_limit": max(time_limit_s, 0.1), "mip_rel_gap": 0},
        )
