"""What a report says of frameworks: an answer of several jobs once, and what never ran once for all places."""

from __future__ import annotations

from typing import Any

from pipeline.base.domain.records import Result
from pipeline.report.page.frameworks import format_frameworks, framework_table
from pipeline.report.page.study_tables import make_tables
from pipeline.report.read.study_records import JobRow
from tests.support.report_rows import copies, job, params, row, study


def probe(index: int, framework: str, place: dict[str, str], **said: Any) -> JobRow:
    own = params(f"framework_{framework}", framework=framework, script="workloads/framework.py", work_unit="products")
    answers = {f"job.{key}": value for key, value in said.items()}
    return job(index, own | answers, None, place=place)


ONE = {"framework_version": "2.11.0", "seen": "NVIDIA H100 MIG 1g.10gb, 9728 MiB", "works": "yes"}
INSTANCE = {"device": "MIG-1", "mig_profile": "1g.10gb"}
WHOLE = {"device": "GPU-1"}
BOTH = {"device": "MIG-1,MIG-2", "mig_profile": "2g.20gb+1g.10gb"}
FEWER = {"works": "in part", "why": "it sees 1 of 2 given devices"}


def test_each_answer_is_said_once_with_the_number_of_its_jobs():
    rows = [
        row("mig", (probe(0, "torch", BOTH, **(ONE | FEWER)),), profiles=("2g.20gb+1g.10gb",)),
        row("mig", tuple(probe(i, "torch", INSTANCE, **ONE) for i in range(2)), profiles=("1g.10gb", "1g.10gb")),
        row("naive", (probe(0, "torch", WHOLE, **(ONE | {"seen": "NVIDIA H100"})),)),
        row("naive", (probe(0, "jax", {}),), result=Result.SKIPPED),
        row("mig", tuple(probe(i, "jax", {}) for i in range(2)), result=Result.SKIPPED),
        row("naive", (probe(0, "paddle", WHOLE),), result=Result.FAILED),  # it crashed before it could answer
    ]
    table = framework_table(study(*rows))
    assert [line[0:1] + line[2:] for line in table.rows] == [
        ("PyTorch", "the whole device", 1, 1, "NVIDIA H100", "yes", None),
        ("PyTorch", "MIG 1g.10gb", 2, 1, ONE["seen"], "yes", None),
        ("PyTorch", "MIG 2g.20gb + 1g.10gb at once", 1, 2, ONE["seen"], "in part", FEWER["why"]),
        ("JAX", None, 3, None, None, "not installed", "why it is skipped"),
        ("PaddlePaddle", "the whole device", 1, 1, None, "no", "why it is failed"),
    ]
    assert "Driver here: 580.159.04." in table.note
    lines = format_frameworks(study(*rows))
    assert len(lines) == 1 + 5 + 2
    assert lines[0].split() == ["framework", "version", "where", "given", "sees", "works"]
    assert lines[-2:] == [
        f"PyTorch, MIG 2g.20gb + 1g.10gb at once: {FEWER['why']}",
        "PaddlePaddle, the whole device: why it is failed",
    ]
    assert "frameworks" in [each.name for each in make_tables(study(*rows), [], [], [], [])]


def test_answers_of_groups_that_a_resumed_study_found_measured_are_not_no():
    lines = format_frameworks(
        study(row("naive", (probe(0, "torch", WHOLE),)), row("mps", (probe(0, "jax", WHOLE, **ONE),)))
    )
    assert [line.split()[0] for line in lines] == ["framework", "JAX"]


def test_a_study_of_other_programs_has_no_such_table():
    rows = study(copies("naive", 2, 100.0))
    assert format_frameworks(rows) == []
    assert framework_table(rows).rows == ()
