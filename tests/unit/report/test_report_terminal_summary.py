"""What the terminal says when a study ends: the sentences of its report, from rows that MLflow does not have yet."""

from __future__ import annotations

import dataclasses
import re
import sys
from types import SimpleNamespace

import pytest

from pipeline.base.domain.records import Group, Result
from pipeline.base.domain.tags import Tag
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.factory import Spec
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.record.invocation import Invocation
from pipeline.report.terminal_summary import summarize_study
from pipeline.study import summary
from tests.support.rows import group

MPS = {"scenario": "mps", "sharing": Spec(target="pipeline.prepare.sharing.mps.Mps"), "name": "mps-2x-a", "key": "mps"}


def make_ended_group(the_group, rate, result=Result.OK) -> GroupResult:
    """A group of which each job has this rate."""
    metrics = {"throughput_samples_per_s": rate}
    jobs = tuple(JobResult(job=job, result=result, reason="", metrics=metrics) for job in the_group.jobs)
    total = {"throughput_total_samples_per_s": rate * len(jobs)}
    return GroupResult(group=the_group, result=result, reason="", jobs=jobs, metrics=total)


def study(blocks, noise=(1.0,)):
    """Alone 100 samples/s; two together 60 each, under MPS 90 each."""
    for block in range(1, blocks + 1):
        factor = noise[block % len(noise)]
        yield make_ended_group(group("a", sequential=True, block=block), 100.0)
        yield make_ended_group(group("a", "a", block=block), 60.0 * factor)
        yield make_ended_group(group("a", "a", block=block, **MPS), 90.0 * factor)


def test_one_block_says_the_gain_and_that_it_has_no_interval_without_waiting_for_numpy(monkeypatch):
    for module in ("numpy", "scipy", "mlflow", "pandas"):
        monkeypatch.setitem(sys.modules, module, None)
    ended = summarize_study("test", list(study(1)))
    assert ended.sentences == (
        "2 x a, MPS: 1.80 x serial (1 block). "
        "They take 0.56 of the time of one after another, each up to 1.11 times as long as alone.",
    )
    assert (ended.fastest, ended.has_too_few_blocks) == ({"mps"}, True)


def test_a_study_of_one_mode_says_what_each_number_of_jobs_gains_and_marks_only_with_a_star():
    rows = [
        make_ended_group(group("a", sequential=True), 100.0),
        make_ended_group(group("a", "a", key="2"), 90.0),
        make_ended_group(group("a", "a", "a", key="3"), 60.5),
    ]
    rows[1] = dataclasses.replace(rows[1], tags={Tag.FLAG: "the clocks were limited"})
    ended = summarize_study("test", rows)
    assert ended.sentences == (
        "2 x a, naive: 1.80* x serial (1 block). "
        "They take 0.56 of the time of one after another, each up to 1.11 times as long as alone.",
        "3 x a, naive: 1.81 x serial (1 block). They take 0.55 of the time of one after another, "
        "each up to 1.65 times as long as alone; 2 gain as much.",
    )
    assert ended.fastest == frozenset()
    losing = [rows[0], make_ended_group(group("a", "a"), 40.0)]
    assert (
        "They take 1.25 times as long as in turn, each up to 2.50 times as long as alone."
        in (summarize_study("test", losing).sentences[0])
    )


def test_figures_that_are_all_invalid_are_no_answer():
    rows = [dataclasses.replace(row, tags={Tag.INVALID: "the host was busy"}) for row in list(study(1))[:2]]
    assert summarize_study("test", rows).sentences == (
        "No figure is valid (*), so there is no answer; remove the cause and measure again.",
    )


def test_more_blocks_are_suggested_only_below_those_of_a_verdict():
    assert summarize_study("test", list(study(4))).has_too_few_blocks
    assert not summarize_study("test", list(study(6, noise=(1.0, 1.01, 0.99)))).has_too_few_blocks
    scattered = summarize_study("test", [row for row in study(5, noise=(0.7, 1.1)) if row.group.scenario != "mps"])
    assert not scattered.has_too_few_blocks and "; no verdict: about" in scattered.sentences[0]
    alone = [row for row in study(1) if row.group.scenario == "serial"]
    assert not summarize_study("test", alone).has_too_few_blocks


