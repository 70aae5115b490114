"""`repeats=auto` as a user types it: a study stops at its goal, counts as complete, and goes on for a narrower one."""

from __future__ import annotations

import re

import pytest

from pipeline.record.shards.overview import read_overview
from pipeline.report.read import rows
from tests.support.run_cases import SHORT, TOY

pytest_plugins = ["tests.support.tracking_fixtures", "tests.support.run_fixtures"]
pytestmark = pytest.mark.covers("pipeline/study/stopping_rule.py", "pipeline/study/study_run.py")
STUDY = [*TOY, *SHORT, "listeners=[]", "degree=2", "repeats=auto"]


def count_blocks(root):
    """The blocks of a study that status and report take for complete."""
    progress, study = read_overview(root, "collocation"), rows.read([root], "collocation")
    assert progress.is_done and len(study.rows) == study.num_planned == 2 * len(progress.shards)
    return len(progress.shards)


@pytest.mark.slow
def test_a_study_stops_at_its_goal_is_complete_and_goes_on_for_a_narrower_one(run, tmp_path):
    status, _, err = run(*STUDY, "precision_goal_pct=100")
    assert status == 0, err
    (stopped,) = re.findall("stopped after (.*) blocks: the goal is reached, 1 speed-up is known within 100 %", err)
    ended = int(stopped)  # blocks in which this machine was too busy for a valid row do not count
    assert 5 <= ended == count_blocks(tmp_path / "mlruns")
    assert f"[{2 * ended}/40] block {ended} of at most 20" in err and f"[{2 * ended + 1}/40]" not in err
    assert "not finished" not in err

    status, _, err = run(*STUDY, "precision_goal_pct=100", "resume=true")
    assert status == 0, err
    assert f"resume: {2 * ended} of 40 groups are finished" in err and "] block" not in err
    assert "the stored blocks reach the goal of 100 %" in err and f"stopped after {ended} blocks" in err

    narrower = [*STUDY, "precision_goal_pct=0.0001", f"repeats_max={ended + 1}", "resume=true"]
    status, _, err = run(*narrower, "time_limit_s=0.000001")
    assert status == 1
    assert f"{2 * ended + 2} groups: at most 2 not finished; to run them:" in err

    status, _, err = run(*narrower)
    assert status == 0, err
    assert f"block {ended + 1} of at most {ended + 1}" in err
    assert f"out of reach within repeats_max={ended + 1}: 2 toy, naive:" in err
    assert "1 of 1 speed-up is not known within 0.0001 %: 2 toy, naive:" in err
    assert count_blocks(tmp_path / "mlruns") == ended + 1
