"""A stressor that takes turns beside a workload and beside a script, from run.py to the effects of the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.base.domain.tags import Tag, stored_name
from pipeline.base.domain.turns import parse_turns
from pipeline.report.__main__ import main
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.stressors import list_effects
from pipeline.report.read import rows
from pipeline.report.read.stressor_counters import choose_rows, read_counters
from tests.support.run_cases import groups

pytest_plugins = ["tests.support.run_fixtures", "tests.support.tracking_fixtures"]
pytestmark = pytest.mark.covers("pipeline/observe")

TURNS = ["+workload@sizes.T=stressor_turns", "sizes.T.resources=[host_cores]", "sizes.T.dials=[1.0]"]
TURNS += ["sizes.T.threads=1", "sizes.T.turn_settle_s=0.1", "sizes.T.rounds=2", "mix=[workload,T]", "scenario=naive"]
SHORT = ["window.seconds=1", "window.settle_s=0.3", "listeners=[]"]
SCRIPT = """
import time
for _ in range(100):
    time.sleep(0.05)
    print("throughput 20 samples/s", flush=True)
"""


def check_effect(store: Path, workload: str) -> None:
    study = rows.read([store], "collocation")
    (effect,) = list_effects(study, make_cells(study))
    assert (effect.workload.partition(" ")[0], effect.resource, effect.dial) == (workload, "host_cores", 1.0)
    assert effect.sensitivity is not None and effect.pressure is not None
    assert effect.sensitivity.median > 0.1 and effect.pressure.median > 0.1


@pytest.mark.slow
def test_a_workload_is_launched_once_for_all_turns(run, client, tmp_path):
    tiny = ["workload=tiny", "workload.source=synthetic_device", "workload.threads=1"]
    sampled = ["listeners=[host]", "listeners.host.interval_ms=200"]
    status, out, err = run("-m", *tiny, *TURNS, "sizes.T.turn_s=0.6", *SHORT[:-1], *sampled)
    assert status == 0, err + out
    assert "its worst stressor (host_cores, dial 1, naive" in out or "no stressor was seen to slow down tiny" in out
    turns = {
        row.info.run_name: parse_turns(row.data.tags[stored_name(Tag.TURNS)])
        for row, _ in groups(client)
        if stored_name(Tag.TURNS) in row.data.tags
    }
    jobs = {name: [(t.resource, t.num_turns, sorted(t.rates)) for t in of_group] for name, of_group in turns.items()}
    assert jobs == {
        "serial-1x-T": [("host_cores", 2, [0]), ("idle", 2, [])],
        "naive-tiny+T": [("host_cores", 2, [0, 1]), ("idle", 2, [0])],
    }
    check_effect(tmp_path / "mlruns", "tiny")
    (alone,) = choose_rows(rows.read([tmp_path / "mlruns"], "collocation"))
    by_place = {counters.place: counters.means["cpu_pct"] for counters in read_counters(alone)}
    assert 0.3 < by_place["host_cores", 1.0] < 1.1 and by_place["idle", 0.0] < 0.2, "one thread of one CPU, or none"
    for name in ("read", "unreadable"):
        place = ["--root", str(tmp_path / "mlruns"), "--out", str(tmp_path / name)]
        assert main(["--experiment", "collocation", "--no-log", *place]) == 0
        assert (tmp_path / name / "tables/stressors.csv").exists() == (name == "read")
        for path in (tmp_path / "mlruns").rglob("samples.parquet"):
            path.write_bytes(b"not parquet")
    page = (tmp_path / "unreadable/index.html").read_text()
    assert f"Not shown: counters of stressors in run {alone.run_id}, whose artifacts cannot be read." in page


@pytest.mark.slow
def test_a_script_that_logs_its_rate_runs_once_for_all_turns(run, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    pattern = "workload.metric_pattern='throughput ([0-9.]+)'"
    status, out, err = run(
        "-m", pattern, "workload.work_unit=samples", *TURNS, "sizes.T.turn_s=0.6", *SHORT, "--", "train.py"
    )
    assert status == 0, err + out
    check_effect(tmp_path / "mlruns", "train")
    status, out, err = run("-m", *TURNS, *SHORT, "--", "train.py")
    assert status == 2 and "train logs no rate" in err and len(err.strip().splitlines()) == 1
