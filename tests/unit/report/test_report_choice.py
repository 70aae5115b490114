"""A report is about real devices or simulated ones, and about the studies and devices that a user chooses."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.page.key_findings import describe_left_out, describe_setup, write_answer
from pipeline.report.read import environments, rows
from pipeline.report.read.selection import Choice
from pipeline.report.read.study_records import Row
from tests.support.report_rows import GPU, copies, params, study

A100 = "NVIDIA A100-SXM4-40GB"
OLD, NEW, REHEARSED = "20261101-090000-aaaaaa", "20261102-090000-bbbbbb", "20261103-090000-cccccc"
DIGESTS = "a" * 64, "b" * 64


def make_rows(start: str, start_ms: int, **changes: Any) -> list[Row]:
    return [
        copies(mode, n, 9.0, start=start, start_ms=start_ms + n, **changes) for mode, n in (("serial", 1), ("mps", 2))
    ]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch):
    """Read an experiment in which a rehearsal came last, and the window was changed before."""
    window = (("device", "simulated " + A100), ("window", "steady, 9 s after 1 s"), ("seed", "0"))
    all_rows = [
        *make_rows(OLD, 1_000, settings=(("device", GPU), ("window", "steady, 5 s after 1 s"), ("seed", "0"))),
        *make_rows(NEW, 2_000, settings=(("device", GPU), ("window", "steady, 9 s after 1 s"), ("seed", "0"))),
        *make_rows(REHEARSED, 3_000, device=A100, is_simulated=True, settings=window),
    ]
    monkeypatch.setattr(rows, "_read_store", lambda store, experiment: iter([*all_rows, None]))
    return lambda **chosen: rows.read([Path("mlruns")], "mixed", choice=Choice(**chosen))


@pytest.mark.parametrize(("number", "rest"), [(6, "4 and 1 older"), (7, "2 older")])
def test_older_studies_are_counted(read, number: int, rest: str) -> None:
    chosen_study = dataclasses.replace(read(), not_shown=[str(index) for index in range(number)])
    assert f"{rest}; --study ID shows one." in " ".join(describe_left_out(chosen_study))


def test_simulated_rows_never_stand_beside_real_ones_nor_push_them_out(read) -> None:
    chosen_study = read()
    assert {(row.start, row.is_simulated) for row in chosen_study.rows} == {(NEW, False)}
    words = " ".join(describe_left_out(chosen_study))
    assert f"2 runs were left out (simulated {A100}; --device 'simulated {A100}' shows them)." in words
    assert f"Studies of this experiment that are not shown: {OLD}; --study ID shows one." in words
    assert "simulated" not in " ".join(write_answer(chosen_study, make_cells(chosen_study), []))


@pytest.mark.parametrize(
    ("chosen", "start"),
    [
        ({"devices": ["a100"]}, REHEARSED),
        ({"devices": [f"simulated {A100}"]}, REHEARSED),
        ({"devices": ["H100"], "studies": [OLD]}, OLD),
        ({"studies": [OLD]}, OLD),
        ({"studies": [REHEARSED]}, REHEARSED),
        ({"studies": [OLD, NEW]}, NEW),
    ],
)
def test_a_study_and_a_device_can_be_chosen(read, chosen, start) -> None:
    chosen_study = read(**chosen)
    assert {row.start for row in chosen_study.rows} == {start}
    assert chosen_study.choice and chosen_study.choice in describe_setup(chosen_study)[0]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"devices": ["V100"]}, f"--device V100: no such device; choose one of: {GPU}, simulated {A100}"),
        (
            {"devices": ["NVIDIA"]},
            f"--device NVIDIA: 2 devices match; choose one of: {GPU}, simulated {A100}",
        ),
        (
            {"devices": ["H100", "A100"]},
            "--device H100 --device A100 mixes real and simulated devices",
        ),
        (
            {"studies": ["x"]},
            f"--study x: no such study; choose one of: {REHEARSED} (2 groups on simulated {A100}, ",
        ),
    ],
)
def test_what_is_not_there_is_refused_with_a_list_of_what_is(read, chosen, message) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        read(**chosen)
    assert "\n" not in str(caught.value)


def test_a_board_has_a_study_of_each_kind(read) -> None:
    kinds = [{row.is_simulated for row in kind_study.rows} for kind_study in rows.read_apart("mlruns", "mixed")]
    assert kinds == [{False}, {True}]


def make_environment_row(digest: str, lock: str, **changes: Any) -> Row:
    group_row = copies("naive", 2, 9.0, job_params=params(environment_digest=digest), **changes)
    return dataclasses.replace(group_row, jobs=tuple(dataclasses.replace(job, run_id=lock) for job in group_row.jobs))


@pytest.mark.parametrize(
    ("locks", "names"),
    [
        (("torch==2.3.0\nzip==1", "torch==2.4.0\nzip==2"), ["with torch==2.3.0", "with torch==2.4.0"]),
        (("numpy==1", "numpy==1\nboto3==1.44.8"), ["without boto3", "with boto3==1.44.8"]),
        (("mine @ file:///a", "mine @ file:///b"), ["environment 1", "environment 2"]),
        (("", "numpy==1"), ["environment 1", "environment 2"]),
    ],
)
def test_environments_are_told_apart_by_a_package_and_never_by_a_digest(monkeypatch, locks, names) -> None:
    monkeypatch.setattr(environments, "_read_lock", lambda store, run_id: run_id)
    report_study = study(*(make_environment_row(DIGESTS[n], lock, start_ms=n) for n, lock in enumerate(locks)))
    assert sorted(row.jobs[0].label for row in report_study.rows) == sorted(
        f"resnet26_cifar10 bs128 {name}" for name in names
    )
    (difference,) = report_study.environments
    assert all(name in difference for name in names)
    assert not any(
        digest in text
        for digest in DIGESTS
        for text in (difference, *(cell.case.label for cell in make_cells(report_study)))
    )


def test_an_environment_goes_without_saying_where_there_is_one_or_an_option_tells_apart() -> None:
    alone = [make_environment_row(DIGESTS[0], "numpy==1")]
    report_study = study(*alone)
    assert (report_study.rows[0].jobs[0].label, report_study.environments) == ("resnet26_cifar10 bs128", ())
    both = [
        copies("naive", 2, 9.0, job_params=params(environment_digest=name, lr=rate), start_ms=n)
        for n, (name, rate) in enumerate((("with a==1", 1), ("with a==2", 2)))
    ]
    assert {row.jobs[0].label for row in study(*both).rows} == {f"resnet26_cifar10 bs128 lr={rate}" for rate in (1, 2)}
