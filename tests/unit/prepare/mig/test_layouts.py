"""MIG layouts: which are legal, where instances lie, and how GPU instances are divided into compute instances."""

from __future__ import annotations

import itertools
import json
import random
import time
from dataclasses import replace
from typing import Any

import pytest

from pipeline.base.domain import mig_table
from pipeline.base.system.errors import ConfigError
from pipeline.gpu.__main__ import main
from pipeline.prepare.mig import compute, layouts, profiles
from pipeline.prepare.mig.layouts import Layout
from pipeline.prepare.mig.profiles import MigGpu, Profile
from pipeline.simulation.machine import queries
from pipeline.simulation.machine.state_file import ComputeInstance
from tests.support import forks

MODELS = tuple(mig_table.models())
A100 = profiles.load_model("a100_40gb")
A100_R470 = profiles.load_model("a100_40gb", driver_branch=470)
A30 = profiles.load_model("a30_24gb")
RTX = profiles.load_model("rtxpro6000_96gb")


def resolve_all(gpu: MigGpu, *requests: str) -> list[Profile]:
    return [layouts.resolve(gpu, request) for request in requests]


def check(gpu: MigGpu, layout: Layout) -> None:
    """The rules of placement, restated on sets of slices."""
    taken = [{*range(instance.start, instance.start + instance.profile.memory_slices)} for instance in layout.instances]
    assert len(set().union(*taken)) == sum(map(len, taken)), "instances overlap"
    assert all(instance.start in instance.profile.starts for instance in layout.instances)
    assert sum(instance.profile.compute_slices for instance in layout.instances) <= gpu.compute_slices


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_the_counts_of_its_family_at_once(name: str) -> None:
    gpu = profiles.load_model(name)
    layouts._find_first_placements.cache_clear()
    begin = time.process_time()
    listed = layouts.list_maximal_combinations(gpu), layouts.list_maximal_layouts(gpu)
    assert time.process_time() - begin < 1
    assert tuple(map(len, listed)) == {2: (2, 2), 4: (4, 5), 7: (12, 19)}[gpu.compute_slices]


def test_before_r510_the_two_halves_do_not_coexist() -> None:
    lost = set(layouts.list_maximal_combinations(A100)) - set(layouts.list_maximal_combinations(A100_R470))
    assert lost == {("3g.20gb", "4g.20gb")}
    assert len(layouts.list_maximal_combinations(A100_R470)) == 11
    assert len(layouts.list_maximal_layouts(A100_R470)) == 18
    with pytest.raises(ConfigError, match="4g and 3g together need a driver of branch 510 or later, not 470"):
        layouts.plan_layout(A100_R470, resolve_all(A100_R470, "4g", "3g"))
    for branch in (510, 580):
        gpu = replace(A100, driver_branch=branch)
        assert layouts.place(gpu, resolve_all(gpu, "4g", "3g")) is not None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_every_maximal_combination_is_placed_by_the_rules_and_in_the_order_of_the_jobs(name: str) -> None:
    gpu = profiles.load_model(name)
    pool = (*layouts.list_plain_profiles(gpu), next(p for p in gpu.profiles if p.suffix.startswith("+me")))
    shuffle = random.Random(0).shuffle
    for names in layouts.list_maximal_combinations(gpu, pool):
        requested = resolve_all(gpu, *names)
        shuffle(requested)
        layout = layouts.plan_layout(gpu, requested)
        assert [(i.job, i.profile) for i in layout.instances] == list(enumerate(requested))
        check(gpu, layout)
        created = layout.creation_order
        assert sorted(i.job for i in created) == list(range(len(requested)))
        sizes = [i.profile.memory_slices for i in created]
        assert sizes == sorted(sizes, reverse=True)
        assert layouts.explain_illegal(gpu, requested) is None


def test_the_order_of_the_jobs_changes_neither_legality_nor_the_places() -> None:
    """Created in the order 1g, 1g, 2g, 3g without places, the driver of an A100 refuses the last."""
    seen = set()
    for order in set(itertools.permutations(("1g", "1g", "2g", "3g"))):
        layout = layouts.plan_layout(A100, resolve_all(A100, *order))
        seen.add(tuple((i.profile.name, i.start) for i in layout.creation_order))
    assert seen == {(("3g.20gb", 4), ("2g.10gb", 0), ("1g.5gb", 2), ("1g.5gb", 3))}


