"""Where a study is and how long is left, from groups that ran and their like."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.base.domain.normalisation import MEMORY_FORECAST, MEMORY_PEAK
from pipeline.base.domain.records import PackSettings, Result
from pipeline.base.domain.tags import Tag
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.system.words import format_count, format_duration
from pipeline.observe.baseline_comparison import Comparison
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.observe.study_progress import MemoryForecast, PastGroup, Progress, forecast
from pipeline.observe.view import PlainView
from pipeline.record import invocation
from pipeline.study import pack_trials
from tests.support.idle_groups import make_groups
from tests.support.rows import group


class Clock:
    """Seconds that pass when the test says so."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def run(progress, clock, the_group, takes_s, result=Result.OK):
    progress.begin(the_group)
    clock.now_s += takes_s
    progress.done(result)


def test_before_anything_ran_the_windows_are_the_least_that_it_takes():
    progress = Progress([group("a"), group("a", "b", sequential=True)], clock=Clock())
    assert progress.estimate_left_s() == (11 + 2 * 11, False)
    assert progress.summary() == "0 s elapsed, more than 33 s left"


def test_a_measurement_of_idle_power_counts_once_and_is_not_taken_for_the_start_of_jobs():
    clock, groups = Clock(), make_groups({}, {}, {})
    progress = Progress(groups, clock=clock)
    assert progress.estimate_left_s() == (14 + 3 * 11, False)
    run(progress, clock, groups[0], 14 + 11 + 5)
    assert progress.estimate_left_s() == (2 * (11 + 5), True)


def test_a_group_takes_what_its_like_took():
    clock = Clock()
    pair, seven, alone = group("a", "a"), group(*"aaaaaaa"), group("a", sequential=True)
    again = [dataclasses.replace(earlier_group, block=2) for earlier_group in (seven, alone, pair)]
    progress = Progress([pair, seven, alone, *again], clock=clock)
    run(progress, clock, pair, 20)
    assert progress.estimate_left_s() == (5 * 20, True)
    run(progress, clock, seven, 60)
    run(progress, clock, alone, 15)
    assert progress.estimate_left_s() == (20 + 60 + 15, True)
    assert progress.position(alone) == "[3/6] block 1 of 2"
    progress.begin(again[0])
    clock.now_s += 50
    assert progress.estimate_left_s()[0] == 20 + 10 + 15
    clock.now_s += 50  # longer than it should: it takes nothing from the others
    assert progress.estimate_left_s()[0] == 20 + 15


def test_a_study_that_has_not_begun_takes_what_its_like_took_before():
    pair, other = group("a", "a"), group("a", "a", kind=WindowKind.WORK, number=2)
    like = {"scenario": "naive", "jobs": "a+a", "window": pair.window.text, "kind": "steady"}
    device = pair.settings["device"]
    past = [
        PastGroup(key=pair.key, device=device, on_top_s=9.0, **like),
        PastGroup(key="other options", device=device, on_top_s=70.0, **like),
        PastGroup(key="on another GPU", device="a small one", on_top_s=500.0, **like),
        PastGroup(key="another program", device=device, on_top_s=800.0, **like | {"jobs": "b+b"}),
        # Another program's fixed amount of work says nothing of this one's.
        PastGroup(
            key="other work", device=device, on_top_s=900.0, **like | {"window": other.window.text, "kind": "work"}
        ),
    ]
    seven = group(*"aaaaaaa", number=2)  # nothing closer than the same workload in the same window on the same device
    assert forecast([pair, seven], past).words == "takes about 70 s, estimated from similar earlier groups"
    skipped = dataclasses.replace(group("c", number=3), skip_reason="does not fit")
    unknown = forecast([pair, other, skipped], past)
    assert unknown.of_each == {1: 20.0, 3: 0.0}
    assert (
        unknown.words == "takes at least 20 s plus the starts of jobs and the windows of 1 group, which are unknown: "
        "1 of 2 groups has no similar earlier run"
    )
    words = "takes an unknown time, because the windows are unknown: 1 of 1 groups has no similar earlier run"
    assert forecast([other], []).words == words
    again = dataclasses.replace(other, block=2, number=3)
    assert forecast([other, again], []).words.endswith("earlier run; for an estimate, run one block with repeats=1")
    assert forecast([group("c", "c")], past).num_unknown == 1, "of no study that ran other workloads only"


