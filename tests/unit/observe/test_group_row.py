"""From event files and samples to rows: every figure against a number worked out by hand."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.domain.samples import Sample
from pipeline.base.domain.window import Window, WindowKind
from pipeline.observe import baseline_comparison, sample_figures
from pipeline.observe.clock import ClockRecord
from pipeline.observe.group_result import JobResult
from tests.support.rows import FIELDS, S, group, judge, judge_events, make_row, state, steps


def make_nvml_sample(t_s, **values) -> Sample:
    return Sample(source="nvml", t_ns=int(t_s * S), values=values)


def test_a_steady_rate_counts_whole_steps_inside_the_common_window(tmp_path):
    pair = group("a", "b")
    # Job 1 starts half a second later: the window opens at 1.5 s and closes at the stop, at 11 s.
    row = judge_events(tmp_path, pair, steps(0, 11.2, 0.3, 6), steps(0.5, 11.3, 0.4, 4))
    assert row.result is Result.OK
    assert row.tags["collocation.window_start_ns"] == str(int(1.5 * S))
    assert row.tags["collocation.window_end_ns"] == str(11 * S)
    assert row.jobs[0].metrics["throughput_samples_per_s"] == pytest.approx(20)
    assert row.jobs[1].metrics["throughput_samples_per_s"] == pytest.approx(10)
    assert row.metrics["throughput_total_samples_per_s"] == pytest.approx(30)
    assert row.metrics["start_skew_ms"] == pytest.approx(500)
    assert row.jobs[0].metrics["step_time_p50_ms"] == pytest.approx(300)


def test_overlap_is_the_common_span_over_the_longest_and_low_overlap_is_flagged(tmp_path):
    pair = group("a", "b")
    row = judge_events(tmp_path, pair, steps(0, 10, 0.5, 1), steps(2, 8, 0.5, 1), told_s=10)
    assert row.metrics["overlap_ratio"] == pytest.approx(0.6)
    assert row.tags["collocation.invalid"] == "overlap 0.600 is below 0.95"


def test_work_is_counted_in_the_unit_of_the_workload_and_in_those_that_follow_from_it(tmp_path):
    pair = group("a", "b", workloads={"work_unit": "sequences"})
    tokens = [{"event": "param", "t_ns": 1, "params": {"tokens_per_sequence": number}} for number in ("64", "128")]
    samples = [make_nvml_sample(t, energy_j=100.0 * t) for t in range(12)]
    row = judge_events(tmp_path, pair, *([event, *steps(0, 11.2, 0.5, 5)] for event in tokens), samples=samples)
    assert row.jobs[1].metrics["throughput_sequences_per_s"] == pytest.approx(10)
    assert row.jobs[1].metrics["throughput_tokens_per_s"] == pytest.approx(1280)
    assert row.metrics["throughput_total_sequences_per_s"] == pytest.approx(20)
    assert row.metrics["throughput_total_tokens_per_s"] == pytest.approx(1920)
    assert row.metrics["energy_per_sequence_j"] == pytest.approx(5)
    assert row.metrics["energy_per_token_j"] == pytest.approx(100 / 1920)
    assert not any("samples" in name for name in (*row.metrics, *row.jobs[0].metrics))


def test_a_group_has_a_total_only_where_its_jobs_count_the_same(tmp_path):
    pair = group("a", "b", workloads=[{"work_unit": "samples"}, {"work_unit": "particle_turns"}])
    row = judge_events(tmp_path, pair, steps(0, 11.2, 0.5, 5))
    assert row.result is Result.OK
    assert row.jobs[1].metrics["throughput_particle_turns_per_s"] == pytest.approx(10)
    assert not any(name.startswith("throughput") for name in row.metrics)
    assert json.loads(row.tags["collocation.rates"])["1"]["throughput_particle_turns_per_s"] == pytest.approx(10)


def test_a_work_window_gives_epochs_with_their_validation_and_a_rate_without(tmp_path):
    alone = group("a", kind=WindowKind.WORK)
    events = [
        *steps(0, 4, 0.5, 10),
        {"event": "epoch", "epoch": 1, "t_ns": 2 * S, "seconds": 2.0, "metrics": {"loss": 2.0}},
        {"event": "epoch", "epoch": 2, "t_ns": 5 * S, "seconds": 2.0, "metrics": {"loss": 1.0, "validation_s": 0.5}},
    ]
    row = judge(alone, state(tmp_path, alone.jobs[0], events))
    assert row.metrics["makespan_s"] == 5
    assert row.metrics["epoch_time_mean_s"] == 2.25
    assert row.jobs[0].metrics["throughput_samples_per_s"] == 20
    # 80 samples in 5 s: the second that was spent on validation is part of the makespan.
    assert row.metrics["throughput_total_samples_per_s"] == 16
    assert row.jobs[0].series["loss"] == [(1, 2 * S, 2.0), (2, 5 * S, 1.0)]
    more = judge(alone, state(tmp_path, alone.jobs[0], number_events(*events, *steps(6, 9, 0.5, 10)[1:])))
    assert more.jobs[0].metrics["throughput_samples_per_s"] == 20, "what follows the epochs is not of their time"


def test_a_script_ends_when_it_was_seen_to_and_not_when_its_runner_does(tmp_path):
    alone = group("a", kind=WindowKind.WORK, workloads={"ends_by_itself": True})
    events = [{"event": "started", "t_ns": S}, {"event": "process_ended", "t_ns": 5 * S}]
    row = judge(alone, state(tmp_path, alone.jobs[0], events))  # which is gone at 100 s
    assert row.metrics["makespan_s"] == 4


def test_a_serial_mix_adds_up_the_time_and_energy_of_its_jobs(tmp_path):
    mix = group("a", "b", kind=WindowKind.WORK, sequential=True)
    batches = [
        [state(tmp_path, mix.jobs[0], steps(0, 4, 1, 1))],
        [state(tmp_path, mix.jobs[1], steps(100, 107, 1, 1), at_ns=108 * S)],
    ]
    # 100 W while the first job works, 300 W while the second does, and 1 kW between them, which belongs to neither.
    watts = [(t, 100 if t <= 4 else 1000 if t <= 100 else 300) for t in range(108)]
    energy = itertools.accumulate(w for _, w in watts)
    samples = [make_nvml_sample(t, energy_j=float(e)) for (t, _), e in zip(watts, energy, strict=True)]
    row = judge(mix, batches=batches, samples=samples, idle_w=50.0)
    assert row.metrics["makespan_s"] == 11
    assert row.metrics["throughput_total_samples_per_s"] == pytest.approx(1)
    assert row.metrics["energy_j"] == pytest.approx(4 * 100 + 7 * 300)
    assert row.metrics["energy_above_idle_j"] == pytest.approx(4 * 50 + 7 * 250)
    assert row.metrics["energy_per_sample_j"] == pytest.approx(2500 / 11)
    without = judge(mix, batches=batches, samples=samples[:6], idle_w=50.0)
    assert "energy_j" not in without.metrics  # the second job was not sampled: no sum
    # MLflow compares runs by the first metric; what a job did stands on its own run, and in a tag for `resume`.
    assert next(iter(row.metrics)) == "throughput_total_samples_per_s"
    assert not any("job_" in name for name in row.metrics)
    assert json.loads(row.tags["collocation.rates"])["1"]["makespan_s"] == 7


def test_a_torn_last_line_costs_one_line(tmp_path):
    alone = group("a")
    good = state(tmp_path, alone.jobs[0], steps(0, 11, 0.5, 1), told_ns=11 * S)
    with (good.folder / "events.jsonl").open("a") as file:
        file.write('{"event":"step","t_ns":115')
    assert judge(alone, good).result is Result.OK


def test_energy_is_the_difference_of_the_counter_scaled_to_the_window(tmp_path):
    alone = group("a")
    good = state(tmp_path, alone.jobs[0], steps(0, 11, 0.5, 50), told_ns=11 * S)

    samples = [make_nvml_sample(-1, power_w=70.0, memory_used_mib=10.0)]
    samples += [
        make_nvml_sample(t, power_w=300.0, energy_j=1000 + 300.0 * t, memory_used_mib=100.0 + t, sm_clock_mhz=1980.0)
        for t in range(12)
    ]
    row = judge(alone, good, samples=samples, idle_w=70.0, waiting_w=120.0)
    assert row.metrics["energy_j"] == pytest.approx(300 * 10)
    assert row.metrics["energy_above_idle_j"] == pytest.approx(230 * 10)
    assert row.metrics["energy_above_waiting_j"] == pytest.approx(180 * 10)
    assert row.metrics["energy_per_sample_j"] == pytest.approx(3.0)
    assert row.metrics["energy_above_waiting_per_sample_j"] == pytest.approx(1.8)
    assert (row.metrics["power_idle_w"], row.metrics["power_waiting_w"]) == (70.0, 120.0)
    unknown = judge(alone, good, samples=samples).metrics
    assert not [name for name in unknown if "idle" in name or "waiting" in name]
    assert row.metrics["memory_peak_mib"] == 111
    assert row.metrics["sm_clock_mean_mhz"] == 1980


def make_energy_samples(*stretches: tuple[int, int], watts: float = 300.0, base_j: float = 1000.0) -> list[Sample]:
    """Readings of a counter and of the power, twice a second over these stretches of tenths of seconds."""
    return [
        make_nvml_sample(t / 10, energy_j=base_j + watts * t / 10, power_w=watts)
        for begin, end in stretches
        for t in range(begin, end, 5)
    ]


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (make_energy_samples((0, 120)), None),
        (make_energy_samples((3, 120)), None),  # between two readings at both edges
        (make_energy_samples((25, 95)), None),  # within two intervals of both edges
        (make_energy_samples((0, 45), (70, 120)), None),
        (make_energy_samples((32, 120)), "no reading within 2.2 s of the start of the window"),
        (make_energy_samples((0, 30)), "no reading within 8.5 s of the end of the window"),
        (make_energy_samples((0, 85)), "no reading within 3 s of the end of the window"),
        (make_energy_samples((0, 45), (80, 120)), "no reading for 4 s of the window"),
        (make_energy_samples((60, 61)), "no reading within 5 s of the start of the window"),
        (make_energy_samples((-50, -45)), "no reading in the window"),
        (
            make_energy_samples((0, 60)) + make_energy_samples((60, 120), base_j=-1500),
            "the counter was reset in the window",
        ),
    ],
)
def test_energy_and_means_need_readings_of_the_whole_window(tmp_path, samples, words):
    row = judge_events(tmp_path, group("a"), steps(0, 11, 0.5, 50), samples=samples, idle_w=70.0)
    if words is None:
        assert row.metrics["energy_j"] == pytest.approx(3000) and row.metrics["power_mean_w"] == 300
        assert "collocation.absent_figures" not in row.tags
    else:
        assert not any("energy" in name for name in row.metrics)
        assert f"energy_j: {words} (nvml)" in row.tags["collocation.absent_figures"]
        assert ("power_mean_w" in row.metrics) == words.startswith("the counter")


def test_a_counter_that_began_anew_outside_of_the_window_is_none_of_its_concern(tmp_path):
    samples = (
        make_energy_samples((-50, -5), base_j=9e9)
        + make_energy_samples((-5, 120))
        + make_energy_samples((125, 150), base_j=-9)
    )
    assert judge_events(tmp_path, group("a"), steps(0, 11, 0.5, 50), samples=samples).metrics[
        "energy_j"
    ] == pytest.approx(3000)


def test_activity_is_that_of_the_whole_gpu_between_the_first_and_the_last_reading_in_the_window(tmp_path):
    # A reading is a mean since the one before, which for the first in the window is of what came before it, too.
    values = {0: 0.0, 2: 0.1, 4: 0.8, 5: 0.5, 7: 0.5, 9: 0.8, 11: 0.8}
    samples = [Sample(source="gpm", t_ns=t * S, values={"gract_ratio": value}) for t, value in values.items()]
    samples += [Sample(source="gpm", t_ns=t * S, values={"smact_ratio": 0.1 * t}) for t in range(2, 12, 2)]
    samples += [
        Sample(source="gpm", t_ns=2 * S, values={"dram_active_ratio": 0.1}),
        Sample(source="gpm", t_ns=5 * S, values={"gract_ratio": 1.0}, gi_id=3),
    ]
    metrics = judge_events(tmp_path, group("a"), steps(0, 11, 0.5, 50), samples=samples).metrics
    assert metrics["gract_mean_ratio"] == pytest.approx((2 * 0.8 + 0.5 + 2 * 0.5 + 2 * 0.8 + 2 * 0.8) / 9)
    assert metrics["smact_mean_ratio"] == pytest.approx(0.7)
    assert "dram_active_mean_ratio" not in metrics


def test_the_run_of_a_job_has_the_figures_of_its_gpu_instance(tmp_path):
    three = group("a", "b", "c")
    states = [state(tmp_path, job, steps(0, 11, 0.5, 50), told_ns=11 * S) for job in three.jobs]
    samples = [
        *(Sample(source="gpm", t_ns=t * S, values={"gract_ratio": 0.9}) for t in range(12)),
        *(
            Sample(source="gpm", t_ns=t * S, values={"gract_ratio": gi / 10}, gi_id=gi)
            for gi in (3, 5)
            for t in range(12)
        ),
        Sample(source="nvml", t_ns=3 * S, values={"instance_memory_used_mib": 700.0}, gi_id=5),
        Sample(source="nvml", t_ns=3 * S, values={"process_memory_mib": 300.0}, job=1),
    ]
    places = [{"gi_id": "3"}, {"gi_id": "5"}, {"gi_id": "5"}]
    row = judge(three, *states, samples=samples, places=places)
    assert row.metrics["gract_mean_ratio"] == pytest.approx(0.9), "the whole GPU stays on the group"
    assert [job.metrics["gract_mean_ratio"] for job in row.jobs] == pytest.approx([0.3, 0.5, 0.5])
    assert [job.metrics.get("instance_memory_peak_mib") for job in row.jobs] == [None, 700, 700]
    assert [job.metrics.get("memory_peak_mib") for job in row.jobs] == [None, 300, None]
    without = judge(three, *states, samples=samples, places=[{}, {}, {}])
    assert not any("gract_mean_ratio" in job.metrics for job in without.jobs)


@pytest.mark.parametrize(("held", "words"), [(0, None), (1, "limited the clocks for 10 % of the window")])
def test_a_row_whose_clocks_power_or_heat_held_down_is_flagged_and_stays_a_baseline(tmp_path, held, words):
    samples = [make_nvml_sample(1 + t, throttled_ratio=float(t < held)) for t in range(10)] + [
        make_nvml_sample(0, throttled_ratio=1.0)
    ]
    row = judge_events(tmp_path, group("a", sequential=True), steps(0, 11, 0.5, 50), samples=samples)
    assert row.metrics["throttled_ratio"] == pytest.approx(held / 10)
    assert (words in row.tags["collocation.flag"]) if words else "collocation.flag" not in row.tags
    comparison = baseline_comparison.Comparison()
    comparison.add(row)
    (compared,) = comparison.add(judge_events(tmp_path, group("a", "a"), steps(0, 11, 0.5, 50)))
    assert compared.metrics["speedup_vs_serial_ratio"] == pytest.approx(2)


def test_of_two_listeners_with_the_same_figure_the_better_one_counts(tmp_path):
    samples = [
        Sample(source=source, t_ns=t * S, values={"gract_ratio": value})
        for source, value in (("smi", 0.8), ("gpm", 0.6), ("dcgm", 0.4))
        for t in range(1, 12, 2)
    ]
    for count, best in ((18, 0.4), (13, 0.6), (12, 0.6)):  # of dcgm, all readings, one, none
        metrics = judge_events(tmp_path, group("a"), steps(0, 11, 0.5, 50), samples=samples[:count]).metrics
        assert metrics["gract_mean_ratio"] == pytest.approx(best)


def test_a_job_that_no_sample_met_has_no_peak_of_memory(tmp_path):
    samples = [Sample(source="nvml", t_ns=t * S, values={"process_memory_mib": 0.0}, job=0) for t in (3, 5)]
    (job,) = judge_events(tmp_path, group("a"), steps(0, 11, 0.5, 50), samples=samples).jobs
    assert "memory_peak_mib" not in job.metrics


def test_the_samples_of_a_job_make_its_own_figures(tmp_path):
    samples = [Sample(source="host", t_ns=0, values={"cpu_pct": 1000.0, "pss_peak_mib": 900.0}, job=0)]
    samples += [
        Sample(source="host", t_ns=t * S, values={"cpu_pct": 40.0 * t, "pss_peak_mib": 100.0}, job=0)
        for t in (3, 5, 7, 9)
    ]
    samples += [Sample(source="nvml", t_ns=5 * S, values={"process_memory_mib": 70.0}, job=1)]
    first, second = judge_events(tmp_path, group("a", "b"), steps(0, 11, 0.5, 50), samples=samples).jobs
    # A rate is a mean since the sample before, so the one at 3 s is not of the window alone.
    assert first.metrics["host_cpu_mean_pct"] == pytest.approx(40 * (5 + 7 + 9) / 3)
    assert first.metrics["host_memory_peak_mib"] == 900
    assert second.metrics["memory_peak_mib"] == 70
    assert not {"memory_peak_mib", "host_cpu_mean_pct"} & (first.metrics.keys() & second.metrics.keys())


def test_fields_are_the_same_when_they_are_read_again(tmp_path):
    (tmp_path / "fields.json").write_text(FIELDS.as_json())
    assert sample_figures.read_fields(tmp_path / "fields.json").tables == FIELDS.tables
    (tmp_path / "fields.json").write_text(FIELDS.as_json()[:100])
    assert (
        sample_figures.read_fields(tmp_path / "fields.json").tables
        == sample_figures.read_fields(tmp_path / "absent").tables
        == ()
    )


def test_what_was_not_read_is_missing(tmp_path):
    row = judge_events(tmp_path, group("a"), steps(0, 11, 0.5, 1))
    for name in ("energy_j", "memory_peak_mib", "power_mean_w", "orchestrator_cpu_pct", "speedup_vs_serial_ratio"):
        assert name not in row.metrics


def list_solo_jobs(name="throughput_samples_per_s", **rates) -> list[tuple[JobResult, ...]]:
    """Each job's run alone, or none."""
    return [() if rate is None else make_row(group(workload), rate, name=name).jobs for workload, rate in rates.items()]


