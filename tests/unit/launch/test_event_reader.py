"""Events of jobs: the lines that count, and the figures of rows that come from them."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.domain.window import WindowKind
from pipeline.launch import event_reader, events, job_steps
from pipeline.launch.job_state import Lifetime
from pipeline.observe.group_result import GroupResult
from tests.support.rows import S, group, judge, state, steps

Lines = list[dict[str, Any]]
END_S = 11.0
"""When the job is told to stop; it is gone a second later."""


def make_honest_lines(num_epochs: int = 5, steps_each: int = 20, validation_s: float = 0.1) -> Lines:
    """A job of `num_epochs` epochs of 2 s with 0.1 s and 8 samples a step: 80 samples/s in the time of its epochs."""
    lines: Lines = [
        {"event": "phase", "name": "setup", "t_ns": S // 2},
        {"event": "param", "params": {"lr": "0.1"}, "t_ns": S // 2},
        {"event": "metric", "name": "canary_s", "step": 0, "value": 2.5, "t_ns": S // 2 + 10**7},
        {"event": "started", "t_ns": S},
    ]
    t_s, total = 1.0, 0
    for epoch in range(1, num_epochs + 1):
        for _ in range(steps_each):
            t_s, total = t_s + 0.1, total + 8
            lines.append({"event": "step", "t_ns": round(t_s * S), "samples": 8, "total": total, "epoch": epoch})
        t_s += validation_s
        figures = {"loss": 1 / epoch, "validation_s": validation_s}
        seconds = 0.1 * steps_each
        lines.append({"event": "epoch", "epoch": epoch, "seconds": seconds, "metrics": figures, "t_ns": round(t_s * S)})
    last = {
        "event": "metric",
        "name": "memory_allocated_peak_mib",
        "step": 0,
        "value": 2.5,
        "t_ns": round(t_s * S) + 10**7,
    }
    return [*lines, last]


def judge_lines(folder, lines: Lines, kind=WindowKind.WORK) -> GroupResult:
    alone = group("a", kind=kind)
    job = state(folder, alone.jobs[0], lines, told_ns=int(END_S * S), at_ns=int((END_S + 1) * S))
    job.released_ns = S
    return judge(alone, job)


def figures(row: GroupResult) -> dict[str, float]:
    values = dict(row.jobs[0].metrics)
    names = ("throughput_samples_per_s", "step_time_p50_ms", "step_time_p99_ms", "epoch_time_mean_s", "makespan_s")
    return {name: values[name] for name in names if name in values}


def find_index(lines: Lines, kind: str, number: int) -> int:
    """Index of a line of a kind."""
    return [index for index, line in enumerate(lines) if line["event"] == kind][number]


def change_line(kind: str, number: int, **values: Any) -> Callable[[Lines], Lines]:
    def change(lines: Lines) -> Lines:
        index = find_index(lines, kind, number)
        return [*lines[:index], lines[index] | values, *lines[index + 1 :]]

    return change


def shift_line(kind: str, number: int, seconds: float) -> Callable[[Lines], Lines]:
    def change(lines: Lines) -> Lines:
        index = find_index(lines, kind, number)
        return change_line(kind, number, t_ns=int(lines[index]["t_ns"] + seconds * S))(lines)

    return change


def repeat_lines(*kinds: str) -> Callable[[Lines], Lines]:
    return lambda lines: [line for line in lines for _ in range(1 + (line["event"] in kinds))]


def add_line(after: tuple[str, int], line: dict[str, Any]) -> Callable[[Lines], Lines]:
    def change(lines: Lines) -> Lines:
        index = find_index(lines, *after) + 1
        return [*lines[:index], line, *lines[index:]]

    return change


def move_line(kind: str, number: int, to: int) -> Callable[[Lines], Lines]:
    def change(lines: Lines) -> Lines:
        index = find_index(lines, kind, number)
        rest = [*lines[:index], *lines[index + 1 :]]
        return [*rest[:to], lines[index], *rest[to:]]

    return change


def add_second_writer(lines: Lines) -> Lines:
    """A second process of the job does the same, 30 ms later, into the same file."""
    second_writer = [line | {"t_ns": line["t_ns"] + 30_000_000} for line in lines if line["event"] in ("step", "epoch")]
    return sorted([*lines, *second_writer], key=lambda line: line["t_ns"])


WRONG = {
    "each step twice": repeat_lines("step"),
    "each epoch twice": repeat_lines("epoch"),
    "every line twice": repeat_lines("step", "epoch", "metric", "started", "phase"),
    "two writers": add_second_writer,
    "a negative validation": change_line("epoch", 2, metrics={"validation_s": -100}),
    "a validation that is no number": change_line("epoch", 2, metrics={"validation_s": float("nan")}),
    "an endless validation": change_line("epoch", 2, metrics={"validation_s": 1e300}),
    "an impossible total": change_line("step", 40, total=10**15),
    "an impossible total at first": change_line("step", 0, total=10**15),
    "an impossible total at last": change_line("step", 99, total=10**15),
    "a total that is one step ahead": change_line("step", 99, total=808),
    "a total with a digit too many": change_line("step", 50, total=4080),
    "a total of zero": change_line("step", 50, total=0),
    "an impossible step of its own": lambda lines: [
        line
        | {"total": line["total"] + (10**12 if number > 60 else 0)}
        | ({"samples": 10**12 + 8} if number == 61 else {})
        if line["event"] == "step"
        else line
        for number, line in enumerate(lines)
    ],
    "a total that jumps for good": lambda lines: [
        line | {"total": line["total"] + (10_000 if number > 60 else 0)} if line["event"] == "step" else line
        for number, line in enumerate(lines)
    ],
    "a step 1000 s ahead": shift_line("step", 99, 1000),
    "a step 1 s ahead": shift_line("step", 50, 1.0),
    "the last step 1 s ahead": shift_line("step", 99, 1.0),
    "a step 1000 s ago": shift_line("step", 50, -1000),
    "a step before the start": shift_line("step", 50, -5.5),
    "an epoch 1000 s ahead": shift_line("epoch", 4, 1000),
    "an epoch after the end of the process": shift_line("epoch", 4, 2.5),
    "an epoch before the start": shift_line("epoch", 0, -5),
    "the start 1000 s ago": shift_line("started", 0, -1000),
    "the start before the release": shift_line("started", 0, -0.5),
    "a start 1000 s ahead": shift_line("started", 0, 1000),
    "a second start": add_line(("step", 50), {"event": "started", "t_ns": 6 * S}),
    "an epoch longer than there was time": change_line("epoch", 2, seconds=8.0),
    "an epoch somewhat longer": change_line("epoch", 2, seconds=2.7),
    "an endless epoch": change_line("epoch", 2, seconds=float("inf")),
    "an epoch that is no number": change_line("epoch", 2, seconds=float("nan")),
    "a negative epoch": change_line("epoch", 2, seconds=-2.0),
    "a huge whole number": change_line("epoch", 2, seconds=10**400),
    "the epochs out of order": move_line("epoch", 1, to=100),
    "an epoch of another number": change_line("epoch", 3, epoch=1),
    "steps out of order": move_line("step", 30, to=80),
    "an early step late": move_line("step", 0, to=100),
    "a step without an instant": change_line("step", 30, t_ns=None),
    "steps after the end": add_line(
        ("metric", 1), {"event": "step", "t_ns": 40 * S, "samples": 8, "total": 808, "epoch": 6}
    ),
}


@pytest.mark.parametrize("kind", [WindowKind.WORK, WindowKind.STEADY], ids=["work", "steady"])
@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_line_moves_no_figure_without_a_mark(tmp_path, fault, kind):
    truth = figures(judge_lines(tmp_path / "right", make_honest_lines(), kind))
    row = judge_lines(tmp_path / "wrong", WRONG[fault](make_honest_lines()), kind)
    assert "left out impossible values" in row.tags["collocation.flag"], "every fault has a mark"
    assert len(row.tags["collocation.flag"]) < 600
    read = figures(row)
    if "start" in fault and "second" not in fault and "before the start" not in fault:
        assert not read, "without a start there is nothing to measure from"
    for name, value in read.items():
        assert value == pytest.approx(truth[name], rel=0.02), name


HONEST = {
    "a job": lambda lines: lines,
    "totals that are no whole numbers": lambda lines: [
        line | {"samples": 0.1, "total": 0.1 * line["total"] / 8} if line["event"] == "step" else line for line in lines
    ],
    "large totals": lambda lines: [
        line | {"samples": 8e15, "total": line["total"] * 1e15} if line["event"] == "step" else line for line in lines
    ],
    "steps without an epoch": lambda lines: [
        line | {"epoch": None} if line["event"] == "step" else line for line in lines
    ],
    "lines that do not say how large a step was": lambda lines: [
        {key: value for key, value in line.items() if key != "samples"} for line in lines
    ],
    "a loss that is no number": change_line("epoch", 2, metrics={"loss": float("nan"), "validation_s": 0.1}),
    "a step of no work": add_line(
        ("step", 50), {"event": "step", "t_ns": 6_350_000_000, "samples": 0, "total": 408, "epoch": 3}
    ),
    "epochs that are told at the end": lambda lines: [
        line | {"t_ns": int(11.5 * S)} if line["event"] == "epoch" else line
        for line in [
            *(line for line in lines if line["event"] != "epoch"),
            *(line for line in lines if line["event"] == "epoch"),
        ]
    ],
    "a job that goes on from an earlier run": lambda lines: [
        line | {"total": line["total"] + 5000} if line["event"] == "step" else line for line in lines
    ],
    "two steps that are told at once": lambda lines: [
        line | {"t_ns": line["t_ns"] + (line["total"] // 8 % 2) * S // 10} if line["event"] == "step" else line
        for line in lines
    ],
    "a metric at one step twice": add_line(
        ("step", 50), {"event": "metric", "name": "loss", "step": 1, "value": 1.0, "t_ns": 6 * S}
    ),
    "a last batch that is small": lambda lines: [
        line | {"samples": 1, "total": 793} if line.get("total") == 800 else line for line in lines
    ],
}


@pytest.mark.parametrize("case", HONEST)
def test_an_honest_job_has_no_mark(tmp_path, case):
    row = judge_lines(tmp_path, HONEST[case](make_honest_lines()))
    assert "collocation.damaged_events" not in row.tags and row.result is Result.OK
    scale = {"totals that are no whole numbers": 0.1 / 8, "large totals": 1e15}.get(case, 1)
    assert row.jobs[0].metrics["throughput_samples_per_s"] == pytest.approx(80 * scale, rel=0.02)
    assert row.jobs[0].metrics["epoch_time_mean_s"] == pytest.approx(2.1)
    assert row.jobs[0].metrics["step_time_p50_ms"] > 90


def test_what_comes_after_the_job_said_that_it_is_done_is_not_its_work(tmp_path):
    alone = group("a", kind=WindowKind.WORK)
    job = state(tmp_path, alone.jobs[0], make_honest_lines())
    job.said.bye_ns = int(11.6 * S)
    late = {"event": "step", "t_ns": 20 * S, "samples": 8, "total": 808, "epoch": 5}
    with (job.folder / "events.jsonl").open("a") as file:
        file.write(json.dumps(late) + "\n")
    row = judge(alone, job)
    assert row.metrics["makespan_s"] == pytest.approx(10.5)
    assert "outside the life of the job" in row.tags["collocation.flag"]


def test_the_reasons_are_counted_and_bounded(tmp_path):
    lines = repeat_lines("step", "epoch", "metric", "started", "phase")(make_honest_lines())
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + "x" * 3_000_000 + "\nnothing\n[]\n")
    damages = event_reader.read(path, Lifetime(released_ns=S)).damages
    assert damages.reasons["a step counts work that was already counted"] == 100
    assert damages.reasons["not an event"] == 3, "a line of three megabytes is one"
    assert damages.describe().endswith(", and 2 more") and len(damages.describe()) < 250


def write_steps(path, num: int, *, line=lambda number, text: text) -> None:
    """Steps as `workloads/client.py` writes them, each of 8 samples and 1 us."""
    with path.open("w") as file:
        file.write(json.dumps({"event": "started", "t_ns": 0}) + "\n")
        for number in range(1, num + 1):
            text = f'"t_ns":{number * 1000},"samples":8,"total":{number * 8},"epoch":{number // 700 or "null"}'
            file.write(line(number, f'{{"event":"step",{text}}}\n'))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fault", ["none", "garbled", "twice", "reordered", "total", "float", "spaces", "other"])
def test_many_lines_are_read_as_one_by_one(tmp_path, fault, monkeypatch):
    chance = random.Random(fault)
    hit = set(chance.sample(range(100, 30_000), 20))

    def line(number: int, text: str) -> str:
        if number not in hit or fault == "none":
            return text
        return {
            "garbled": text[:30] + "\x00" + text[30:],
            "twice": text * 2,
            "reordered": text.replace(f'"t_ns":{number * 1000}', f'"t_ns":{number * 1000 + 5500}'),
            "total": text.replace(f'"total":{number * 8}', f'"total":{number * 800}'),
            "spaces": text.replace(":", ": ").replace(",", ", "),
            "float": text.replace('"samples":8,', '"samples":8.0,'),
            "other": f'{text}{{"event":"epoch","epoch":{number},"t_ns":{number * 1000},"seconds":0,"metrics":{{}}}}\n',
        }[fault]

    write_steps(path := tmp_path / "events.jsonl", 30_000, line=line)
    assert path.stat().st_size > event_reader._LARGE_BYTES
    at_once = event_reader.read(path)
    monkeypatch.setattr(event_reader, "_LARGE_BYTES", 2**63)
    one_by_one = event_reader.read(path)
    assert at_once.steps == one_by_one.steps
    assert at_once.damages == one_by_one.damages
    assert len(at_once.steps) > 29_900 and at_once.steps.total[-1] == 240_000
    assert bool(at_once.damages) == (fault not in ("none", "float", "spaces", "other"))
    assert [epoch.number for epoch in at_once.epochs] == (sorted(hit) if fault == "other" else [])


@pytest.mark.parametrize("is_large", [True, False])
def test_of_more_steps_than_are_kept_the_rate_stays_and_step_times_go(tmp_path, monkeypatch, is_large):
    alone = group("a", kind=WindowKind.WORK)
    job = state(tmp_path, alone.jobs[0], [])
    write_steps(job.folder / "events.jsonl", 30_001)
    monkeypatch.setattr(job_steps, "MOST_STEPS", 1000)
    if not is_large:
        monkeypatch.setattr(event_reader, "_LARGE_BYTES", 2**63)
    row = judge(alone, job)
    assert row.jobs[0].metrics["throughput_samples_per_s"] == pytest.approx(8e6)
    assert row.jobs[0].metrics["num_samples"] == 30_001 * 8
    assert "step_time_p50_ms" not in row.jobs[0].metrics
    assert "reported more than 1000 steps" in row.tags["collocation.flag"]


ODD = [
    b"",
    b"no JSON",
    b"[]",
    b"null",
    b"3",
    b"\xff\xfe",
    b'{"event": []}',
    b'{"event": "step"}',
    b'{"event": "step", "t_ns": 5000000000, "samples": 1, "epoch": null}',
    b'{"event": "step", "t_ns": "5", "total": 5, "epoch": null}',
    b'{"event": "step", "t_ns": 6000000000, "total": -5, "epoch": null}',
    b'{"event": "step", "t_ns": 6000000000, "total": 1e400, "epoch": null}',
    b'{"event": "step", "t_ns": 6000000000, "total": true, "epoch": null}',
    b'{"event": "step", "t_ns": 60000000000000000000000, "total": 7, "epoch": null}',
    b'{"event": "step", "t_ns": 1, "total": 99, "epoch": null}',
    b'{"event": "step", "t_ns": 6000000000, "total": 9, "epoch": {}}',
    b'{"event": "epoch", "epoch": 1, "t_ns": 1, "seconds": -1, "metrics": {}}',
    b'{"event": "epoch", "epoch": 1, "t_ns": 1, "seconds": NaN, "metrics": {}}',
    b'{"event": "epoch", "epoch": 1, "t_ns": 1, "seconds": 1, "metrics": []}',
    b'{"event": "metric", "name": "x", "step": 1e9, "t_ns": 1, "value": 1}',
    b'{"event": "metric", "name": "x", "step": 1, "t_ns": 1, "value": "many"}',
    b'{"event": "param", "params": 3}',
    b'{"event": "error"',
    b'{"event": "phase", "name": "train", "t_ns": null}',
    b'{"event": "process", "pid": -1}',
    b'{"event": "started", "t_ns": -5}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("line", ODD, ids=lambda line: line[:60])
def test_a_line_that_cannot_be_changes_no_figure_and_is_counted(tmp_path, line):
    alone = group("a")
    job = state(tmp_path, alone.jobs[0], steps(0, 11, 0.5, 10), told_ns=11 * S)
    path = job.folder / "events.jsonl"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:12], line, *lines[12:]]) + b"\n")
    row = judge(alone, job)
    assert row.result is Result.OK
    assert row.jobs[0].metrics["throughput_samples_per_s"] == pytest.approx(20)
    assert row.tags["collocation.damaged_events"].startswith("job 0-a: 1 line (number 13): ")
    assert row.tags["collocation.flag"] == f"left out impossible values: {row.tags['collocation.damaged_events']}"
    events.read_progress(path)


def test_any_mixture_of_bytes_and_half_events_is_read(tmp_path):
    chance = random.Random(7)
    good_lines = [json.dumps(event).encode() for event in steps(0, 3, 0.5, 10)]
    for number in range(300):
        lines = [bytearray(chance.choice([*good_lines, *ODD[:-1]])) for _ in range(8)]
        for line in lines:
            for _ in range(chance.randrange(3)):
                if line:
                    line[chance.randrange(len(line))] = chance.randrange(256)
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(b"\n".join(lines))
        steps_read = event_reader.read(path).steps
        assert list(steps_read.t_ns) == sorted(steps_read.t_ns)
        assert list(steps_read.total) == sorted(steps_read.total)
        events.read_progress(path)


@pytest.mark.parametrize("kind", [WindowKind.STEADY, WindowKind.WORK])
def test_a_file_that_is_damaged_anywhere_gives_a_row_that_is_right_or_says_why_not(tmp_path, kind):
    chance = random.Random(11)
    good = "".join(json.dumps(event) + "\n" for event in make_honest_lines()).encode()
    for number in range(60):
        place, length = chance.randrange(len(good)), chance.choice([1, 1, 40, len(good)])
        noise = bytes(chance.randrange(256) for _ in range(chance.choice([0, 1, 40])))
        alone = group("a", kind=kind)
        job = state(tmp_path / str(number), alone.jobs[0], [], told_ns=int(END_S * S), at_ns=int((END_S + 1) * S))
        job.released_ns = S
        (job.folder / "events.jsonl").write_bytes(good[:place] + noise + good[place + length :])
        row = judge(alone, job)
        rate = row.jobs[0].metrics.get("throughput_samples_per_s")
        is_right = rate is not None and rate == pytest.approx(80, rel=0.05)
        assert row.result is not Result.OK or is_right or row.marks.text, (number, place, length, noise, rate)
        assert row.result is Result.OK or row.reason


def test_the_torn_last_line_of_a_killed_job_is_nothing_to_speak_of(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event": "started", "t_ns": 5}\n{"event": "st')
    assert (event_reader.read(path).started_ns, len(event_reader.read(path).damages)) == (5, 0)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/etc/passwd"), lambda path: path.mkdir()])
def test_an_event_file_that_is_none_fails_the_job_and_is_not_waited_for(tmp_path, make):
    alone = group("a")
    job = state(tmp_path, alone.jobs[0], [], told_ns=11 * S)
    path = job.folder / "events.jsonl"
    path.unlink()
    make(path)
    row = judge(alone, job)
    assert row.result is Result.FAILED and "EventFileError: events.jsonl cannot be read" in row.reason
