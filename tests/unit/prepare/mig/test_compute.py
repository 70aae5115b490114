"""Compute instances: what a list of them makes, what is refused, and that whatever fits by its sum finds room."""

from __future__ import annotations

import itertools

import pytest

from pipeline.base.domain import mig_table
from pipeline.base.system.errors import ConfigError
from pipeline.prepare.mig import compute, layouts, profiles
from pipeline.prepare.mig.profiles import MigGpu, Profile
from pipeline.simulation.machine import placement
from pipeline.simulation.machine.state_file import ComputeInstance

A100, A30, H100 = (profiles.load_model(name) for name in ("a100_40gb", "a30_24gb", "h100_80gb"))


def created_names(gpu: MigGpu, *requests: str) -> list[str]:
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
            created_names(A100, *requests)
    else:
        assert created_names(A100, *requests) == instances


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
            created_names(H100, *requests)
        message = str(caught.value)
        near = [part.strip(" []").split(",") for part in message.partition("; use ")[2].split(" or ")]
        assert len(near) == 3
        for names in near:
            assert len(names) <= len(requests)
            created_names(H100, *names)
    assert "needs the GPU instances 2g.20gb(1c+1c), 2g.20gb(1c+1c), 4g.40gb, which do not" in message


def test_every_model_divides_gpu_instances_in_the_same_way() -> None:
    for model in mig_table.models().values():
        for profile in model.profiles:
            alike = mig_table.ci_profiles(profile.compute_slices)
            assert [(p.id, p.compute_slices) for p in profile.ci_profiles] == [(p.id, p.compute_slices) for p in alike]
            # So that a sum is all that has to be compared.
            assert all(p.max_instances == profile.compute_slices // p.compute_slices for p in profile.ci_profiles)
    assert mig_table.ci_profiles(5) == ()


def lists_of(profile: Profile) -> set[tuple[int, ...]]:
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
    lists = lists_of(profile)
    assert len(lists) >= profile.compute_slices
    for parts in lists:
        order = compute.order_for_creation(parts)
        assert sorted(order) == list(range(len(parts)))
        for choose in (lambda free: free[0], min):
            existing: tuple[ComputeInstance, ...] = ()
            for position in order:
                width = parts[position]
                free = placement.free_ci_starts(model, existing, by_width[width])
                assert free, parts
                new = ComputeInstance(id=position, profile_id=by_width[width].id, start=choose(free), size=width)
                existing = (*existing, new)
