"""The export for Slurm: its lines configure a real Slurm with made-up devices, on which its commands run as planned."""

from __future__ import annotations

import itertools
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.planner.deployment import GROUPS_PER_GPU, Gpu
from tests.support import slurm_cluster
from tests.support.plans import H100, instance, plan_of
from tests.support.servers import refuse_or_skip
from tests.support.waiting import wait_until
from tests.unit.planner.export.test_export import export, make_divided_gpu, refuse

LIMITED = Gpu(
    model=H100,
    mode="mps",
    instances=(
        instance(None, None, "infer_tiny", 60.0, processes=2, share_pct=33.33),
        instance(None, None, "infer_tiny_text", 30.0, share_pct=30.0),
    ),
)
NAIVE = replace(
    LIMITED,
    mode="naive",
    instances=(instance(None, None, "infer_tiny", 30.0, processes=2), instance(None, None, "infer_tiny_text", 30.0)),
)
ALONE = replace(LIMITED, instances=(instance(None, None, "infer_tiny", 30.0, processes=2),))
SERIAL = replace(LIMITED, mode="naive", instances=(instance(None, None, "infer_tiny_text"),))
WHOLE_TYPE = "gpu:nvidia_h100_80gb_hbm3"
SERVICES = plan_of(make_divided_gpu(), LIMITED, NAIVE, ALONE)
TRAINING = replace(plan_of(ALONE, SERIAL), services=(), details={GROUPS_PER_GPU: [2]})


def read_lines(script: str, file: str) -> list[str]:
    """Return the lines of a file of Slurm's configuration in an export."""
    return re.findall(rf"^# {file}: (.*)$", script, re.MULTILINE)