def test_enough_blocks_say_which_mode_is_fastest_with_its_interval():
    ended = summarize_study("test", list(study(6, noise=(1.0, 1.01, 0.99))))
    (sentence,) = ended.sentences
    assert sentence.startswith("2 x a: MPS is fastest, 1.80 x serial (1.7")
    assert ended.fastest == {"mps"}


def test_one_mode_a_marked_one_and_one_that_was_rehearsed_are_not_called_fastest():
    rows = list(study(1))
    assert summarize_study("test", rows[:2]).fastest == frozenset()
    noted = dataclasses.replace(rows[2], tags={Tag.FLAG: "the clocks were limited"})
    assert summarize_study("test", [*rows[:2], noted]).fastest == frozenset()
    device = dataclasses.replace(rows[0].group.device, kind="simulated")
    rehearsed = [dataclasses.replace(row, group=dataclasses.replace(row.group, device=device)) for row in rows]
    assert summarize_study("test", rehearsed).fastest == frozenset()


def test_one_job_that_is_faster_than_itself_is_marked():
    rows = [make_ended_group(group("a", sequential=True), 100.0), make_ended_group(group("a"), 167.0)]
    (note,) = summarize_study("test", rows).notes.values()
    assert note.startswith("one naive job repeats the serial run, but ran 1.67 times as fast")
    mps = make_ended_group(group("a", **MPS | {"name": "mps-1x-a"}), 167.0)
    (note,) = summarize_study("test", [rows[0], mps]).notes.values()
    assert note.startswith("speed-up of 1.67 exceeds the number of jobs")
    assert not summarize_study("test", [rows[0], make_ended_group(group("a"), 120.0)]).notes


def test_cases_of_one_block_that_ran_on_several_gpus_are_all_there():
    rows = [
        dataclasses.replace(row, tags={Tag.GPU_UUID: f"GPU-{case}"})
        for case, name in enumerate("ab", start=1)
        for row in (
            make_ended_group(group(name, sequential=True, case=case), 100.0),
            make_ended_group(group(name, name, case=case), 60.0),
        )
    ]
    assert [sentence.split(" 1.20 ")[0] for sentence in summarize_study("test", rows).sentences] == [
        f"2 x {name}, naive:" for name in "ab"
    ]


def test_a_group_that_failed_and_jobs_alone_have_no_sentence():
    pair = group("a", "a")
    rows = [
        make_ended_group(group("a", sequential=True), 100.0),
        make_ended_group(group("a"), 101.0),
        make_ended_group(pair, 60.0, Result.FAILED),
    ]
    ended = summarize_study("test", rows)
    assert (ended.sentences, ended.fastest) == ((), frozenset())


def test_the_best_step_mode_and_the_energy_stand_beside_the_gain_over_serial():
    """Two eager jobs under MPS against one eager job, and against a CUDA graph alone that was not interleaved."""

    def make_result(members: Group, rate: float, step_mode: str, power_w: float) -> GroupResult:
        params = (("step_mode", step_mode),)
        jobs = tuple(
            dataclasses.replace(
                job,
                workload=dataclasses.replace(job.workload, params=params, digest=f"{job.workload.digest} {step_mode}"),
            )
            for job in members.jobs
        )
        row = make_ended_group(dataclasses.replace(members, jobs=jobs), rate)
        tags = {Tag.WINDOW_START_NS: "0", Tag.WINDOW_END_NS: "10000000000"}
        metrics = {"energy_j": 10 * power_w, "window_s": 10.0}
        return dataclasses.replace(row, metrics={**row.metrics, **metrics}, tags=tags)

    kind = WindowKind.INTERLEAVED
    rows = []
    for block in range(1, 6):
        slower = 1 - 0.01 * (block % 2)
        rows.append(make_result(group("a", sequential=True, block=block, kind=kind), 100.0, "eager", 150.0))
        graph = group("a", sequential=True, block=block, key="graph")
        rows.append(make_result(graph, 400.0, "cuda_graph", 300.0))
        rows.append(make_result(group("a", "a", block=block, kind=kind, **MPS), 100.0 * slower, "eager", 200.0))
    (sentence,) = summarize_study("test", rows).sentences
    interval = r" \(\d\.\d\d to \d\.\d\d\)"
    assert re.fullmatch(
        rf"2 x a, MPS: 1\.98 x serial \(\d\.\d\d to \d\.\d\d; 5 blocks\)\. They take 0\.51 of the time of one after "
        rf"another, each up to 1\.01 times as long as alone\. MPS: 0\.49 x CUDA graph alone{interval}; "
        rf"energy 0\.67 x serial{interval}, 1\.35 x CUDA graph alone{interval}\.",
        sentence,
    )


