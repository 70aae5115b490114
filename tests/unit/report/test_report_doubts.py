"""What a report says of the host and of baselines that cannot be used."""

from __future__ import annotations

import pytest

from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.wording import describe_host_bound, list_doubts
from pipeline.report.page.page import make_content, render
from pipeline.report.read.study_records import Study
from tests.support.report_rows import copies, params, study, table_of

STOOD_STILL = "job 0-resnet26 made no step in the last 3 s of the window (a step takes 10 ms)"


def test_blocks_without_marks_raise_no_doubt() -> None:
    plain = study(copies("serial", 1, 1000.0))
    assert list_doubts(plain, ()) == []
    assert table_of("blocks", plain).rows[0][-2:] == (1, 0)
    assert not table_of("host", plain).rows


def test_the_host_loop_of_older_studies_is_read_and_ignored() -> None:
    rows = [copies("naive", 2, 9.0, block, metrics={"host_loop_ms": float(10**block)}) for block in (1, 2, 3)]
    seen = study(*rows)
    assert list_doubts(seen, make_cells(seen)) == []
    assert "loop" not in render(make_content(seen))


@pytest.mark.parametrize(
    ("degree", "gains", "words"),
    [
        (2, (2.4, 2.5, 2.45), "speed-up of 2.45 (2.33 to 2.58) exceeds the number of jobs"),
        (2, (1.7, 2.6, 2.9), ""),  # the interval reaches below: one block alone may be noise
        (2, (2.6,), ""),
        (2, (36.0,), "speed-up of 36.00 exceeds the number of jobs"),
        (
            1,
            (1.3, 1.32, 1.28),
            "one naive job repeats the serial run, but ran 1.30 times (1.25 to 1.35) as fast",
        ),
        (
            1,
            (0.7, 0.72, 0.71),
            "one naive job repeats the serial run, but ran 0.71 times (0.69 to 0.74) as fast",
        ),
        (1, (1.07, 1.06, 1.08), ""),
        (1, (1.9, 1.0, 0.8), ""),
    ],
)
def test_a_gain_that_cannot_be_is_judged_by_its_interval(degree, gains, words) -> None:
    rows = [copies("serial", 1, 100.0, block) for block, _ in enumerate(gains, 1)]
    rows += [copies("naive", degree, 100.0 * gain / degree, block) for block, gain in enumerate(gains, 1)]
    seen = study(*rows)
    notes = list_doubts(seen, make_cells(seen))
    assert [note for note in notes if words in note] if words else not notes
    (cell,) = (cell for cell in make_cells(seen) if cell.mode == "naive")
    assert bool(cell.marks) == bool(words)
    assert cell.is_ranked, "a note excludes nothing"


def test_what_is_flagged_is_said_once_with_its_groups_and_marked_in_the_tables() -> None:
    overlaps = {("naive", 2): (0.91, 0.9), ("mps", 2): (0.91, None), ("naive", 3): (None, None)}
    rows = [
        copies(mode, degree, 9.0, block, note=f"overlap {overlap:.3f} is below 0.95" if overlap else "")
        for (mode, degree), of_blocks in overlaps.items()
        for block, overlap in enumerate(of_blocks, 1)
    ]
    name = "2x-resnet26_cifar10"
    (said,) = list_doubts(study(*rows), ())
    assert said == f"naive-{name} and mps-{name} (1 of 2 blocks): for example overlap 0.910 is below 0.95."
    content = make_content(study(*rows))
    (speed,) = (table for table in content.tables if table.name == "speed")
    assert [row[1:4] for row in speed.rows] == [(2, "naive", "ok*"), (2, "MPS", "ok*"), (3, "naive", "ok")]
    assert said in render(content) and "*: doubtful" in speed.note


def test_groups_that_are_bound_by_their_host_are_named() -> None:
    figures = {"process_cpu_mean_pct": 97.0, "run_queue_delay_pct": 0.0}
    rows = [
        copies(scenario, degree, 1000.0, block, metrics=figures | {"host_bound_ratio": share})
        for block in (1, 2, 3)
        for scenario, degree, share in (("serial", 1, 1.0), ("naive", 2, 1.0), ("mps", 2, 0.5), ("mps", 7, 0.0))
    ]
    cells = make_cells(study(*rows))
    label = cells[0].case.label
    assert describe_host_bound(cells).endswith(f"of the time): one {label} (serial) and 2 {label} (naive, MPS).")
    table = table_of("host", cells)
    assert describe_host_bound(cells) in table.note
    assert dict(zip(table.columns, table.rows[0], strict=True))["waiting for a CPU (% of one core)"] == "0"
    assert describe_host_bound([cell for cell in cells if cell.degree == 7 and not cell.is_derived]).endswith(
        ": no group."
    )


def test_without_gpu_activity_nothing_is_said_of_what_binds_a_group() -> None:
    cells = make_cells(study(copies("naive", 2, 1000.0, metrics={"process_cpu_mean_pct": 99.0})))
    assert describe_host_bound(cells) == ""


def test_nothing_is_compared_with_a_baseline_that_stood_still() -> None:
    rows = [
        copies(scenario, degree, 1000.0, block, invalid=STOOD_STILL if (scenario, block) == ("serial", 2) else "")
        for block in (1, 2, 3)
        for scenario, degree in (("serial", 1), ("naive", 2))
    ]
    seen = study(*rows)
    (pair,) = (cell for cell in make_cells(seen) if cell.degree == 2 and not cell.is_derived)
    assert pair.values["speedup_vs_serial_ratio"] == {1: pytest.approx(2.0), 3: pytest.approx(2.0)}
    (said,) = list_doubts(seen, make_cells(seen))
    name = "serial-1x-resnet26_cifar10 (1 of 3 blocks)"
    assert said == f"{name}: {STOOD_STILL}; invalid, so not compared."
    assert table_of("drift", seen).rows[0][2] == 2, "blocks with a baseline"
    assert "invalid, so not compared" in render(make_content(seen))


def test_environments_that_a_resume_let_stand_beside_each_other_are_named() -> None:
    def resumed(*digests: str, **facts: str) -> Study:
        own = [params(environment_digest=digest) for digest in digests]
        return study(*(copies("naive", n, 1000.0, own=each, facts=facts) for n, each in enumerate(own, 1)))

    (said,) = list_doubts(resumed("old", "new", accepts_environment="true"), ())
    assert said.startswith("The study compares rows of 2 environments, because it was resumed with resume=accept_")
    assert (
        list_doubts(resumed("same", "same", accepts_environment="true"), ())
        == list_doubts(resumed("old", "new"), ())
        == []
    )


def test_a_note_on_gains_is_said_once_with_all_jobs_that_have_it() -> None:
    rows = [copies("serial", 1, 10.0, own=params(f"work{number}")) for number in range(6)]
    rows += [copies("mps", 2, 20.0 + number, own=params(f"work{number}")) for number in range(6)]
    found = study(*rows)
    (note,) = [line for line in list_doubts(found, make_cells(found)) if "exceeds the number of jobs" in line]
    assert note.startswith(
        "2 work0 bs128 (MPS), 2 work1 bs128 (MPS), 2 work2 bs128 (MPS), 2 work3 bs128 (MPS) and 2 more: "
    )
    assert note.count("the baseline was slow,") == 1 and "for example speed-up of 4.00 exceeds" in note