def test_twelve_slices_of_memory_for_four_of_compute() -> None:
    layout = layouts.plan_layout(RTX, resolve_all(RTX, "1g", "2g", "1g"))
    assert [(i.start, i.profile.memory_slices) for i in layout.creation_order] == [(0, 6), (6, 3), (9, 3)]
    assert [i.profile.name for i in layout.instances] == ["1g.24gb", "2g.48gb", "1g.24gb"]


@pytest.mark.parametrize(
    ("gpu", "requests", "reason"),
    [
        (A100, ["3g", "3g", "1g"], "9 memory slices, but there are 8"),
        (A100, ["3g", "2g", "2g", "1g"], "8 compute slices, but there are 7"),
        (A100, ["4g", "4g"], "2 instances of 4g.20gb, but the driver allows 1"),
        (A100, ["1g.5gb+me", "1g.5gb+me"], "2 instances of 1g.5gb+me, but the driver allows 1"),
        (
            A30,
            ["1g.6gb+me", "2g.12gb+me"],
            "2 JPEG decoders of 1g.6gb+me and 2g.12gb+me, but the GPU has 1",
        ),
        (RTX, ["1g.24gb+me", "1g.24gb+me.all"], "5 video decoders of 1g.24gb+me and 1g.24gb+me.all, but the GPU has 4"),
        (RTX, ["1g.24gb+me.all", "1g"], "5 video decoders of 1g.24gb+me.all and 1g.24gb, but the GPU has 4"),
        (RTX, ["1g.24gb+gfx", "1g.24gb+me.all"], "5 video decoders of 1g.24gb+gfx and 1g.24gb+me.all"),
        (RTX, ["2g", "2g", "1g"], "5 compute slices, but there are 4"),
    ],
)
def test_an_illegal_layout_is_refused_with_its_reason_and_legal_ones(
    gpu: MigGpu, requests: list[str], reason: str
) -> None:
    requested = resolve_all(gpu, *requests)
    assert layouts.place(gpu, requested) is None
    assert reason in str(layouts.explain_illegal(gpu, requested))
    near = layouts.find_nearest(gpu, requested)
    assert len(near) >= 2
    for names in near:
        assert len(names) == len(requested)
        check(gpu, layouts.plan_layout(gpu, resolve_all(gpu, *names)))
    with pytest.raises(ConfigError) as refused:
        layouts.plan_layout(gpu, requested)
    assert reason in str(refused.value)
    assert f"; use [{','.join(near[0])}] or" in str(refused.value)


def test_the_nearest_layouts_change_least_and_keep_the_order_of_the_jobs() -> None:
    near = layouts.find_nearest(A100, resolve_all(A100, "1g", "3g", "3g"))
    assert near[0] == ("1g.5gb", "3g.20gb", "2g.10gb")
    assert near[1] == ("1g.5gb", "4g.20gb", "2g.10gb")
    assert layouts.find_nearest(A100, resolve_all(A100, "4g", "4g"))[0] == ("4g.20gb", "3g.20gb")
    assert layouts.find_nearest(A100, resolve_all(A100, *["1g"] * 8)) == (("1g.5gb",) * 7,)
    assert layouts.find_nearest(A100, resolve_all(A100, "3g", "2g"), limit=1) == (("3g.20gb", "2g.10gb"),)


def test_media_engines_go_to_one_instance_and_others_do_without() -> None:
    for requests in (["1g.24gb+me.all", "1g.24gb-me", "2g.48gb-me"], ["1g.24gb+me", "1g", "1g.24gb+gfx", "1g.24gb-me"]):
        check(RTX, layouts.plan_layout(RTX, resolve_all(RTX, *requests)))