def test_steady_comparison_normalises_each_job_by_itself_alone():
    figures = baseline_comparison.compare_with_baseline(
        make_row(group("a", "b"), 50, 30), list_solo_jobs(a=100, b=40), None
    )
    assert figures["speedup_vs_serial_ratio"] == pytest.approx(1.25)
    assert figures["slowdown_worst_ratio"] == pytest.approx(2)
    assert figures["fairness_jain_ratio"] == pytest.approx(1.25**2 / (2 * (0.25 + 0.5625)))


def test_work_comparison_uses_the_serial_run_of_the_same_jobs():
    row = make_row(group("a", "b", kind=WindowKind.WORK), 10, 20, name="makespan_s", metrics={"makespan_s": 20.0})
    solo = list_solo_jobs("makespan_s", a=8.0, b=16.0)
    assert baseline_comparison.compare_with_baseline(row, solo, 25.0)["speedup_vs_serial_ratio"] == pytest.approx(1.25)
    assert baseline_comparison.compare_with_baseline(row, solo, None)["speedup_vs_serial_ratio"] == pytest.approx(
        24 / 20
    )


def test_a_serial_mix_is_not_compared_with_itself_in_a_steady_window():
    mix = make_row(group("a", "b", sequential=True), 100, 40)
    assert baseline_comparison.compare_with_baseline(mix, list_solo_jobs(a=100, b=40), None) == {}


