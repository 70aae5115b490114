"""The options of the microbenchmarks: what follows from the operation, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.base.domain.records import DeviceFacts
from pipeline.base.system.errors import ConfigError
from pipeline.plan.option_loader import join
from tests.conftest import GPU
from workloads.rates.options import Micro, Operation

MICRO = ("workload=micro", "degree=1", "baseline=never")


@pytest.mark.parametrize(
    ("operation", "unit"), [("fp64_cuda", "TFLOP"), ("bf16_tensor", "TFLOP"), ("to_host", "GB"), ("launch", "launches")]
)
def test_name_and_unit_follow_from_the_operation(make_plan, operation, unit):
    (group,) = make_plan([*MICRO, f"workload.operation={operation}"]).groups
    workload = group.jobs[0].workload
    assert (workload.name, workload.work_unit) == (f"micro_{operation}", unit)
    assert workload.argv[workload.argv.index("--operation") + 1] == operation
    assert not {"--unit", "--name", "--rows"} & set(workload.argv)


def test_operations_are_axes_of_a_sweep_of_groups_with_names_of_their_own(make_plan):
    groups = make_plan([*MICRO, "workload.operation=copy"], [*MICRO, "workload.operation=triad"]).groups
    assert sorted(group.name for group in groups) == ["naive-1x-micro_copy", "naive-1x-micro_triad"]


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["workload.operation=copy", "workload.rows=16"], "rows=16 is only for matrix products"),
        (["workload.operation=bf16_tensor", "workload.rows=100"], "multiple of 16"),
        (["workload.operation=launch", "workload.array_mib=1"], "array_mib=1 has no effect with operation=launch"),
        (["workload.work_unit=samples"], "must be TFLOP, the program's work unit"),
        (["workload.steps=0"], "steps=0 must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused(make_plan, overrides, why):
    with pytest.raises(ConfigError, match=why):
        make_plan([*MICRO, *overrides])


def test_fp8_is_refused_on_a_gpu_without_it():
    workload = join(Micro(operation=Operation.fp8_tensor))
    capabilities = ((8, 0), (8, 9), (9, 0))
    ampere, ada, hopper = (dataclasses.replace(GPU, facts=DeviceFacts(compute_capability=c)) for c in capabilities)
    workload.refuse_wrong(ada, device_was_chosen=True)
    workload.refuse_wrong(hopper, device_was_chosen=True)
    with pytest.raises(ConfigError, match=r"needs compute capability 8\.9"):
        workload.refuse_wrong(ampere, device_was_chosen=True)
    older = dataclasses.replace(GPU, facts=DeviceFacts(compute_capability=(7, 5)))
    with pytest.raises(ConfigError, match=r"needs compute capability 8\.0"):
        join(Micro(operation=Operation.tf32_tensor)).refuse_wrong(older, device_was_chosen=True)


def test_particles_have_four_or_six_dimensions(make_plan):
    with pytest.raises(ConfigError, match="must be one of 4, 6"):
        make_plan(["workload=particles", "degree=1", "workload.dimensions=5"])
