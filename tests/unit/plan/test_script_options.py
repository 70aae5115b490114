"""The options of users' scripts: what each makes of the plan, and what is refused."""

from __future__ import annotations

import os
import shlex

import pytest

from pipeline.base.domain.window import WindowKind
from pipeline.base.domain.workload import RateSource
from pipeline.base.system import user_command
from pipeline.base.system.errors import ConfigError
from tests.conftest import GPU

PATTERN = 'workload.metric_pattern="([0-9.]+) samples/s"'


@pytest.fixture
def plan_script(make_plan, tmp_path, monkeypatch):
    """Plan one group of a script."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return lambda *overrides: make_plan(["workload=script", "workload.script=train.py", *overrides])


@pytest.mark.parametrize(
    ("overrides", "rate", "kind"),
    [
        ([], RateSource(), WindowKind.WORK),
        (["workload.samples=9"], RateSource(samples=9), WindowKind.WORK),
        (["workload.metric=a/b", "workload.work_unit=steps"], RateSource(metric="a/b"), WindowKind.LOGGED),
        ([PATTERN], RateSource(pattern="([0-9.]+) samples/s"), WindowKind.LOGGED),
        ([PATTERN, "window=work"], RateSource(pattern="([0-9.]+) samples/s"), WindowKind.WORK),
    ],
)
def test_where_samples_per_second_come_from_decides_the_window(plan_script, overrides, rate, kind):
    plan = plan_script(*overrides)
    (group,) = plan.groups
    assert group.jobs[0].workload.rate == rate
    assert group.window.kind is kind
    assert ("with start-up" in " ".join(plan.notes)) == (kind is WindowKind.WORK and "window=work" not in overrides)
    assert not {"--metric", "--samples", "--metric-pattern", "--run-in"} & set(group.jobs[0].workload.argv)


@pytest.mark.parametrize(
    ("overrides", "unit"),
    [
        ([], ""),
        ([PATTERN], ""),
        (["workload.samples=9"], "samples"),
        ([PATTERN, "workload.metric_unit=ms_per_step"], "steps"),
        ([PATTERN, "workload.metric_unit=per_day", "workload.work_unit=ns"], "ns"),
        ([PATTERN, "workload.metric_unit=ns_per_day", "workload.work_unit=us"], "us"),
    ],
)
def test_nothing_is_called_samples_unless_the_user_says_so(plan_script, overrides, unit):
    workload = plan_script(*overrides).groups[0].jobs[0].workload
    assert workload.work_unit == unit
    assert dict(workload.params).get("work_unit", "") == unit


def test_what_a_script_is_measured_by_makes_another_group(plan_script):
    plans = [plan_script(*overrides) for overrides in ([], ["workload.samples=9"], ["workload.run_in=job_folder"])]
    assert len({plan.groups[0].digest for plan in plans}) == 3
    assert [plan.groups[0].jobs[0].workload.is_in_own_folder for plan in plans] == [False, False, True]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["workload.args=['--out={outdir}']"], r"\{outdir\} is not a placeholder"),
        (["workload.samples=9", "workload.metric=a"], "samples and metric both set"),
        (["workload.samples=0"], "at least 1"),
        (["workload.metric=' '"], "metric is empty"),
        (["workload.metric=train/speed"], "the number has no unit of work; set workload.work_unit"),
        (["workload.metric=its_per_s", "workload.work_unit=samples"], "counts iterations, not samples"),
        ([PATTERN, "workload.metric_unit=ms_per_step", "workload.work_unit=samples"], "counts steps, not samples"),
        (["workload.metric_pattern='(a'"], "not a regular expression"),
        (["workload.metric_pattern='a'"], "has 0 groups"),
        (["window.kind=LOGGED"], "window=work"),
    ],
)
def test_what_cannot_be_is_refused(plan_script, overrides, words):
    with pytest.raises(ConfigError, match=words):
        plan_script(*overrides)


DOCKER = "docker run --rm --gpus all image python train.py"
HANDED_ON = 'DEVICE=$CUDA_VISIBLE_DEVICES\ndocker run --ipc=host \\\n  --gpus "device=$DEVICE" image python train.py\n'


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (DOCKER, "gets neither the job's device nor its MPS server.* env=apptainer"),
        (f"/usr/bin/time {DOCKER.replace('docker', '/opt/bin/podman')}", "neither the job's device"),
        (f'bash -c "cd x && {DOCKER}"', "neither the job's device"),
        ("bash bare.sh", "neither the job's device"),
        ("singularity exec train.sif python train.py", "add --nv"),
        ("apptainer run --nv --cleanenv train.sif python train.py", "clear the variables"),
        ("apptainer exec --nv -e train.sif python train.py", "clear the variables"),
        ("singularity exec --nv -C train.sif python train.py", "clear the variables"),
        ("apptainer exec --nv train.sif python train.py -e 3", None),
        ('python docker_train.py --note "see docker run docs"', None),
        ("srun --gpus=1 python train.py", "hydra/launcher=slurm"),
        ("conda run -n mine python train.py", None),
        ("apptainer run --nv train.sif python train.py", None),
        ("python docker_train.py run fast", None),
        ("bash handed_on.sh", None),
        ("bash commented.sh", None),
        ("bash pipe.sh", None),
    ],
)
def test_a_command_that_keeps_the_device_from_its_job_is_refused(make_plan, tmp_path, monkeypatch, command, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bare.sh").write_text(f"#!/bin/bash\n# $CUDA_VISIBLE_DEVICES\n{DOCKER}\n")
    (tmp_path / "handed_on.sh").write_text(HANDED_ON)
    (tmp_path / "commented.sh").write_text(f"#!/bin/bash\npython train.py  # was: {DOCKER}\n")
    os.mkfifo(tmp_path / "pipe.sh")
    (tmp_path / "docker_train.py").write_text("")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("docker", "singularity", "apptainer", "srun", "conda"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    script, args = user_command.parse_program(shlex.split(command), "the command line")
    overrides = [
        "workload=script",
        f"workload.script={script}",
        user_command.make_override("workload.args", shlex.join(args)),
    ]
    if words is None:
        assert make_plan(overrides, device=GPU)
    else:
        with pytest.raises(ConfigError, match=words):
            make_plan(overrides, device=GPU)
        assert make_plan(overrides)


def test_rates_are_not_read_from_output_that_conda_keeps_until_its_end(plan_script):
    buffered_words = ["workload.script=bash", "workload.args='-c \"cd x; conda run -n mine python train.py\"'"]
    streamed = [word.replace("conda run", "conda run --live-stream") for word in buffered_words]
    assert plan_script(*streamed, PATTERN)
    with pytest.raises(ConfigError, match=r"conda run prints the output at its end.*--no-capture-output"):
        plan_script(*buffered_words, PATTERN)