def test_slices_that_suffice_and_still_leave_no_place() -> None:
    """No GPU of the table gets there with plain limits, but the driver's placements are not ours to guess."""
    common = {"max_instances": 2, "multiprocessors": None, "memory_mib": None, "compute_slices": 1, "engines": ()}
    wide = Profile(name="1g.20gb", profile_id=1, memory_slices=2, starts=(1,), **common)
    narrow = Profile(name="1g.10gb", profile_id=2, memory_slices=1, starts=(1, 2), **common)
    gpu = MigGpu(name="made up", compute_slices=4, memory_slices=4, multiprocessors=None, profiles=(narrow, wide))
    assert layouts.place(gpu, [narrow, wide]) is None
    places = "1g.20gb needs 2, beginning at slice 1; 1g.10gb needs 1, beginning at slice 1, 2"
    reason = f"the 4 memory slices have no room for all of them ({places})"
    assert reason in str(layouts.explain_illegal(gpu, [narrow, wide]))
    assert layouts.find_nearest(gpu, [narrow, wide]) == (("1g.10gb", "1g.10gb"),)


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (A100, ["7g.40gb", "3g.20gb", "2g.10gb", "1g.10gb", "1g.5gb", "1g.5gb", "1g.5gb"]),
        (A30, ["4g.24gb", "2g.12gb", "1g.6gb", "1g.6gb"]),
        (RTX, ["4g.96gb", "2g.48gb", "1g.24gb", "1g.24gb"]),
    ],
)
def test_auto_takes_the_largest_profile_that_fits_as_often_as_there_are_jobs(gpu: MigGpu, expected: list[str]) -> None:
    most = len(expected)
    assert [layouts.choose_auto_profile(gpu, degree).name for degree in range(1, most + 1)] == expected
    with pytest.raises(ConfigError, match=f"{most + 1} MIG instances do not fit on .*; use at most {most}"):
        layouts.choose_auto_profile(gpu, most + 1)


def test_a_request_names_slices_or_a_profile() -> None:
    requests = ("1g", "1g.10gb", "1g.5gb+me", "3G", " 7g.40gb ")
    assert [p.name for p in resolve_all(A100, *requests)] == ["1g.5gb", "1g.10gb", "1g.5gb+me", "3g.20gb", "7g.40gb"]
    for unknown in ("5g", "1g.20gb", "", "19"):
        with pytest.raises(ConfigError, match=f"A100-SXM4-40GB has no MIG profile '{unknown}'; choose from .*3g.20gb"):
            layouts.resolve(A100, unknown)


def test_a_list_wins_over_one_profile_over_the_sizes_over_auto() -> None:
    def choose_names(*sizes: str | None, **options: Any) -> list[str]:
        return [profile.name for profile in compute.choose(A100, layouts.list_requests(sizes, **options))]

    assert choose_names(None, None, None) == ["2g.10gb"] * 3
    assert choose_names("L", "S", "M") == ["3g.20gb", "1g.5gb", "2g.10gb"]
    assert choose_names("L", "S", size_profile={"S": "1g", "L": "4g"}) == ["4g.20gb", "1g.5gb"]
    assert choose_names("L", "S", profile="2g") == ["2g.10gb"] * 2
    assert choose_names("L", "S", profile="2g", profiles=["1g", "3g"]) == ["1g.5gb", "3g.20gb"]
    with pytest.raises(
        ConfigError, match=r"scenario\.profiles names 1 MIG profile \(1g\) for 2 jobs; name one for each job"
    ):
        choose_names(None, None, profiles=["1g"])
    with pytest.raises(ConfigError, match="size XL has no MIG profile"):
        choose_names("S", "XL")


def test_the_command_lists_combinations_and_their_number() -> None:
    command = ["-m", "pipeline.gpu", "partitions", "--gpu", "simulated_rtxpro6000_96gb", "--json"]
    done = forks.run(*command)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "gpu": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "count": 4,
        "combinations": [["1g.24gb"] * 4, ["1g.24gb", "1g.24gb", "2g.48gb"], ["2g.48gb", "2g.48gb"], ["4g.96gb"]],
        "num_layouts": 5,
    }


def test_the_command_counts_double_memory_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    counts = []
    for flags in ([], ["--double-memory"]):
        assert main(["partitions", "--gpu", "simulated_a100_40gb", *flags]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1].startswith(f"{len(lines) - 2} combinations")
        counts.append(len(lines) - 2)
    assert counts == [12, 28]


