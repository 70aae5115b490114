"""Programs that sleep have a rate that is known: it is recorded as it was in the window, or flagged."""

from __future__ import annotations

import pytest

from pipeline.base.paths import PROJECT_DIR
from tests.run_cases import TOY, groups

pytest_plugins = ["tests.tracking_fixtures", "tests.run_fixtures"]
RATE = 4 / 0.005
SETTLE_S, WINDOW_S = 0.3, 2.0
WINDOW = [f"window.settle_s={SETTLE_S}", f"window.seconds={WINDOW_S}", "limits.ready_s=20", "limits.stop_s=5"]


@pytest.mark.parametrize(
    ("begin_s", "length_s", "degree", "stalled", "is_flagged"),
    [
        (None, 0, 2, 0.0, False),
        (0.0, 0.2, 2, 0.0, False),  # before the window
        (0.1, 0.7, 1, 0.5, True),  # into it
        (0.9, 0.5, 2, 0.5, False),  # in its middle: slow, and truly so
        (1.8, 1.5, 1, 0.5, True),  # to its end and beyond
    ],
    ids=["steady", "before", "beginning", "middle", "end"],
)
def test_a_stall_is_slow_or_flagged_and_never_fast(run, client, begin_s, length_s, degree, stalled, is_flagged):
    program = [f"workload.script={PROJECT_DIR / 'tests/toys/stalling.py'}"]
    if begin_s is not None:
        program.append(f"workload.args=['--from={begin_s}','--for={length_s}','--only=0']")
    status, _, err = run(*TOY, *program, *WINDOW, f"degree={degree}", "baseline=never")
    assert status == 0, err
    ((group, jobs),) = groups(client)
    rates = {job.data.tags["collocation.index"]: job.data.metrics["throughput_samples_per_s"] for job in jobs}
    assert bool(group.data.tags.get("collocation.flag")) == is_flagged
    assert rates["0"] == pytest.approx(RATE * (1 - stalled / WINDOW_S), rel=0.02)
    if degree == 2:
        assert rates["1"] == pytest.approx(RATE, rel=0.02)