def test_without_a_baseline_there_is_no_comparison():
    assert (
        baseline_comparison.compare_with_baseline(
            make_row(group("a", "b"), 50, 30), list_solo_jobs(a=100, b=None), None
        )
        == {}
    )
    assert dataclasses.asdict(make_row(group("a"), 1))["metrics"] == {}


def make_host_samples(job, **rates) -> list[Sample]:
    """Readings of one job inside a window from 1 s to 11 s, the first of which says nothing of it."""
    first = Sample(source="host", t_ns=2 * S, values=dict.fromkeys(rates, 1000.0), job=job)
    return [first, *(Sample(source="host", t_ns=t * S, values=rates, job=job) for t in (4, 6, 8, 10))]


@pytest.mark.parametrize(
    ("gract", "cpu_pct", "share"),
    [(0.5, (95.0, 60.0), 0.5), (0.5, (95.0, 99.0), 1.0), (0.95, (95.0, 99.0), 0.0), (None, (95.0, 99.0), None)],
)
def test_a_job_is_bound_by_the_host_if_its_process_is_busy_and_the_gpu_is_not(tmp_path, gract, cpu_pct, share):
    samples = [
        sample
        for job, cpu in enumerate(cpu_pct)
        for sample in make_host_samples(job, process_cpu_pct=cpu, run_queue_delay_pct=4.0 * job)
    ]
    if gract is not None:
        samples += [Sample(source="gpm", t_ns=t * S, values={"gract_ratio": gract}) for t in range(12)]
    metrics = judge_events(tmp_path, group("a", "b"), steps(0, 11.5, 0.5, 50), samples=samples).metrics
    assert metrics.get("host_bound_ratio") == share
    assert metrics["process_cpu_mean_pct"] == pytest.approx(sum(cpu_pct) / 2)
    assert metrics["run_queue_delay_pct"] == 2.0
    assert "involuntary_switches_per_s" not in metrics