@pytest.mark.parametrize("name", ["a30_24gb", "a100_40gb", "rtxpro6000_96gb"])
def test_instances_are_placed_around_those_that_stay_wherever_there_is_room(name: str) -> None:
    """Every choice of what stays of an arrangement, against all arrangements of one profile more."""
    gpu = profiles.load_model(name)
    pool = layouts.list_slice_profiles(gpu)
    arrangements = {frozenset(placed) for placed in layouts._iterate_arrangements(gpu, pool)}
    num_refused = 0
    for placed in arrangements:
        for new in pool:
            fits = {
                start for start in new.starts if (new, start) not in placed and placed | {(new, start)} in arrangements
            }
            layout = layouts.place(gpu, [new], tuple(placed))
            assert (layout is not None) == bool(fits), (placed, new)
            assert layout is None or layout.instances[0].start in fits
            num_refused += layout is None
    assert num_refused > 10
    for placed in arrangements:
        for stays in itertools.chain.from_iterable(itertools.combinations(placed, n) for n in range(1, len(placed))):
            rest = placed - set(stays)
            layout = layouts.place(gpu, [profile for profile, _ in rest], tuple(stays))
            assert layout is not None
            assert layouts.explain_misplaced(gpu, (*stays, *((i.profile, i.start) for i in layout.instances))) is None


@pytest.mark.parametrize("name", ["a30_24gb", "a100_40gb", "rtxpro6000_96gb"])
def test_instances_at_starts_are_legal_exactly_where_an_arrangement_has_them(name: str) -> None:
    gpu = profiles.load_model(name)
    pool = layouts.list_slice_profiles(gpu)
    arrangements = {frozenset(placed) for placed in layouts._iterate_arrangements(gpu, pool)}
    options = [(profile, start) for profile in pool for start in range(gpu.memory_slices)]
    for count in (1, 2, 3):
        for chosen in itertools.combinations(options, count):
            assert (layouts.explain_misplaced(gpu, chosen) is None) == (frozenset(chosen) in arrangements), chosen


H100 = profiles.load_model("h100_80gb")


def list_created(gpu: MigGpu, *requests: str) -> list[str]:
    """The GPU instances that a list makes, each with its parts."""
    layout = compute.plan_layout(gpu, [compute.resolve(gpu, request) for request in requests])
    return [str(instance) for instance in layout.instances]


@pytest.mark.parametrize(
    ("requests", "instances"),
    [
        (("1c.3g.20gb", "2c.3g.20gb"), ["3g.20gb(1c+2c)"]),
        (("1c.3g", "2c.3g", "2c.3g"), ["3g.20gb(1c+2c)", "3g.20gb(2c)"]),
        (("2c.3g", "2c.3g"), ["3g.20gb(2c)", "3g.20gb(2c)"]),
        (("1c.3g", "1g", "2c.3g"), None),
        (("1c.2g", "1g", "1C.2g"), ["2g.10gb(1c)", "1g.5gb", "2g.10gb(1c)"]),
        (("1c.4g", "1c.3g", "2c.4g"), None),
        (("1c.4g", "2c.4g", "1c.3g"), ["4g.20gb(1c+2c)", "3g.20gb(1c)"]),
        (("3c.7g", "2c.7g", "2c.7g"), ["7g.40gb(3c+2c+2c)"]),
        (("1g", "3g"), ["1g.5gb", "3g.20gb"]),
    ],
)
def test_parts_of_one_profile_that_follow_each_other_fill_a_gpu_instance(requests, instances) -> None:
    if instances is None:
        with pytest.raises(ConfigError, match="do not fit on NVIDIA A100"):
            list_created(A100, *requests)
    else:
        assert list_created(A100, *requests) == instances


def test_the_devices_are_in_the_order_of_the_jobs_and_what_is_idle_is_counted() -> None:
    requests = ("1g", "2c.3g", "1c.3g", "1c.2g")
    layout = compute.plan_layout(A100, [compute.resolve(A100, request) for request in requests])
    names = [name for instance in layout.instances for name in instance.device_names]
    assert names == ["1g.5gb", "2c.3g.20gb", "1c.3g.20gb", "1c.2g.10gb"]
    assert compute.count_idle_slices(A100, layout) == 2  # one of the GPU, one of the 2g


