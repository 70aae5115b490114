"""The figures of jobs that ran together, normalised by what each did alone: for the live table and the report."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.base.records import WindowKind

SPEEDUP, SLOWDOWN, FAIRNESS = "speedup_vs_serial_ratio", "slowdown_worst_ratio", "fairness_jain_ratio"


def rate_name(window: WindowKind) -> str:
    """What jobs are compared by: seconds for a fixed amount of work, else samples/s in the window."""
    return "makespan_s" if window is WindowKind.WORK else "throughput_samples_per_s"


def normalise(
    window: WindowKind,
    jobs: Sequence[tuple[float | None, float | None]],
    *,
    is_sequential: bool = False,
    serial_s: float | None = None,
    makespan_s: float | None = None,
) -> dict[str, float]:
    """Speed-up over one job at a time, the worst job's slowdown, and Jain's fairness; absent where a rate is unknown.

    Args:
        window: what was measured.
        jobs: rate (`rate_name`) of each job together with the others, and alone.
        is_sequential: whether they ran one after another after all.
        serial_s: of a fixed amount of work: total time of the same jobs really executed one after another; the sum of
            their times alone if that was not measured.
        makespan_s: of a fixed amount of work: total time of the jobs together.
    """
    known = [(together, alone) for together, alone in jobs if together and alone]
    # Without a fixed amount of work, jobs in turn each have the device for a window of their own: no common rate.
    is_rate = window is not WindowKind.WORK
    if not known or len(known) < len(jobs) or (is_rate and is_sequential and len(jobs) > 1):
        return {}
    if is_rate:
        progress = [together / alone for together, alone in known]
        speedup: float | None = sum(progress)
    else:
        progress = [alone / together for together, alone in known]
        speedup = (serial_s or sum(alone for _, alone in known)) / makespan_s if makespan_s else None
    return {
        **({} if speedup is None else {SPEEDUP: speedup}),
        SLOWDOWN: 1 / min(progress),
        FAIRNESS: sum(progress) ** 2 / (len(progress) * sum(value * value for value in progress)),
    }
