"""Inference workloads: what is refused before anything is touched, and what their commands become."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.prepare.env import current

pytestmark = pytest.mark.torch  # without the packages that a workload names, it is refused
TINY = ["workload=infer_tiny", "gpu=cpu"]
POISSON = ["workload.arrival=poisson", "workload.rate_per_s=100"]


def test_an_environment_without_the_server_is_refused(make_plan, monkeypatch):
    over_http = [*TINY, "workload.serve=http"]
    assert make_plan(over_http).groups
    interpreter = current.CurrentEnv().resolve()
    without_server = dataclasses.replace(
        interpreter, lock=tuple(line for line in interpreter.lock if not line.startswith("uvicorn"))
    )
    monkeypatch.setattr(current, "_describe", lambda: without_server)
    assert make_plan(TINY).groups
    with pytest.raises(ConfigError, match=r"infer_tiny: uvicorn is not installed in the environment of"):
        make_plan(over_http)


@pytest.mark.slow
def test_large_images_need_a_gpu_that_nobody_asked_for(make_plan):
    with pytest.raises(ConfigError, match="no GPU was found"):
        make_plan(["workload=infer_resnet50"])
    assert make_plan(["workload=infer_resnet50", "gpu=cpu"]).groups


def test_a_window_without_a_p99_is_noted_once(make_plan):
    short = make_plan([*TINY, *POISSON, "window.seconds=9"], [*TINY, *POISSON, "window.seconds=9", "degree=3"])
    notes = [note for note in short.notes if "p99" in note]
    assert notes == [
        "infer_tiny: no p99: a p99 needs at least 1,200 requests, but the window holds only about 900 requests (100/s "
        "for 9 s); set window.seconds=14"
    ]
    assert [note for note in make_plan([*TINY, *POISSON, "window.seconds=12"]).notes if "p99" in note] == [
        "infer_tiny: a p99 needs 1,200 requests that do not wait for others, about 4,000 at load 0.6 and 13,000 at "
        "load 0.8; the window holds about 1,200 requests (100/s for 12 s)"
    ]
    assert not any("p99" in note for note in make_plan([*TINY, *POISSON, "window.seconds=130"]).notes)
    assert not any("p99" in note for note in make_plan([*TINY, *POISSON, "window=by_need", "window.most_s=130"]).notes)
    (note,) = make_plan([*TINY, *POISSON, "window=by_need", "window.most_s=5"]).notes
    assert note.endswith("about 500 requests (100/s for 5 s); set window.most_s=14")
    assert not any("p99" in note for note in make_plan([*TINY]).notes), "nobody knows how many there will be"


def test_a_given_rate_is_known_to_comparisons_and_the_objective_is_none_of_the_program(make_plan):
    strict, free = (
        make_plan([*TINY, *POISSON, *more]).groups[0].jobs[0].workload for more in (["workload.objective_ms=9"], [])
    )
    assert (strict.work_unit, strict.is_rate_given, free.objective) == ("requests", True, None)
    assert strict.objective is not None
    assert strict.objective.latency_ms == 9
    assert strict.argv == free.argv
    assert "--rate-per-s" in strict.argv
    closed = make_plan([*TINY]).groups[0].jobs[0].workload
    assert not closed.is_rate_given
