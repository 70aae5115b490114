"""The whole study of Robroek et al.: its 198 workloads, their MIG profiles and what no partition holds.

After a wanted change: `python -m pytest tests/unit/plan/test_robroek_plan.py --rewrite-golden`, and read what differs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.base.domain.records import Group, Plan
from pipeline.base.domain.window import WindowKind
from pipeline.prepare.mig import compute, layouts, profiles
from tests.conftest import DATA
from tests.support.experiments import configs_of, planned

EXPERIMENTS = {"resnet_bs128": 39, "resnet_bs32": 39, "cait": 39, "efficientnet": 39, "mixes": 42}
FIRST_VERSION = 8  # mixes with L on 3g, beside L on 4g
GPUS = ("a100_40gb", "h100_80gb")
pytestmark = pytest.mark.slow
GOLDEN = DATA / "robroek_plan_golden.txt"


def format_instances(group: Group) -> str:
    """The instance of each job and where it lies: `4g.20gb@0 1g.5gb@4`; the reason if there is no layout."""
    if group.skip_reason is not None:
        return f"skipped: {group.skip_reason.split('. Nearest')[0]}"
    if group.scenario != "mig":
        return ""
    options = dict(group.sharing.options)
    gpu = profiles.read_gpu(group.device)
    requests = layouts.list_requests(
        [job.size for job in group.jobs],
        profile=str(options["profile"]),
        size_profile=dict(options["size_profile"]),  # type: ignore[call-overload]
    )
    layout = compute.plan_layout(gpu, compute.choose(gpu, requests))
    return " ".join(f"{instance.profile.name}@{instance.start}" for instance in layout.instances)


def format_lines(plan: Plan) -> list[str]:
    """One line a group; the order within a block is random, so the lines are sorted."""
    return sorted(
        f"{plan.experiment:22s}{group.name:52s}{settings(group):18s}{format_instances(group)}".rstrip()
        for group in plan.groups
    )


def settings(group: Group) -> str:
    """Batch size of each kind of job, and the epochs."""
    sizes = dict.fromkeys(dict(job.workload.params)["batch_size"] for job in group.jobs)
    return f"bs {'/'.join(sizes)} x{group.window.epochs}"


@pytest.fixture(scope="module")
def text(write_once: Callable[..., Path]) -> str:
    return write_once("robroek_plan", lambda path: path.write_text(format_plans(), encoding="utf-8")).read_text("utf-8")


def format_plans() -> str:
    """The plans of all its experiments on both GPUs."""
    lines_by_gpu: dict[str, list[str]] = {gpu: [] for gpu in GPUS}
    for name in EXPERIMENTS:
        configs = configs_of([f"+experiment=robroek_{name}", f"gpu=simulated_{GPUS[0]}", "data.source=synthetic_files"])
        for gpu in GPUS:
            for config in configs:  # composing takes most of the time, and the GPU is a group of its own
                config.gpu.model = gpu
            with planned(configs) as plan:
                assert {group.window.kind for group in plan.groups} == {WindowKind.WORK}
                # Its figures of utilisation need a source of GRACT.
                assert all("activity" in {spec.name for spec in group.listeners} for group in plan.groups)
                lines_by_gpu[gpu] += [f"{gpu:12s}{line}" for line in format_lines(plan)]
    return "".join(f"{line}\n" for lines in lines_by_gpu.values() for line in lines)


@pytest.mark.parametrize("gpu", GPUS)
def test_there_are_198_workloads_beside_their_baselines(text, gpu):
    names = [line.split()[1:3] for line in text.splitlines() if line.startswith(gpu)]
    collocated = [experiment for experiment, name in names if not name.startswith("serial-")]
    counts = {name: collocated.count(f"robroek_{name}") for name in EXPERIMENTS}
    assert counts == EXPERIMENTS | {"mixes": EXPERIMENTS["mixes"] + FIRST_VERSION}
    assert sum(counts.values()) == 198 + FIRST_VERSION
    # One baseline a model and data set; of a mix, the mix itself one job after another.
    assert len(names) - len(collocated) == 4 * 3 + 14


@pytest.mark.parametrize("gpu", GPUS)
def test_mixes_that_need_more_slices_than_seven_are_skipped(text, gpu):
    skipped = [line.split()[2] for line in text.splitlines() if line.startswith(gpu) and "skipped:" in line]
    names = [
        "L+M+M-size_profile=M,2g,L,4g",
        "L+M+S+S-size_profile=S,1g,M,2g,L,4g",
        *(f"L+M+S+S+S-size_profile=S,1g,M,2g,L,{large}" for large in ("3g", "4g")),
    ]
    assert sorted(skipped) == sorted(f"mig-{name}" for name in names)


def test_the_plan_is_as_committed(text, request):
    if request.config.getoption("--rewrite-golden"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")