@pytest.mark.parametrize(
    ("gpu", "request_", "says"),
    [
        (A100, "4c.3g.20gb", "a 3g.20gb has 3 compute slices; choose among 1c.3g.20gb, 2c.3g.20gb, 3g.20gb"),
        (A100, "3c.3g", "no compute instance '3c.3g'"),
        (A100, "3c.4g", "choose among 1c.4g.20gb, 2c.4g.20gb, 4g.20gb"),
        (A100, "1c.1g", "a 1g.5gb has 1 compute slice; choose among 1g.5gb"),
        (A100, "0c.2g", "no compute instance '0c.2g'"),
        (H100, "1c.3g.20gb", "has no MIG profile '3g.20gb'; .*nearest to 1c.3g.20gb: 1c.3g.40gb"),
        (A100, "1c.5g", "has no MIG profile '5g'"),
        (A100, "1c.", "has no MIG profile '1c.'"),
        (A30, "1c.3g", "has no MIG profile '3g'"),
    ],
)
def test_what_the_gpu_does_not_have_is_refused_with_what_it_has(gpu: MigGpu, request_: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        compute.resolve(gpu, request_)
    assert "\n" not in str(caught.value)


def test_what_does_not_fit_is_refused_with_lists_that_do() -> None:
    lists = (
        "1c.3g,2c.3g,3g,1g",
        "1c.3g,1c.3g,1c.3g,2c.3g,2c.3g",
        ",".join(["1c.3g"] * 7),
        "2c.4g,2c.4g,1c.4g",
        "1g,1g,3c.7g,3c.7g,1c.7g",
        "1c.2g,1c.2g,1c.2g,1c.2g,4g",
    )
    for names_text in lists:
        requests = names_text.split(",")
        with pytest.raises(ConfigError, match="do not fit on") as caught:
            list_created(H100, *requests)
        message = str(caught.value)
        near = [part.strip(" []").split(",") for part in message.partition("; use ")[2].split(" or ")]
        assert len(near) == 3
        for names in near:
            assert len(names) <= len(requests)
            list_created(H100, *names)
    assert "needs the GPU instances 2g.20gb(1c+1c), 2g.20gb(1c+1c), 4g.40gb, which do not" in message


def test_every_model_divides_gpu_instances_in_the_same_way() -> None:
    for model in mig_table.models().values():
        for profile in model.profiles:
            alike = mig_table.ci_profiles(profile.compute_slices)
            assert [(p.id, p.compute_slices) for p in profile.ci_profiles] == [(p.id, p.compute_slices) for p in alike]
            # So that a sum is all that has to be compared.
            assert all(p.max_instances == profile.compute_slices // p.compute_slices for p in profile.ci_profiles)
    assert mig_table.ci_profiles(5) == ()


def list_parts(profile: Profile) -> set[tuple[int, ...]]:
    """Every list of parts that fits by its sum."""
    possible = compute.list_widths(profile)
    lists = (
        parts for count in range(1, profile.compute_slices + 1) for parts in itertools.product(possible, repeat=count)
    )
    return {parts for parts in lists if sum(parts) <= profile.compute_slices}


@pytest.mark.parametrize("name", ["2g", "3g", "4g", "7g"])
def test_whatever_fits_by_its_sum_finds_room_in_the_order_of_creation(name: str) -> None:
    """By the simulated driver, which aligns a part to its width, and if the first free slice is taken."""
    profile = layouts.resolve(H100, name)
    model = mig_table.find("h100_80gb").profile(profile.profile_id)
    by_width = {ci_profile.compute_slices: ci_profile for ci_profile in model.ci_profiles}
    lists = list_parts(profile)
    assert len(lists) >= profile.compute_slices
    for parts in lists:
        order = compute.order_for_creation(parts)
        assert sorted(order) == list(range(len(parts)))
        for choose in (lambda free: free[0], min):
            existing: tuple[ComputeInstance, ...] = ()
            for position in order:
                width = parts[position]
                free = queries.free_ci_starts(model, existing, by_width[width])
                assert free, parts
                new = ComputeInstance(id=position, profile_id=by_width[width].id, start=choose(free), size=width)
                existing = (*existing, new)