def test_a_rate_is_that_of_the_work_in_the_whole_window(tmp_path):
    # 20 samples/s until 4 s, then nothing until a last step long after the word to stop, at 11 s.
    events = [*steps(0, 4, 0.5, 10), {"event": "step", "t_ns": 18 * S, "samples": 10, "total": 90, "epoch": 1}]
    row = judge_events(tmp_path, group("a"), events)
    # From 1 s to 11 s: 60 samples, and half of the step that took from 4 s to 18 s.
    assert row.jobs[0].metrics["throughput_samples_per_s"] == pytest.approx(6.5)


def number_events(*events) -> list[dict[str, object]]:
    """One job that starts once; `total` goes on from one stretch of steps to the next."""
    done = itertools.accumulate(event.get("samples", 0) for event in events)
    return [event | {"total": total} for event, total in zip(events, done, strict=True)]


NEW_EPOCH = {"event": "step", "t_ns": 12 * S, "samples": 10, "epoch": 2}


@pytest.mark.parametrize(
    ("events", "words"),
    [
        pytest.param(steps(0, 8, 0.1, 10), "job 0-a made no step in the last 3 s of the window (a step takes 100 ms)"),
        pytest.param(
            number_events(*steps(0, 0.9, 0.1, 10), *steps(3.9, 12, 0.1, 10)[1:]),
            "job 0-a made no step in the first 3 s of the window",
        ),
        pytest.param(number_events(*steps(0, 8, 0.1, 10), NEW_EPOCH), None, id="an epoch begins at the edge"),
        pytest.param(steps(0, 12, 3, 10), None, id="long steps"),
        pytest.param(steps(0, 10.8, 0.01, 10), None, id="twenty short steps, which are two per cent of the window"),
    ],
)
def test_a_job_that_stands_still_at_an_edge_is_flagged(tmp_path, events, words):
    row = judge_events(tmp_path, group("a"), events)
    assert row.result is Result.OK
    assert (words in row.tags["collocation.invalid"]) if words else "collocation.invalid" not in row.tags


