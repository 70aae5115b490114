"""Names of programs, modes and mixes in a report."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import mode_of
from pipeline.report.read import labels
from pipeline.report.read.study_records import Row
from tests.support.report_rows import copies, job, params, row, study
from tests.unit.report.test_report_rows import settings


def test_scripts_are_told_apart_by_their_flags_and_groups_of_several_studies_by_their_names() -> None:
    programs = [{"workload": "train", "script": "train.py", **flags} for flags in (
        {"flags.bs": "20"}, {"args": "--bs 30 --amp"}, {"args": "--bs 30"},
    )]  # fmt: skip
    rows = [copies("naive", 2, 5.0, job_params=job_params, facts={"plan": str(job_params)}) for job_params in programs]
    read_rows = study(*rows).rows
    assert {r.jobs[0].label for r in read_rows} == {"train --bs 20", "train --amp --bs 30", "train --bs 30"}
    assert {r.name for r in read_rows} == {
        f"naive-2x-train-{arguments}" for arguments in ("bs=20", "bs=30-amp", "bs=30")
    }
    assert labels.label_workload("train", programs[0], "") == "train"


def test_a_label_says_only_what_differs_within_the_study() -> None:
    def list_labels(*changes: dict[str, str]) -> list[str]:
        return [
            r.jobs[0].label
            for r in study(
                *(copies("serial", 1, 9.0, job_params=params(**changed_params)) for changed_params in changes)
            ).rows
        ]

    assert list_labels({"precision": "bf16", "source": "disk"}) == ["resnet26_cifar10 bs128"]
    assert sorted(
        list_labels({"step_mode": "cuda_graph", "source": "disk", "precision": "default"}, {"precision": "fp32"})
    ) == [
        "resnet26_cifar10 bs128 (default precision, CUDA graph, data from disk)",
        "resnet26_cifar10 bs128 (strict fp32, data on the GPU)",
    ]


def test_programs_that_share_a_label_are_told_apart() -> None:
    rows = [copies("serial", 1, 5.0, job_params=params(learning_rate=rate)) for rate in (0.1, 0.05)]
    rows += [row("serial", (job(0, params("other"), 5.0, salt=salt),)) for salt in ("a", "b")]
    names = sorted(r.jobs[0].label for r in study(*rows).rows)
    assert [name for name in names if "resnet26" in name] == [
        f"resnet26_cifar10 bs128 learning_rate={rate}" for rate in ("0.05", "0.1")
    ]
    assert len(set(names)) == 4


@pytest.mark.parametrize(
    ("programs", "names"),
    [
        ([{"flags.bs": "20", "run_in": "caller"}, {"run_in": "job_folder"}], {"train", "train --bs 20"}),
        (
            [{"run_in": "caller", "work_unit": "steps"}, {"run_in": "job_folder", "work_unit": "samples"}],
            {"train in steps", "train in samples"},
        ),
        ([{"run_in": "caller"}, {"run_in": "job_folder"}], {"train run_in=caller", "train run_in=job_folder"}),
    ],
)
def test_folder_and_work_unit_are_in_labels_only_if_nothing_else_tells_programs_apart(programs, names) -> None:
    rows = [copies("naive", 2, 5.0, job_params={"workload": "train", **program}) for program in programs]
    read_rows = study(*rows).rows
    assert {row.jobs[0].label for row in read_rows} == names
    group_names = {row.name for row in read_rows}
    assert len(group_names) == 2 and any("run_in" in name for name in group_names) == any("run_in" in n for n in names)


def test_a_program_in_two_windows_has_one_name() -> None:
    """Its number of epochs goes with the window, which rows say of themselves."""
    rows = [
        row("naive", (job(0, params(epochs=epochs), 5.0, salt=epochs),), settings=settings(f"{epochs} epochs"))
        for epochs in ("0", "5")
    ]
    read_rows = study(*rows).rows
    assert len({r.key for r in read_rows}) == 2
    assert [[job.label for job in r.jobs] for r in read_rows] == [["resnet26_cifar10 bs128"]] * len(read_rows)


def test_a_group_that_never_got_its_place_is_called_as_in_the_other_blocks() -> None:
    placed = copies("mig", 3, 5.0, 1)
    failed = copies("mig", 3, 5.0, 2, result=Result.FAILED)
    bare = tuple(dataclasses.replace(one, place={}) for one in failed.jobs)
    assert [r.mode for r in study(placed, dataclasses.replace(failed, jobs=bare)).rows] == ["MIG 2g.20gb"] * 2


def parts(*profiles: str) -> list[dict[str, str]]:
    """The places of jobs on the compute instances of one GPU instance."""
    return [{"mig_profile": profile, "gi_id": "1", "ci_id": str(number)} for number, profile in enumerate(profiles)]


@pytest.mark.parametrize(
    ("scenario", "options", "places", "label"),
    [
        ("serial", {}, [{}], "serial"),
        ("mps", {}, [{}, {}], "MPS"),
        ("mps", {"pinned_mem_limit": "10G"}, [{}], "MPS pinned_mem_limit=10G"),
        ("mps_percent", {}, [{"mps_active_thread_percentage": "25"}] * 2, "MPS 25 %"),
        ("mps_percent", {}, [{"mps_active_thread_percentage": p} for p in ("25", "50")], "MPS 25+50 %"),
        ("mps_percent", {"active_thread_pct": [25, 50]}, [], "MPS 25+50 %"),
        ("mps_percent", {}, [], "MPS equal shares"),
        ("mps_static", {"chunks": 7}, [{"mps_chunks": "7", "mps_multiprocessors": "56"}] * 2, "MPS static 56 SM"),
        ("mps_static", {}, [{"mps_multiprocessors": m} for m in ("80", "52")], "MPS static 80+52 SM"),
        ("mps_static", {"chunks": [10, 5]}, [], "MPS static 10+5 chunks"),
        ("mps_static", {"priority": 1}, [], "MPS static equal parts priority=1"),
        ("timeslice", {"timeslice": "long"}, [{}, {}], "time slice long"),
        ("mig", {"profile": "auto"}, [{"mig_profile": "2g.10gb"}] * 3, "MIG 2g.10gb"),
        ("mig", {}, [{"mig_profile": p} for p in ("1g.5gb", "3g.20gb", "2g.10gb")], "MIG 3g+2g+1g"),
        ("mig", {}, [{"mig_profile": p} for p in ("1g.10gb", "1g.20gb")], "MIG 1g.20gb+1g.10gb"),
        ("mig", {"profile": "3g"}, [], "MIG 3g"),
        ("mig", {}, parts("1c.3g.20gb", "2c.3g.20gb"), "MIG 3g.20gb(2c+1c)"),
        ("mig", {}, [*parts("1c.3g.20gb", "2c.3g.20gb"), {"mig_profile": "2g.10gb", "gi_id": "7"}], "MIG 3g(2c+1c)+2g"),
        ("mig", {}, [{"mig_profile": "2c.3g.20gb", "gi_id": g, "ci_id": "0"} for g in "12"], "MIG 3g.20gb(2c)"),
        ("mig_mps", {}, parts("1c.3g.20gb", "2c.3g.20gb") * 2, "MIG+MPS 1x3g.20gb(2c+1c)"),
        ("mig", {"profile": "auto", "size_profile": [["S", "1g"]]}, [], "MIG"),
        ("mig_mps", {}, [{"mig_profile": "3g.40gb", "gi_id": g} for g in ("1", "2", "1")], "MIG+MPS 2x3g.40gb"),
    ],
)
def test_modes_are_called_as_in_a_paper(scenario, options, places, label) -> None:
    mode = mode_of(scenario)
    assert f"{mode.word} {labels.describe_mode(mode, options, places)}".strip() == label


def test_mixes_are_called_by_their_sizes_whatever_their_order() -> None:
    params_of = {"S": params(), "M": params("resnet50_imagenet64"), "L": params("resnet152_imagenet")}
    for sizes, label in (("SMS", "M+2S"), ("LMSS", "L+M+2S"), ("MM", "resnet50")):
        jobs = tuple(job(i, params_of[size], 5.0, size=size) for i, size in enumerate(sizes))
        (mixed,) = study(row("naive", jobs)).rows
        assert labels.label_jobs(labels.sort_jobs(mixed.called)).startswith(label)
        assert mixed.is_mix == (sizes != "MM")


def test_words_that_all_jobs_of_a_mix_share_stand_behind_their_sizes() -> None:
    def mix(*precisions: str) -> Row:
        programs = [params(name, precision=precision) for name, precision in zip(("a", "b"), precisions, strict=True)]
        return row(
            "naive", tuple(job(i, of, 5.0, size=size) for i, (of, size) in enumerate(zip(programs, "MS", strict=True)))
        )

    rows = study(mix("bf16", "bf16"), mix("bf16", "fp32")).rows
    assert sorted(labels.label_jobs(mixed.called) for mixed in rows) == ["M+S", "M+S (bf16)"]
