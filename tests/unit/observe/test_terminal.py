"""The table of rows: aligned, missing values as a dash, columns without values left out."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pty
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.base.domain import normalisation
from pipeline.base.domain.machine_state import MachineState
from pipeline.base.domain.protocols import RunningGroup
from pipeline.base.domain.records import Group, Result
from pipeline.base.domain.samples import Field, FieldTable, Sample, Summary
from pipeline.base.domain.window import WindowKind
from pipeline.base.system import startup
from pipeline.observe import phases
from pipeline.observe.group_result import GroupResult
from pipeline.observe.sample_figures import Fields
from pipeline.observe.study_progress import Progress
from pipeline.observe.table import format_table
from pipeline.observe.view import LiveJobs, make_view
from tests.support.rows import FIELDS, S, group


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_table_shows_what_there_is():
    good = GroupResult(
        group=group("a", "a"),
        result=Result.OK,
        reason="",
        metrics={
            "throughput_total_samples_per_s": 1234.56,
            "overlap_ratio": 0.9,
            "smact_mean_ratio": 0.123,
            "memory_peak_mib": 512.4,
            "power_mean_w": 1.0,
            "energy_per_sample_j": 7.13e-9,
        },
    )
    flagged = dataclasses.replace(
        good, tags={"collocation.invalid": "overlap 0.900 is below 0.95", "collocation.flag": "hot"}
    )
    failed = GroupResult(group=group("b"), result=Result.FAILED, reason="job 0-b: ended with status 3")
    lines = format_table([flagged, failed], FIELDS).splitlines()
    assert lines[0].split() == ["group", "result", "samples/s", "overlap", "GPU", "MiB", "SMACT", "J/sample"]
    assert lines[1].split() == ["naive-a+a", "ok*", "1234.6", "0.900", "512", "0.12", "7.13e-09"]
    assert lines[2].split() == ["naive-b", "failed", "-", "-", "-", "-", "-"]
    assert lines[3:5] == ["* naive-a+a: invalid: overlap 0.900 is below 0.95", "* naive-a+a: hot"]
    assert lines[5] == "naive-b: job 0-b: ended with status 3"


def test_a_group_has_one_line_for_all_its_blocks_beside_the_others_of_its_case():
    def block(number, *rates):
        groups = [group(*"aaa", block=number), group("a", "a", block=number), group("a", block=number, sequential=True)]
        for measured_group, rate in zip(groups, rates, strict=True):
            yield GroupResult(
                group=measured_group, result=Result.OK, reason="", metrics={"throughput_total_samples_per_s": rate}
            )

    rows = [*block(1, 30, 20, 10), *block(2, 31, 26, 12), *block(3, 90, 22, 11)]
    rows[3] = dataclasses.replace(rows[3], result=Result.FAILED, reason="lost", metrics={})
    lines = [re.split("  +", line) for line in format_table(rows, FIELDS, {rows[1].group.key}).splitlines()]
    assert lines == [
        ["group", "blocks", "result", "samples/s"],
        ["naive-a", "3", "ok", "11.0"],
        ["naive-a+a", "fastest", "3", "ok", "22.0"],
        ["naive-a+a+a", "3", "2 ok, 1 failed", "60.0"],
        ["figures are medians over the blocks"],
        ["naive-a+a+a (1 of 3 blocks): lost"],
    ]


def test_the_figures_of_a_group_are_those_of_its_valid_blocks_and_a_note_on_its_gain_stands_below():
    def row(block, speedup, **tags):
        tags = {f"collocation.{name}": text for name, text in tags.items()}
        metrics = {normalisation.SPEEDUP: speedup}
        return GroupResult(group=group("a", "a", block=block), result=Result.OK, reason="", metrics=metrics, tags=tags)

    rows = [row(1, 2.0), row(2, 9.0, invalid="suspended"), row(3, 2.2)]
    first, *notes = format_table(rows, FIELDS).splitlines()[1:]
    assert first.split() == ["naive-a+a", "3", "ok*", "2.10"]
    assert notes[-1] == "* naive-a+a (1 of 3 blocks): invalid: suspended"
    first, *notes = format_table(rows[:1], FIELDS, (), {rows[0].group.key: "above the ideal"}).splitlines()[1:]
    assert first.split() == ["naive-a+a", "ok*", "2.00"]
    assert notes == ["* naive-a+a: above the ideal"]


def test_each_gpu_counts_once():
    def row(block, rate, gpu=None):
        metrics = {"throughput_total_samples_per_s": rate}
        origin = None if gpu is None else MachineState.from_facts({"gpu_uuid": gpu})
        return GroupResult(group=group("a", block=block), result=Result.OK, reason="", metrics=metrics, origin=origin)

    own_gpu = group("a").device.uuid
    resumed = [row(1, 10, own_gpu), row(2, 12)]
    assert format_table(resumed, FIELDS).splitlines()[1:] == [
        "naive-a       2  ok           11.0",
        "figures are medians over the blocks",
    ]
    rows_elsewhere = [row(block, 20, "GPU-other") for block in (3, 4, 5)]
    first, note = format_table([*resumed, *rows_elsewhere], FIELDS).splitlines()[1:]
    assert first.split() == ["naive-a", "5", "ok", "15.5"]
    assert note == "figures are medians over the blocks; each of the 2 GPUs counts once"


def test_a_wide_table_shortens_names_then_leaves_out_what_matters_least():
    def row(number, **metrics):
        name = f"naive-{number}x-{'long_program' * 3}-lr={number}-wd=1e-3"
        named = group(*"a" * number, name=name, key=str(number))
        return GroupResult(group=named, result=Result.OK, reason="", metrics=metrics)

    speeds = {"throughput_total_samples_per_s": 100.0, normalisation.SPEEDUP: 1.5, normalisation.SLOWDOWN: 1.3}
    narrow = format_table([row(1, **speeds), row(2, **speeds)], FIELDS).splitlines()
    assert [line.split()[0] for line in narrow] == ["group", *(row(number).group.name for number in (1, 2))]
    times = {"epoch_time_mean_s": 1.0, "makespan_s": 2.0, "window_s": 3.0, "first_gpu_use_s": 4.0}
    sampled = {"smact_mean_ratio": 0.5, "memory_peak_mib": 512.0, "energy_per_sample_j": 0.01}
    wide = [row(number, **speeds, **times, **sampled) for number in (1, 2)]
    lines = format_table(wide, FIELDS).splitlines()
    assert [re.split("  +", line)[0] for line in lines] == ["group", "naive-1x-lr=1", "naive-2x-lr=2"]
    assert max(map(len, lines)) <= 100 and "on GPU after s" not in lines[0] and "makespan s" in lines[0]
    tagged = [
        dataclasses.replace(one, reason="x" * 10, group=dataclasses.replace(one.group, name="n" * 45 + one.group.key))
        for one in wide
    ]
    lines = format_table(tagged, FIELDS).splitlines()
    assert max(map(len, lines)) <= 100
    titles = re.split("  +", lines[0])
    assert {"samples/s", "speed-up", "slowdown", "J/sample"} < set(titles)
    assert not {"on GPU after s", "window s", "epoch s", "makespan s", "SMACT"} & set(titles)


def test_columns_for_authors_are_there_only_if_a_group_needs_attention():
    def titles(**metrics):
        row = GroupResult(group=group("a", "a"), result=Result.OK, reason="", metrics=metrics)
        return re.split("  +", format_table([row], FIELDS).splitlines()[0])

    good = {"overlap_ratio": 0.99, "start_skew_ms": 4.0, "orchestrator_cpu_pct": 2.0, normalisation.FAIRNESS: 0.99}
    bad = {"overlap_ratio": 0.94, "start_skew_ms": 400.0, "orchestrator_cpu_pct": 20.0, normalisation.FAIRNESS: 0.8}
    assert titles(**good) == ["group", "result"]
    assert titles(**bad) == ["group", "result", "fairness", "overlap", "skew ms", "own CPU %"]


def test_a_mark_that_groups_share_is_one_line():
    flag = "a job made {} steps in the window; raise window.seconds"
    rows = [
        GroupResult(
            group=group(*"a" * number), result=Result.OK, reason="", tags={"collocation.flag": flag.format(number)}
        )
        for number in (2, 3)
    ]
    assert format_table(rows, FIELDS).splitlines()[-1] == (
        "* naive-a+a, naive-a+a+a: a job made 2 to 3 steps in the window; raise window.seconds"
    )


@pytest.mark.parametrize(
    ("tags", "is_simulated", "line"),
    [
        ({}, False, "    ok, 10.0 samples/s, speed-up 1.50"),
        ({"collocation.flag": "hot"}, False, "    ok*, 10.0 samples/s, speed-up 1.50"),
        ({"collocation.invalid": "busy"}, False, "    ok* (invalid), 10.0 samples/s"),
        ({"collocation.invalid": "busy"}, True, "    ok"),
    ],
)
def test_progress_leaves_the_text_of_marks_to_the_table(capsys, tags, is_simulated, line):
    pair = group("a", "a")
    device = dataclasses.replace(pair.device, kind="simulated" if is_simulated else pair.device.kind)
    pair = dataclasses.replace(pair, device=device)
    metrics = {"throughput_total_samples_per_s": 10.0, normalisation.SPEEDUP: 1.5}
    view = make_view(Progress([pair]))
    view.begin(pair)
    view.done(GroupResult(group=pair, result=Result.OK, reason="", metrics=metrics, tags=tags))
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"{line} (")


def test_programs_that_differ_in_a_flag_are_cases_of_their_own():
    def copies(number, size):
        copied_group = group(*"a" * number, name=f"{number}x-{size}", key=f"{number}x-{size}")
        program = dataclasses.replace(
            copied_group.jobs[0].workload, params=(("batch-size", size),), digest=f"digest-{size}"
        )
        return dataclasses.replace(
            copied_group, jobs=tuple(dataclasses.replace(job, workload=program) for job in copied_group.jobs)
        )

    rows = [
        GroupResult(group=copies(number, size), result=Result.OK, reason="")
        for number in (2, 1)
        for size in ("32", "16")
    ]
    names = [line.split()[0] for line in format_table(rows, FIELDS).splitlines()[1:]]
    assert names == ["1x-16", "2x-16", "1x-32", "2x-32"]


def test_a_note_that_differs_only_in_numbers_is_said_once_for_all_blocks():
    def row(block, **marks):
        tags = {f"collocation.{name}": text for name, text in marks.items()}
        return GroupResult(group=group("a", "a", block=block), result=Result.OK, reason="", tags=tags)

    flag = "2 jobs, such as {}-a, made {} steps; raise window.seconds"
    rows = [
        row(1, flag=flag.format(0, 13)),
        row(2, flag=flag.format(1, 11), invalid="overlap 0.87 is below 0.95"),
        row(3, flag=flag.format(0, 15), invalid="overlap 0.5 is below 0.95"),
    ]
    assert format_table(rows, FIELDS).splitlines()[-2:] == [
        "* naive-a+a (2 of 3 blocks): invalid: overlap 0.5 to 0.87 is below 0.95",
        "* naive-a+a: 2 jobs, such as 0-a or 1-a, made 11 to 15 steps; raise window.seconds",
    ]


def test_a_reason_that_many_groups_share_is_said_once():
    groups = [group(*"a" * number) for number in range(2, 8)]
    rows = [GroupResult(group=failed_group, result=Result.FAILED, reason="lost") for failed_group in groups]
    *_, last = lines = format_table(rows, FIELDS).splitlines()
    assert len(lines) == 1 + 6 + 1
    assert last == "naive-a+a, naive-a+a+a, naive-a+a+a+a, naive-a+a+a+a+a and 2 more: lost"


def test_skipped_groups_stand_below_the_table():
    alone, pair, three = (group(*"a" * number) for number in (1, 2, 3))
    skipped = [
        GroupResult(group=skipped_group, result=Result.SKIPPED, reason="needs MIG") for skipped_group in (pair, three)
    ]
    ran = GroupResult(group=alone, result=Result.OK, reason="", metrics={"makespan_s": 3.0})
    *_, row, below = format_table([ran, *skipped], FIELDS).splitlines()
    assert row.split() == ["naive-a", "ok", "3.0"]
    assert below == "skipped naive-a+a, naive-a+a+a: needs MIG"
    assert format_table(skipped, FIELDS) == below
    partly = format_table([dataclasses.replace(ran, group=pair), skipped[0]], FIELDS).splitlines()[1:]
    assert partly[0].split("  ")[:2] == ["naive-a+a", "1 ok, 1 skipped"]


def test_groups_of_one_name_are_told_apart_by_window_and_device():
    pair = group("a", "a")
    other = dataclasses.replace(pair.device, name="NVIDIA A30")
    elsewhere = dataclasses.replace(pair, device=other, key="elsewhere")
    groups = [pair, elsewhere, group("a", "a", kind=WindowKind.WORK)]
    rows = [GroupResult(group=ended_group, result=Result.OK, reason="") for ended_group in groups]
    assert [re.split("  +", line) for line in format_table(rows, FIELDS).splitlines()] == [
        ["group", "window", "device", "result"],
        ["naive-a+a", "steady, 10 s after 1 s", "NVIDIA A30", "ok"],
        ["naive-a+a", "steady, 10 s after 1 s", pair.device.name, "ok"],
        ["naive-a+a", "work, 2 epochs", pair.device.name, "ok"],
    ]


def test_a_figure_of_a_new_listener_has_the_column_that_its_field_names():
    speed = Field(source_id="s", name="fan_rpm", unit="1/min", summary=Summary.MAX, column="fan rpm")
    row = GroupResult(group=group("a"), result=Result.OK, reason="", metrics={"fan_max_rpm": 900.0})
    lines = format_table([row], Fields([FieldTable(source="fans", fields=(speed,))])).splitlines()
    assert re.split("  +", lines[0])[-1] == "fan rpm" and lines[1].endswith(" 900.0")


def _make_running_group(of: Group, folder: Path, **changes: Any) -> RunningGroup:
    tables = {"tables": FIELDS.tables} | changes
    return RunningGroup(device=of.device, slots=[], folder=folder, samples=[], **tables)


def test_on_a_terminal_the_jobs_are_shown_at_once_while_their_group_runs(tmp_path, monkeypatch):
    terminal, pair = Terminal(), group("a", "a")
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    view = make_view(Progress([pair]))
    view.begin(pair)
    with view.show(pair, _make_running_group(pair, tmp_path)):
        shown = terminal.getvalue()
        assert "[1/1] naive-a+a" in shown and "samples/s" in shown
        assert all(f"{job.name} " in shown and "waiting" in shown for job in pair.jobs)


@pytest.mark.parametrize("name", ["a[/b]", "a[red]"])
def test_names_on_a_terminal_are_no_markup(name, tmp_path, monkeypatch):
    terminal, alone = Terminal(), group(name)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with make_view(Progress([alone])).show(alone, _make_running_group(alone, tmp_path)):
        assert f"0-{name} " in terminal.getvalue()


def test_a_group_goes_on_when_its_terminal_is_closed(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # as if it were closed after rich has looked whether it is a terminal
    controller, terminal = pty.openpty()
    monkeypatch.setattr("sys.stderr", startup.open_stream(terminal, is_by_line=True))
    pair = group("a", "a")
    view = make_view(Progress([pair]))
    view.begin(pair)
    with view.show(pair, _make_running_group(pair, tmp_path)):
        assert os.read(controller, 1)  # it drew
        os.close(controller)
    view.done(GroupResult(group=pair, result=Result.OK, reason=""))
    os.close(terminal)


def test_what_cannot_be_drawn_fails_no_group(tmp_path, monkeypatch):
    terminal, pair = Terminal(), group("a", "a")
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with make_view(Progress([pair])).show(pair, _make_running_group(pair, tmp_path, tables=None)):
        assert "the live table failed: TypeError" in terminal.getvalue()


def test_the_live_view_shows_the_memory_of_a_job_from_the_best_listener():
    samples = [
        Sample(source="nvml", t_ns=1, values={"process_memory_mib": 70.0}, job=1),
        Sample(source="nvml", t_ns=1, values={"memory_used_mib": 900.0}),
        Sample(source="host", t_ns=2, values={"rss_mib": 50.0, "pss_mib": 40.0}, job=1),
        Sample(source="host", t_ns=3, values={"rss_mib": 60.0}, job=0),
    ]
    assert [FIELDS.read_live_memory_mib(samples, job) for job in (0, 1, 2)] == [None, 70.0, None]
    without_gpu = Fields(table for table in FIELDS.tables if table.source == "host")
    assert [without_gpu.read_live_memory_mib(samples, job) for job in (0, 1, 2)] == [60.0, 40.0, None]


def test_the_runs_of_a_baseline_are_averaged_in_their_block():
    def make_run_row(block, run, rate, note=""):
        alone = group("a", block=block, sequential=True)
        of_run = dataclasses.replace(alone, run=run, digest=f"{alone.digest} {run}")
        tags = {"collocation.flag": note} if note else {}
        return GroupResult(
            group=of_run, result=Result.OK, reason="", metrics={"throughput_total_samples_per_s": rate}, tags=tags
        )

    rows = [
        make_run_row(1, 1, 10.0),
        make_run_row(1, 2, 20.0),
        make_run_row(2, 1, 25.0, "hot"),
        make_run_row(2, 2, 25.0),
    ]
    first, *notes = format_table(rows, FIELDS).splitlines()[1:]
    assert first.split() == ["naive-a", "2", "ok*", "20.0"]
    assert notes == ["figures are medians over the blocks", "* naive-a (1 of 4 runs): hot"]


class Jobs:
    """Jobs whose steps a test writes, at instants that it gives."""

    def __init__(self, folder, *names):
        self.group, self.folder, self.now_s = group(*names), folder, 0.0
        self.alive = {index: 1000 + index for index in range(len(names))}
        live = SimpleNamespace(folder=folder, pids=lambda: self.alive)
        self.live = LiveJobs(self.group, live, lambda: int(self.now_s * S))

    def step(self, index, t_s, total):
        file = self.folder / f"jobs/{index}/events.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as out:
            out.write(json.dumps({"event": "step", "t_ns": int(t_s * S), "total": total, "epoch": 2}) + "\n")

    def at(self, now_s):
        self.now_s = now_s
        return self.live.read()


@pytest.fixture
def jobs(tmp_path):
    return Jobs(tmp_path, "a", "b")


def test_jobs_wait_work_and_end(jobs):
    jobs.alive = {0: 1000}
    jobs.step(0, 1, 10)
    first, second = jobs.at(2)
    assert (first.phase, first.epoch, first.total, first.per_s) == ("train", 2, 10, None)
    assert (second.phase, second.epoch, second.total, second.per_s) == ("waiting", None, None, None)
    jobs.step(0, 2, 30)
    assert jobs.at(3)[0].per_s == 20
    jobs.alive = {}
    ended = jobs.at(4)[0]
    assert (ended.phase, ended.total, ended.per_s) == ("ended", 30, None)


def test_the_rate_is_that_of_the_last_seconds(jobs):
    for second in range(1, 30):
        jobs.step(0, second, 10 * second if second < 20 else 10_000 + second)
        rate = jobs.at(second + 0.5)[0].per_s
        if second == 19:
            assert rate == 10
    assert rate == 1  # what was faster is more than five seconds ago


def test_a_job_that_does_nothing_has_no_rate(jobs):
    jobs.step(0, 1, 10)
    jobs.at(1)
    jobs.step(0, 2, 20)
    assert [jobs.at(now)[0].per_s for now in (2, 4, 6, 8)] == [10, 10, 10, None]


def test_who_asks_rarely_gets_the_rate_since_then(jobs):
    jobs.step(0, 1, 10)
    jobs.at(1)
    jobs.step(0, 61, 130)
    assert jobs.at(61)[0].per_s == 2


def test_the_shares_of_a_study_that_are_small_are_not_printed():
    metrics = {"time_window_s": 90.0, "time_launch_s": 6.0, "time_setup_s": 2.0, "time_cleanup_s": 0.0}
    assert phases.describe_shares([metrics], 100.0) == "measuring took 90 % of the time; launching 6 %"
    assert phases.describe_shares([metrics], 500.0) == "measuring took 18 % of the time; the rest 80 %"
    assert phases.describe_shares([{"time_window_s": 99.0}], 100.0) == "measuring took 99 % of the time"