def test_everything_suspended_in_a_window_invalidates_the_row(tmp_path):
    alone = group("a", sequential=True)
    job = state(tmp_path, alone.jobs[0], steps(0, 11, 0.5, 50), told_ns=11 * S)
    row = judge(alone, job, clock=ClockRecord(pauses=((2 * S, 6 * S),)))
    words = "all processes were suspended for 4 s of the window, as by docker pause"
    assert row.tags["collocation.invalid"] == words
    before = judge(alone, job, clock=ClockRecord(pauses=((-4 * S, 1 * S), (3 * S, 3 * S + S // 10))))
    assert "collocation.invalid" not in before.tags


def make_machine_samples(busy, idle, *jobs) -> list[Sample]:
    """Readings of a machine and of jobs, each with the CPU time and the wait of a core in per cent."""
    samples = []
    for t in range(12):
        samples.append(Sample(source="host", t_ns=t * S, values={"busy_cpus": busy, "idle_cpus": idle}))
        for job, (cpu, wait) in enumerate(jobs):
            values = {"cpu_pct": cpu, "run_queue_delay_pct": wait}
            samples.append(Sample(source="host", t_ns=t * S, values=values, job=job))
    return samples


@pytest.mark.parametrize(
    ("samples", "mark"),
    [
        (make_machine_samples(2, 0, (30, 60), (30, 70)), "a job waited for a CPU for 70 % of the time"),
        (
            make_machine_samples(2, 0, (60, 10), (60, 30)),
            "a job waited for a CPU for 30 % of the time while other programs",
        ),
        (make_machine_samples(2, 0, (95, 60), (95, 70)), None),  # they wait for each other
        (
            make_machine_samples(9, 7, (30, 60), (30, 70)),
            None,
        ),  # CPUs are idle: a quota or pinning, and no other program
        (make_machine_samples(2, 0, (60, 5), (60, 5)), None),
        (make_machine_samples(16, 0, (700, 40), (700, 40)), None),  # each of many threads waits a little
        (make_machine_samples(2, 0, (3, 2), (3, 2)), None),  # they hardly want one
    ],
)
def test_jobs_that_wait_for_cpus_that_other_programs_use_invalidate_the_row(tmp_path, samples, mark):
    row = judge_events(
        tmp_path, group("a", "b"), steps(0, 11, 0.5, 50), samples=samples, tool_cpu_s=0.1, tool_wall_s=10.0
    )
    assert (mark in row.tags["collocation.invalid"]) if mark else "collocation.invalid" not in row.tags


def test_a_rate_of_few_steps_is_noted(tmp_path):
    row = judge_events(tmp_path, group("a"), steps(0, 12, 1, 10))
    assert row.tags["collocation.flag"] == "a job made 10 steps in the window; raise window.seconds"


def test_the_host_figures_of_a_job_that_ends_early_are_of_its_own_time(tmp_path):
    pair = group("a", "b", kind=WindowKind.WORK)
    states = [state(tmp_path, job, steps(0, end, 0.5, 50)) for job, end in zip(pair.jobs, (8, 30), strict=True)]
    samples = [
        Sample(source="host", t_ns=t * S, values={"cpu_pct": 50.0}, job=job)
        for job, end in enumerate((9, 31))
        for t in range(end)
    ]
    row = judge(pair, *states, samples=samples)
    assert [job.metrics["host_cpu_mean_pct"] for job in row.jobs] == [50, 50]


@pytest.mark.parametrize(("end_s", "has_energy"), [(4.5, False), (6.0, True)])
def test_a_window_by_need_begins_after_the_trial_and_has_energy_if_it_is_long_enough(tmp_path, end_s, has_energy):
    window = Window(kind=WindowKind.STEADY, seconds=1, settle_s=2, most_s=10)
    alone = group("a", window=window)
    samples = [make_nvml_sample(t / 4, energy_j=100.0 * t / 4, memory_used_mib=7.0) for t in range(40)]
    row = judge_events(tmp_path, alone, steps(0, 9, 0.1, 4), told_s=end_s, samples=samples)
    assert row.metrics["window_s"] == pytest.approx(end_s - 3)
    few = "" if has_energy else "a job made 15 steps in the window; raise window.most_s"
    assert row.marks.note == few
    assert row.jobs[0].metrics["throughput_samples_per_s"] == pytest.approx(40)
    assert row.metrics["memory_peak_mib"] == 7 and row.marks.invalid == ""
    if has_energy:
        assert row.metrics["energy_j"] == pytest.approx(300)
    else:
        assert "energy_j" not in row.metrics
        reason = "power and activity: the window of 1.5 s is shorter than 2 s; set window.seconds=2"
        assert row.tags["collocation.absent_figures"] == reason


def test_a_job_that_begins_late_in_a_window_by_need_makes_the_row_invalid(tmp_path):
    pair = group("a", "b", window=Window(kind=WindowKind.STEADY, seconds=1, settle_s=2, most_s=10))
    events = [{"event": "started", "t_ns": 0}, *steps(9, 13.5, 0.1, 4)[1:]]
    states = [
        state(tmp_path, job, log, told_ns=13 * S)
        for job, log in zip(pair.jobs, (steps(0, 13.5, 0.1, 4), events), strict=True)
    ]
    assert judge(pair, *states).marks.invalid == "job 1-b began its work only 3.9 s before the end of the window"
