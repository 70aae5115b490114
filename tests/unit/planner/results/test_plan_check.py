"""A plan beside its experiment: what was predicted, what was measured, and what was not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.system.errors import ConfigError
from pipeline.planner import profile_table
from pipeline.planner.commands import results_commands
from pipeline.planner.commands.results_commands import describe_check
from pipeline.planner.deployment import Gpu, Instance, Plan
from pipeline.planner.export.experiment import deal_rates, group_gpus, select_model
from pipeline.planner.profile_table import Profile
from pipeline.planner.results import plan_check
from pipeline.planner.results.plan_check import Check, Compared, build_table, check
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.page.page import make_content, render
from pipeline.report.read.study_records import JobRow, Row
from tests.support.plans import H100, plan_of
from tests.support.report_rows import job, params, row, study
from tests.unit.planner.export.test_export import WHOLE, make_divided_gpu

PLAN = plan_of(make_divided_gpu(), make_divided_gpu(), WHOLE)


def make_runs(plan: Plan, block: int = 1, factor: float = 1.0, **changes: Any) -> list[Row]:
    """What the experiment of a plan measures: every process answers `factor` times 10 requests/s, in 8 ms."""
    group_rows, rates = [], deal_rates(plan)
    for group in group_gpus(plan):
        changes["device"] = group.gpu.model
        jobs = [
            make_answering_job(
                index, size, place, factor, rates.get((group.gpus[0], place)), group.gpu.instances[place].batch
            )
            for index, (size, place) in enumerate(zip(group.sizes, group.instance_of, strict=True))
        ]
        options = {"profiles": [*group.profiles], "instance_of": [*group.instance_of]} if group.profiles else {}
        figures = {"memory_peak_mib": 1500.0, "energy_per_request_j": 0.2 * factor}
        group_rows.append(row(group.scenario, tuple(jobs), block, options=options, metrics=figures, **changes))
    return group_rows


def make_answering_job(
    index: int, size: str, place: int, factor: float, rate_per_s: float | None, batch: int | None
) -> JobRow:
    rate_params = {} if rate_per_s is None else {"given_rate": "true", "rate_per_s": rate_per_s, "arrival": "poisson"}
    service_params = params("infer", work_unit="requests", max_batch=batch or 1, **rate_params)
    figures = {
        "throughput_requests_per_s": 10.0 * factor,
        "latency_mean_ms": 4.0,
        "latency_p99_ms": 8.0 + place,
        "instance_memory_peak_mib": 1000.0,
        "rate_sustained_ratio": 1.0,
    }
    return job(index, service_params, None, metrics=figures, size=size, place={"gi_id": str(place)})


def find_compared(result: Check, service: str, quantity: str) -> Compared:
    (one,) = [
        comparison for comparison in result.compared if (comparison.service, comparison.quantity) == (service, quantity)
    ]
    return one


def test_a_service_is_measured_on_all_gpus_that_a_group_stands_for() -> None:
    rows = [group_row for block in range(1, 6) for group_row in make_runs(PLAN, block, 1 + 0.001 * block)]
    result = check(PLAN, study(*rows), None, "plan.json")
    assert result.holds
    throughput = find_compared(result, "infer_tiny", "throughput_per_s")
    assert throughput.predicted == pytest.approx(60) and throughput.measured is not None
    assert throughput.measured.median == pytest.approx(10.03 * (2 * 4 + 2))  # two divided GPUs, and the whole one
    assert throughput.error_ratio == pytest.approx(100.3 / 60 - 1) and throughput.is_within is None  # a rate
    text = find_compared(result, "infer_tiny_text", "throughput_per_s")
    assert text.measured is not None and text.measured.median == pytest.approx(20.06)
    tail = find_compared(result, "infer_tiny", "latency_p99_ms")
    assert tail.predicted is None and tail.measured is not None and tail.measured.median == 10.0  # the slowest instance
    memory = find_compared(result, "infer_tiny", "memory_mib")
    assert memory.measured is not None
    assert memory.measured.median == 5500.0  # of two instances on two GPUs, and of a GPU


def test_memory_and_energy_are_of_a_service_that_has_them_to_itself() -> None:
    plan = plan_of(WHOLE, WHOLE)
    result = check(plan, study(*make_runs(plan)), None, "plan.json")
    memory, energy = (
        find_compared(result, "infer_tiny", "memory_mib"),
        find_compared(result, "infer_tiny", "energy_per_item_j"),
    )
    assert memory.measured is not None and memory.measured.median == 3000.0
    assert energy.measured is not None and energy.measured.median == 0.2 and energy.predicted is None
    mixed = check(plan_of(make_divided_gpu()), study(*make_runs(plan_of(make_divided_gpu()))), None, "plan.json")
    assert find_compared(mixed, "infer_tiny", "memory_mib").measured is not None
    assert not [comparison for comparison in mixed.compared if comparison.quantity == "energy_per_item_j"]


def test_the_profile_gives_intervals_and_energy_and_must_be_the_one_of_the_plan() -> None:
    rows = (
        profile_table.Row(
            workload="train",
            gpu_model=H100,
            sharing_mode="mps",
            processes=2,
            throughput_per_s=20.0,
            throughput_low_per_s=19.0,
            throughput_high_per_s=21.0,
            energy_per_item_j=0.25,
        ),
    )
    table = Profile(rows=rows, source="p.csv")
    gpu = Gpu(
        model=H100,
        mode="mps",
        instances=(Instance(profile=None, start=None, service="train", processes=2, throughput_per_s=20.0),),
    )
    plan = replace(plan_of(gpu, gpu), services=(), profile_digest=table.digest)
    measured = [group_row for block in range(1, 6) for group_row in make_runs(plan, block, 1 + 0.001 * block)]
    result = check(plan, study(*measured), table, "plan.json")
    throughput, energy = (
        find_compared(result, "train", "throughput_per_s"),
        find_compared(result, "train", "energy_per_item_j"),
    )
    assert (throughput.predicted, throughput.low, throughput.high, throughput.is_within) == (40.0, 38.0, 42.0, True)
    assert (
        energy.predicted == 0.25
        and energy.error_ratio == pytest.approx(0.2006 / 0.25 - 1)
        and energy.is_within is False
    )
    changed = Profile(rows=(replace(rows[0], throughput_per_s=20.5),), source="p.csv")
    with pytest.raises(ConfigError, match=r"plan.json: profile p.csv .* is not the profile of the plan .* plan again"):
        check(plan, study(*measured), changed, "plan.json")


def test_what_was_not_measured_or_not_kept_is_said_and_nothing_is_scaled_up() -> None:
    rows = make_runs(PLAN)
    oom = [
        replace(group_row, result=Result.OOM, reason="no room") if group_row.scenario == "mps_percent" else group_row
        for group_row in rows
    ]
    result = check(PLAN, study(*oom), None, "plan.json")
    assert not result.holds and result.missing == ("GPU 2: oom in block 1: no room",)
    assert find_compared(result, "infer_tiny", "throughput_per_s").measured is None
    assert find_compared(result, "infer_tiny_text", "throughput_per_s").measured is not None
    late = [replace_figures(group_row, latency_p99_ms=300.0, latency_mean_ms=250.0) for group_row in rows]
    result = check(PLAN, study(*late), None, "plan.json")
    assert result.broken[0] == "infer_tiny did not meet its objective on GPU 0, 1 in 1 of 1 blocks"
    assert len(result.broken) == 3 and not result.holds
    with pytest.raises(ConfigError, match=r"rates and batches of plan.json \(groups: naive-1x-resnet26_cifar10\)"):
        check(PLAN, study(row("naive", (job(0, params(), 5.0),))), None, "plan.json")


def replace_figures(ran: Row, **figures: float | None) -> Row:
    """A run whose jobs have these figures; one that is `None` was not measured."""

    def changed(metrics: Mapping[str, float]) -> dict[str, float]:
        return {name: value for name, value in {**metrics, **figures}.items() if value is not None}

    return replace(
        ran, jobs=tuple(replace(measured_job, metrics=changed(measured_job.metrics)) for measured_job in ran.jobs)
    )


def small(latency_p99_ms: float | None) -> Plan:
    only = replace(WHOLE.instances[0], latency_mean_ms=5.0, latency_p99_ms=latency_p99_ms)
    return plan_of(replace(WHOLE, instances=(only,)))


@pytest.mark.parametrize(
    ("planned_p99_ms", "mean_ms", "p99_ms", "holds"),
    [
        (None, 150.0, 300.0, True),  # planned by the mean
        (None, 250.0, 300.0, False),
        (9.0, 150.0, 300.0, False),
        (9.0, 150.0, None, True),
        (9.0, 250.0, None, False),
        (9.0, None, None, False),
    ],
)
def test_the_figure_that_was_planned_by_is_held_against_the_objective(planned_p99_ms, mean_ms, p99_ms, holds) -> None:
    plan = small(planned_p99_ms)
    rows = [replace_figures(group_row, latency_mean_ms=mean_ms, latency_p99_ms=p99_ms) for group_row in make_runs(plan)]
    result = check(plan, study(*rows), None, "plan.json")
    assert result.holds is holds
    assert result.held_by_mean == (("infer_tiny",) if planned_p99_ms and p99_ms is None and mean_ms else ())
    if mean_ms is None:
        assert result.unchecked == ("infer_tiny cannot be shown to meet its objective on GPU 0 in 1 of 1 blocks",)
        assert "not checked: infer_tiny cannot be shown to meet" in describe_check(
            result, build_table(result, "plan.json")
        )


def test_a_rate_of_which_nothing_was_measured_was_not_kept() -> None:
    rows = [replace_figures(group_row, rate_sustained_ratio=None) for group_row in make_runs(PLAN)]
    result = check(PLAN, study(*rows), None, "plan.json")
    assert not result.holds and not result.broken and len(result.unchecked) == 3


def test_runs_at_another_rate_or_batch_or_on_another_gpu_are_of_another_plan() -> None:
    rows = make_runs(PLAN)
    slower = plan_of(make_divided_gpu(), make_divided_gpu(), WHOLE, rate_per_s=30.0)
    larger = plan_of(
        *(
            replace(gpu, instances=tuple(replace(instance, batch=16) for instance in gpu.instances))
            for gpu in PLAN.deployment.gpus
        )
    )
    other = plan_of(*(replace(gpu, model="a100_80gb") for gpu in PLAN.deployment.gpus))
    for plan in (slower, larger, other):
        with pytest.raises(ConfigError, match=r"has no group with the GPU model, rates and batches of plan.json"):
            check(plan, study(*rows), None, "plan.json")


def test_a_rehearsal_on_another_model_is_of_the_plan() -> None:
    rehearsed = [replace(group_row, device="a100_40gb", is_simulated=True) for group_row in make_runs(PLAN)]
    assert check(PLAN, study(*rehearsed), None, "plan.json").holds


def test_a_plan_with_two_models_is_checked_with_what_each_was_exported_as() -> None:
    old = [replace(gpu, model="a100_80gb") for gpu in (make_divided_gpu(), WHOLE)]
    plan = plan_of(make_divided_gpu(), WHOLE, *old)
    rows = [group_row for model in ("h100_80gb", "a100_80gb") for group_row in make_runs(select_model(plan, model))]
    result = check(plan, study(*rows), None, "plan.json")
    assert result.holds
    throughput = find_compared(result, "infer_tiny", "throughput_per_s")
    assert throughput.measured is not None and throughput.measured.median == pytest.approx(10.0 * 2 * (4 + 2))
    result = check(plan, study(*make_runs(select_model(plan, "h100_80gb"))), None, "plan.json")
    assert result.missing == ("GPU 2: its group was not run", "GPU 3: its group was not run")


@pytest.mark.parametrize(
    ("low", "high", "measured", "is_within"),
    [
        (None, None, (11.0, 9.0, 12.0), True),
        (None, None, (11.0, 10.5, 12.0), False),
        (9.0, 10.6, (11.0, 10.5, 12.0), True),
        (9.0, 12.0, (11.0, None, None), True),
        (None, None, (10.0, None, None), None),
    ],
)
def test_within_is_whether_the_intervals_overlap(low, high, measured, is_within) -> None:
    middle, bottom, top = measured
    estimate = Estimate(median=middle, low=bottom, high=top, n=5)
    one = Compared(service="a", quantity="throughput_per_s", predicted=10.0, low=low, high=high, measured=estimate)
    assert one.is_within is is_within


def test_it_is_a_section_of_the_report() -> None:
    rows = [group_row for block in (1, 2, 3) for group_row in make_runs(PLAN, block, 1 + 0.001 * block)]
    table = build_table(check(PLAN, study(*rows), None, "plan.json"), "plan.json")
    content = make_content(study(*rows))
    page = render(replace(content, tables=[table, *content.tables]))
    assert "Planned and measured" in page and "throughput (1/s)" in page and "+67.0%" in page


def test_the_report_has_the_table_first_and_a_picture_of_the_gpus(tmp_path: Path) -> None:
    measured = study(*make_runs(PLAN))
    table = plan_check.build_table(plan_check.check(PLAN, measured, None, "plan.json"), "plan.json")
    page = results_commands._write_report(measured, table, PLAN, tmp_path / "report").read_text()
    assert "Services on the slices of each GPU" in page and table.title in page
    assert "3g.40gb" in (tmp_path / "report/figures/planned-gpus.svg").read_text()
    assert (tmp_path / "report/figures/planned-gpus.pdf").read_bytes().startswith(b"%PDF")