def make_script_group(**changes):
    """A group of a script, which ends by itself, and one that ran before with these changes."""
    window = Window(kind=WindowKind.WORK)
    the_group = group("a", "a", window=window, program_digest="program")
    ran = PastGroup(
        key=the_group.key,
        scenario="naive",
        jobs="a+a",
        window=window.text,
        kind="work",
        device=the_group.settings["device"],
        on_top_s=60.0,
        program="program",
        called="a --epochs 5",
    )
    return the_group, dataclasses.replace(ran, **changes)


def test_a_script_with_other_packages_takes_as_long():
    the_group, same = make_script_group()
    _, packages = make_script_group(key="other packages", on_top_s=40.0)
    assert forecast([the_group], [packages, same]).words == "takes about 60 s, estimated from similar earlier groups"
    with_packages = forecast([the_group], [packages])
    words = "takes about 40 s, estimated from similar earlier groups; 1 of 1 from runs with other packages"
    assert with_packages.words == words


def test_a_script_with_other_arguments_takes_about_as_long_as_the_newest_and_it_is_named():
    the_group, newest = make_script_group(key="k3", program="p3", called="a --epochs 3", on_top_s=30.0)
    older = [dataclasses.replace(newest, called="a --epochs 50", on_top_s=500.0, key=f"k{n}") for n in range(5)]
    again = dataclasses.replace(newest, on_top_s=34.0)
    estimate = forecast([the_group], [newest, *older, again])
    assert estimate.words == (
        "takes about 32 s, estimated from similar earlier groups; "
        "1 of 1 from runs with other arguments or code: a --epochs 3"
    )
    elsewhere = [
        dataclasses.replace(newest, **change)
        for change in ({"device": "x"}, {"jobs": "a+b"}, {"scenario": "mps"}, {"window": "logged", "kind": "logged"})
    ]
    assert forecast([the_group], elsewhere).num_unknown == 1


def test_one_slow_group_and_failures_do_not_decide():
    clock = Clock()
    blocks = [group("a", block=n) for n in range(1, 6)]
    progress = Progress(blocks, clock=clock)
    for block, takes_s in zip(blocks, (20, 600, 22), strict=False):
        run(progress, clock, block, takes_s)
    run(progress, clock, blocks[3], 5000, Result.TIMEOUT)
    assert progress.estimate_left_s() == (22, True)


def test_a_skipped_group_takes_no_time_and_work_is_measured():
    clock = Clock()
    work = [group("a", kind=WindowKind.WORK, block=n) for n in (1, 2)]
    skipped = dataclasses.replace(group("c", "c", kind=WindowKind.WORK), skip_reason="does not fit")
    progress = Progress([work[0], skipped, work[1]], clock=clock)
    run(progress, clock, work[0], 42)
    assert progress.estimate_left_s() == (42, True)


def test_what_an_earlier_start_found_is_counted():
    clock = Clock()
    groups = [group("a", block=n) for n in range(1, 6)]
    progress = Progress(groups, [Result.OK, Result.OK, Result.OOM], groups[3:], clock)
    progress.begin(groups[3])
    assert progress.position(groups[3]) == "[4/5] block 4 of 5"
    clock.now_s += 15
    progress.done(Result.OK)
    assert progress.summary() == "15 s elapsed, about 15 s left; 3 ok, 1 oom"


def test_durations_read_like_people_say_them():
    assert [format_duration(s) for s in (5, 89, 420, 11_100)] == ["5 s", "89 s", "7 min", "3 h 05 min"]


def test_one_is_not_said_as_many():
    assert [format_count(number, "group") for number in (0, 1, 2)] == ["0 groups", "1 group", "2 groups"]


def test_plain_lines_say_where_the_study_is(capsys):
    clock = Clock()
    groups = [group("a"), group("a", block=2)]
    view = PlainView(Progress(groups, clock=clock))
    view.begin(groups[0])
    clock.now_s = 14
    view.done(GroupResult(group=groups[0], result=Result.OK, reason=""))
    assert capsys.readouterr().err.splitlines() == [
        "[1/2] block 1 of 2 naive-a",
        "    ok (14 s elapsed, about 14 s left; 1 ok)",
    ]