def test_without_a_baseline_modes_are_compared_with_each_other():
    rows = [make_ended_group(group("a", "a"), 60.0), make_ended_group(group("a", "a", **MPS), 90.0)]
    (sentence,) = summarize_study("test", rows).sentences
    assert "2 x a, MPS: 1.50 x naive" in sentence


def test_where_sharing_loses_it_says_by_how_much():
    rows = []
    for block in range(1, 6):
        rows += [make_ended_group(group("a", sequential=True, block=block), 100.6 + 0.4 * (block % 2))]
        rows += [make_ended_group(group("a", "a", block=block), 40.0)]
    ended = summarize_study("test", rows)
    (sentence,) = ended.sentences
    assert sentence.startswith("2 x a: serial is fastest. 2 x a, naive: 0.79 x serial (0.79 to 0.80; 5 blocks)")
    assert ended.fastest == frozenset()  # one after another is no group of its own


@pytest.mark.parametrize(
    ("num_left", "outcome"), [(0, "set up and undone: MPS 1 time; nothing to clean"), (2, "2 steps to clean")]
)
def test_a_rehearsal_ends_with_its_machinery_and_no_speed(capsys, num_left, outcome):
    rows = list(study(1))
    device = dataclasses.replace(rows[0].group.device, name="A100", kind="simulated")
    rehearsed = [
        dataclasses.replace(
            row,
            group=dataclasses.replace(row.group, device=device, listeners=()),
            metrics=row.metrics | {"speedup_vs_serial_ratio": 3.1},
            tags={Tag.FLAG: "a job made 3 steps"},
        )
        for row in rows
    ]
    failed = dataclasses.replace(rehearsed[1], result=Result.OOM, reason="out of memory", metrics={})
    journal = SimpleNamespace(read_steps=lambda: [object()] * num_left)
    summary.show("test-rehearsal", [rehearsed[0], failed, rehearsed[2]], Invocation(words=("run.py",)), None, [journal])
    *table, last = capsys.readouterr().out.splitlines()
    assert [line.split() for line in table] == [
        ["group", "result"],
        ["naive-a", "ok"],
        ["naive-a+a", "oom"],
        ["mps-2x-a", "ok"],
        ["naive-a+a:", "out", "of", "memory"],
    ]
    assert last == f"rehearsal on simulated A100: 2 of 3 groups ran; {outcome}; its speeds mean nothing"


def test_the_command_that_settles_an_open_case_keeps_the_users_words(capsys):
    rows = [dataclasses.replace(row, group=dataclasses.replace(row.group, listeners=())) for row in study(1)]
    words = ("run.py", "-m", "degree=2", "repeats=1", "--", "s.py", "repeats=9")

    def find_command(**changes):
        summary.show("test", rows, Invocation(**{"words": words} | changes))
        return [line for line in capsys.readouterr().out.splitlines() if "to settle what is open" in line]

    (line,) = find_command()
    assert line.startswith("intervals need 3 blocks, verdicts 5; to settle what is open: ")
    assert line.endswith("run.py -m degree=2 repeats=5 resume=true -- s.py repeats=9")
    assert not find_command(words=("run.py", "-m", "degree=2", "repeats=auto"))
    assert not find_command(words_of_launcher=words)