def make_up_devices(script: str, folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return the resources of each node, and lines of gres.conf with device files instead of NVML's devices."""
    gres = dict(re.findall(r"^NodeName=(\S+) Gres=(\S+)$", "\n".join(read_lines(script, "slurm.conf")), re.MULTILINE))
    lines = []
    for node, resources in gres.items():
        shared = [line for line in read_lines(script, "gres.conf") if line.startswith(f"NodeName={node} Name=")]
        undivided = [line.rpartition("/nvidia")[2] for line in shared]
        numbers = itertools.count(4)
        for type_name, count in re.findall(r"gpu:([^:,]+):(\d+)", resources):
            for _ in range(int(count)):
                number = undivided.pop() if undivided and f"gpu:{type_name}" == WHOLE_TYPE else next(numbers)
                lines.append(f"NodeName={node} Name=gpu Type={type_name} File={folder}/dev/nvidia{number}")
        lines += [line.replace("/dev/", f"{folder}/dev/") for line in shared]
    return gres, lines


def test_a_plan_is_lines_of_slurm_and_a_command_for_each_job(tmp_path: Path, capsys) -> None:
    assert export(tmp_path, SERVICES, "slurm", "--gpus-per-node", "2") == 0
    script = capsys.readouterr().out
    assert read_lines(script, "slurm.conf") == [
        "GresTypes=gpu,mps,shard",
        f"NodeName=mine-1 Gres=gpu:3g.40gb:1,gpu:2g.20gb:1,gpu:1g.10gb:1,{WHOLE_TYPE}:1,mps:100",
        f"NodeName=mine-2 Gres={WHOLE_TYPE}:2,shard:2",
    ]
    assert read_lines(script, "gres.conf") == [
        "NodeName=mine-1 AutoDetect=nvml",
        "NodeName=mine-1 Name=mps Count=100 File=/dev/nvidia1",
        "NodeName=mine-2 AutoDetect=nvml",
        "NodeName=mine-2 Name=shard Count=2 File=/dev/nvidia0",
    ]
    first, *commands = re.findall(r"^sbatch .*$", script, re.MULTILINE)
    assert first == (
        "sbatch --job-name=infer-tiny --gres=gpu:3g.40gb:1 --export=ALL,PROCESSES=3,BATCH_SIZE=8,RATE_PER_S=8.18182 "
        "infer-tiny.sh"
    )
    requests = Counter(re.findall(r"--gres=(\S+)", "\n".join(commands)))
    assert requests == {
        "gpu:2g.20gb:1": 1,
        "gpu:1g.10gb:1": 1,
        "mps:33": 2,
        "mps:30": 1,
        "shard:1": 2,
        f"{WHOLE_TYPE}:1": 1,
    }


@pytest.mark.parametrize(
    ("gpu", "message"),
    [
        (
            replace(LIMITED, instances=(instance(None, None, "a"), instance(None, None, "b"))),
            "a shares a GPU under MPS without share_pct, which Slurm needs",
        ),
        (
            replace(LIMITED, instances=(instance(None, None, "a", processes=2, share_pct=60.0),)),
            "the MPS shares of GPU 0 sum to 120 %, but Slurm grants 100; use --as dra",
        ),
        (Gpu(model=H100, instances=(instance("1g.10gb+me", 0),)), "Slurm does not tell 1g.10gb+me from 1g.10gb"),
    ],
)
def test_a_share_that_slurm_lacks_is_refused(tmp_path: Path, capsys, gpu: Gpu, message: str) -> None:
    assert message in refuse(tmp_path, capsys, plan_of(gpu), "slurm")


def test_groups_in_turn_need_one_layout(tmp_path: Path, capsys) -> None:
    small = Gpu(model=H100, instances=(instance("1g.10gb", 0), instance("1g.10gb", 1)))
    undivided = Gpu(model=H100, instances=(instance("7g.80gb", 0),))
    plan = replace(plan_of(undivided, small), details={GROUPS_PER_GPU: [2]})
    for kind in ("slurm", "mig-parted"):
        assert "GPU 0 changes its MIG layout between groups" in refuse(tmp_path, capsys, plan, kind)
    large = Gpu(model=H100, instances=(instance("3g.40gb", 0),))
    assert export(tmp_path, replace(plan_of(large, small), details={GROUPS_PER_GPU: [2]}), "slurm") == 0
    assert read_lines(capsys.readouterr().out, "slurm.conf")[1] == "NodeName=mine Gres=gpu:3g.40gb:1,gpu:1g.10gb:2"


@pytest.mark.slow
@refuse_or_skip(slurm_cluster.missing())
def test_slurm_runs_the_jobs_of_a_plan_together_and_groups_in_turn(tmp_path: Path, capsys) -> None:
    for name in ("infer-tiny", "infer-tiny-text"):
        (tmp_path / f"{name}.sh").write_text(f"#!/bin/sh\nenv > {tmp_path}/$SLURM_JOB_ID.env\nsleep 300\n")
    assert export(tmp_path, SERVICES, "slurm", "--gpus-per-node", "2") == 0
    script = capsys.readouterr().out
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        gres, lines = make_up_devices(script, Path(name))
        with slurm_cluster.configured_cluster(
            Path(name), gres, lines, 16, gres_types="gpu,mps,shard", cpus=16
        ) as cluster:

            def submit(text: str) -> None:
                argv = ["/bin/sh", "-e", "-c", text]
                subprocess.run(argv, cwd=tmp_path, env=cluster.environ, check=True, timeout=60)

            def list_states() -> Counter[str]:
                return Counter(cluster.ask("squeue", "--noheader", "--format=%t/%r").split())

            submit(script)
            wait_until(lambda: list_states() == {"R/None": 9} and len([*tmp_path.glob("*.env")]) == 9, 60)
            environs = [dict(re.findall(r"^(\w+)=(.*)$", path.read_text(), re.M)) for path in tmp_path.glob("*.env")]
            shares = Counter(environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") for environ in environs)
            assert shares == {None: 6, "33": 2, "30": 1}
            assert Counter(environ["PROCESSES"] for environ in environs) == {"1": 6, "2": 2, "3": 1}
            cluster.tell("scancel", "--user=root")
            wait_until(lambda: not list_states(), 60)
            assert export(tmp_path, TRAINING, "slurm") == 0
            submit(capsys.readouterr().out)
            wait_until(lambda: list_states() == {"R/None": 1, "PD/Dependency": 1}, 60)
            cluster.tell("scancel", "--name=infer-tiny")
            wait_until(lambda: list_states() == {"R/None": 1}, 60)