def test_a_reason_to_skip_is_said_once(capsys):
    groups = [group("a"), group("a", "a"), group("a", block=2), group("b")]
    view = PlainView(Progress(groups, clock=Clock()))
    for skipped, reason in zip(groups, ("no MIG", "no MIG", "no MIG", "no MPS"), strict=True):
        view.begin(skipped)
        view.done(GroupResult(group=skipped, result=Result.SKIPPED, reason=reason))
    lines = [line.partition(" (")[0].strip() for line in capsys.readouterr().err.splitlines()[1::2]]
    assert lines == [
        "skipped: no MIG",
        "skipped: same reason as naive-a",
        "skipped: same reason as naive-a",
        "skipped: no MPS",
    ]


@pytest.mark.parametrize("overrides", [[], ["resume=true"], ["resume=false"], ["+resume=false"]])
def test_the_command_that_goes_on_is_the_one_that_was_given(overrides):
    words = ["run.py", "-m", "mix=[M,S],[M,S,S]", *overrides]
    assert invocation.spell_resume_command(words).endswith(" run.py -m 'mix=[M,S],[M,S,S]' resume=true")
    command = ["--", "train.py", "resume=false"]
    assert invocation.spell_resume_command([*words, *command]).endswith(" resume=true -- train.py resume=false")


def test_windows_by_need_have_a_shortest_and_a_longest_time():
    window = Window(kind=WindowKind.STEADY, seconds=1, settle_s=1, most_s=10)
    pair, mix = group("a", "a", window=window), group("a", "b", window=window, sequential=True, number=2)
    words = "takes at least 9 s plus the starts of jobs: 2 of 2 groups have no similar earlier run"
    assert forecast([pair, mix], []).words == f"{words}; its windows by need take 3 s to 30 s"
    ran = PastGroup(
        key=pair.key,
        scenario="naive",
        jobs="a+a",
        window=window.text,
        kind="steady",
        device=pair.settings["device"],
        on_top_s=12.0,
    )
    words = "takes about 15 s, estimated from similar earlier groups; its windows by need take 1 s to 10 s"
    assert forecast([pair], [ran]).words == words


CAPACITY_MIB = 81559


def make_gpu_group(*names, capacity_mib: int | None = CAPACITY_MIB, **changes):
    planned = group(*names, **changes)
    return dataclasses.replace(planned, device=dataclasses.replace(planned.device, memory_mib=capacity_mib))


def row(the_group, memory_mib, result=Result.OK, **tags) -> GroupResult:
    return GroupResult(group=the_group, result=result, reason="", metrics={MEMORY_PEAK: memory_mib}, tags=tags)


def make_memory_forecast(*rows: GroupResult) -> MemoryForecast:
    forecast = MemoryForecast([])
    for measured_row in rows:
        forecast.add(measured_row)
    return forecast


def test_copies_that_do_not_fit_are_counted():
    need = make_memory_forecast(row(make_gpu_group("a", sequential=True), 13400)).forecast(make_gpu_group(*"aaaaaaa"))
    assert need is not None and not need.fits and need.needed_mib == 7 * 13400
    assert need.words == "needs 91.6 of 79.6 GiB of memory: 6 copies fit (measured: 1 job, 13.1 GiB)"
    need = make_memory_forecast(row(make_gpu_group("a", sequential=True), 60000)).forecast(make_gpu_group("a", "a"))
    assert need is not None and "1 copy fits" in need.words


def test_a_mix_needs_the_sum_of_its_jobs():
    alone = [row(make_gpu_group(name, sequential=True), mib) for name, mib in (("a", 1024), ("b", 2048))]
    need = make_memory_forecast(*alone).forecast(make_gpu_group("a", "b", "b"))
    assert need is not None and need.fits
    assert need.words == "needs 5.0 of 79.6 GiB of memory (measured: each job alone, 1.0 and 2.0 GiB)"
    assert make_memory_forecast(*alone).forecast(make_gpu_group("a", "c")) is None


