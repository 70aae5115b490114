"""A series of any length in bounded memory, for figures of jobs that do not need full resolution."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

MOST_POINTS = 10_000
"""Maximum number of points kept. MLflow gets fewer (`tracking.series_points`); the job's files contain all points."""

Point = tuple[int, int, float]
"""Step, time in ns, value."""


class PointSeries:
    """The points of a series in order of arrival: all of them, or every k-th and the last.

    Args:
        points: the first points.
        most: maximum number of points kept. Each time it is exceeded, every second point is dropped.
    """

    __slots__ = ("_last", "_most", "_num", "_steps", "_stride", "_t_ns", "_values")

    def __init__(self, points: Iterable[Point] = (), most: int = MOST_POINTS) -> None:
        self._steps, self._t_ns, self._values = array("q"), array("q"), array("d")
        self._most, self._stride, self._num = most, 1, 0
        self._last: Point | None = None
        for point in points:
            self.append(*point)

    def append(self, step: int, t_ns: int, value: float) -> None:
        """Add a point, whose `step` and `t_ns` have at most 64 bits."""
        if self._num % self._stride:
            self._last = (step, t_ns, value)
        else:
            self._steps.append(step)
            self._t_ns.append(t_ns)
            self._values.append(value)
            self._last = None
        self._num += 1
        if len(self._values) > self._most:
            self._steps, self._t_ns, self._values = self._steps[::2], self._t_ns[::2], self._values[::2]
            self._stride *= 2
            if (self._num - 1) % self._stride:
                self._last = (step, t_ns, value)

    @property
    def num_points(self) -> int:
        """Number of points received, kept or not."""
        return self._num

    @property
    def newest(self) -> Point:
        """The point received last; `IndexError` if there is none."""
        return self._last or (self._steps[-1], self._t_ns[-1], self._values[-1])

    def __len__(self) -> int:
        return len(self._values) + (self._last is not None)

    def __iter__(self) -> Iterator[Point]:
        yield from zip(self._steps, self._t_ns, self._values, strict=True)
        if self._last is not None:
            yield self._last


def thin_points(points: Iterable[Point], most: int) -> list[Point]:
    """Return at most `most` of the points: every k-th, the first and the last among them."""
    series = list(points)
    if len(series) <= most:
        return series
    stride = -(-(len(series) - 1) // max(1, most - 1))
    return [*series[:-1:stride], series[-1]]