@pytest.mark.parametrize(
    "of_what",
    [
        make_gpu_group("a", "a", sequential=True),
        make_gpu_group("a"),
        make_gpu_group("a", "a", scenario="mig"),
        make_gpu_group("a", "a", scenario="streams"),
        make_gpu_group("a", "a", capacity_mib=None),
    ],
    ids=["one after another", "one job", "MIG", "one process", "device without memory"],
)
def test_some_groups_have_no_forecast(of_what):
    assert make_memory_forecast(row(make_gpu_group("a", sequential=True), 1000)).forecast(of_what) is None


@pytest.mark.parametrize(
    "alone",
    [
        row(make_gpu_group("a", sequential=True), 1000, result=Result.FAILED),
        row(make_gpu_group("a", sequential=True), 1000, **{Tag.INVALID: "overlap"}),
        row(make_gpu_group("a", scenario="mps"), 1000),
        row(make_gpu_group("a", "a", sequential=True), 1000),
    ],
    ids=["failed", "invalid", "under MPS", "not alone"],
)
def test_only_a_valid_run_alone_counts(alone):
    assert make_memory_forecast(alone).forecast(make_gpu_group("a", "a")) is None


def test_the_newest_earlier_run_alone_counts_until_this_study_has_one():
    alone = dataclasses.replace(make_gpu_group("a", sequential=True), key="key of a alone")
    past = [
        PastGroup(key=key, scenario="serial", jobs="a", window="", kind="steady", device="", on_top_s=1, memory_mib=mib)
        for key, mib in (("another", 7), (alone.key, None), (alone.key, 1000), (alone.key, 2000))
    ]
    forecast = MemoryForecast([alone, make_gpu_group("a", "a")], past)
    need = forecast.forecast(make_gpu_group("a", "a"))
    assert need is not None and need.needed_mib == 2000
    forecast.add(row(alone, 1500))
    need = forecast.forecast(make_gpu_group("a", "a"))
    assert need is not None and need.needed_mib == 3000


def test_a_row_has_the_sum_of_its_jobs_alone_beside_what_was_measured():
    def make_memory_row(the_group, mib):
        jobs = tuple(
            JobResult(job=job, result=Result.OK, reason="", metrics={MEMORY_PEAK: mib}) for job in the_group.jobs
        )
        return GroupResult(group=the_group, result=Result.OK, reason="", jobs=jobs)

    comparison = Comparison()
    alone, pair = make_memory_row(group("a", sequential=True), 1364.0), make_memory_row(group("a", "a"), 1370.0)
    comparison.add(alone)
    comparison.add(pair)
    assert comparison.get_latest(pair).metrics[MEMORY_FORECAST] == 2728
    assert MEMORY_FORECAST not in comparison.get_latest(alone).metrics
    streams = make_memory_row(group("a", "a", scenario="streams"), 900.0)
    comparison.add(streams)
    assert MEMORY_FORECAST not in comparison.get_latest(streams).metrics


@pytest.mark.covers("pipeline/study/pack_trials.py")
def test_a_pack_begins_with_the_best_number_of_an_earlier_study(capsys):
    pack = group("a", "a", "a", pack=PackSettings(most=8, check_share=0.0))
    device, ran = pack.settings["device"], {"window": "", "kind": "work", "on_top_s": 1.0, "key": ""}

    def earlier(number, speedup, **changes):
        jobs = "+".join("a" * number)
        return PastGroup(**ran | {"scenario": "naive", "jobs": jobs, "device": device, "speedup": speedup} | changes)

    past = [earlier(2, 1.8), earlier(3, 2.4), earlier(3, 2.6), earlier(4, 2.55), earlier(5, 1.0)]
    unlike = [earlier(7, 9.0, scenario="mps"), earlier(7, 9.0, device="b"), earlier(2, 9.0, jobs="b+b")]
    begun = pack_trials.begin_as_known(pack, [*past, *unlike, earlier(6, None)])
    assert begun.pack is not None and begun.pack.first == 3
    assert "begins with 3 trials at a time" in capsys.readouterr().err
    assert pack_trials.begin_as_known(pack, unlike) is pack
    assert pack_trials.begin_as_known(pack, [earlier(2, 0.9)]) is pack
    assert pack_trials.begin_as_known(group("a", "b", pack=pack.pack), past).pack == pack.pack
