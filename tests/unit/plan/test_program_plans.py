"""Options of programs, scripts, services and stressors as plans have them, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from pathlib import Path

import pytest

from pipeline.base.domain.machine_state import cpu_device
from pipeline.base.domain.records import DeviceFacts
from pipeline.base.domain.window import WindowKind
from pipeline.base.domain.workload import RateSource
from pipeline.base.system import user_command
from pipeline.base.system.errors import ConfigError
from pipeline.plan import config_reader
from pipeline.plan.job_entries import refuse_unread
from pipeline.plan.option_loader import join
from pipeline.plan.workload_config import WorkloadConfig
from pipeline.prepare.env import current
from tests.conftest import GPU
from tests.support.programs import write_script
from workloads.model_options import DataSource, StepMode
from workloads.rates.options import Micro, Operation
from workloads.text.options import Task, TextModel, TrainText

CPU = cpu_device()


def make_text_config(**changes: object) -> WorkloadConfig:
    values = {"model": TextModel.bert, "num_classes": 4, "sequence_tokens": 128, "batch_size": 8}
    return join(TrainText(**(values | changes)))  # type: ignore[arg-type]


def get_refusal(config: WorkloadConfig, device=GPU) -> str:
    with pytest.raises(ConfigError) as caught:
        planned = config.complete()
        planned.refuse_wrong(device, device_was_chosen=False)
        planned.refuse_missing_data()
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    folder.mkdir()
    config = {"model_type": "bert", "hidden_size": 384, "max_position_embeddings": 256}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def write_texts(root: Path, *classes: str) -> Path:
    for name in classes:
        (root / "news" / name).mkdir(parents=True)
        (root / "news" / name / "1.txt").write_text("text")
    return root


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_tokens": 513}, "sequence_tokens=513 is more than the 512 positions of the model"),
        ({"model_args": {"max_position_embeddings": 64}}, "more than the 64 positions"),
        ({"model": TextModel.gpt2}, "task=classification does not fit model=gpt2; use causal_lm"),
        ({"task": Task.causal_lm}, "task=causal_lm does not fit model=bert; use classification or masked_lm"),
        ({"num_classes": None}, "task=classification needs num_classes; add it"),
        ({"task": Task.masked_lm}, "num_classes=4 has no effect with task=masked_lm; remove it"),
        ({"sequence_tokens": 2}, "is too small to classify"),
        ({"sequence_tokens": 0}, "sequence_tokens=0 must be at least 1"),
        ({"source": DataSource.synthetic_files}, "exists only for images; use synthetic_host or synthetic_device"),
        ({"source": DataSource.files}, "the data set pydoc is read from the Python installation; use source=disk"),
        ({"dataset": "news"}, "for a folder of texts, use source=files"),
        ({"source": DataSource.files, "dataset": "news"}, "news is read from disk, but data.root is not set"),
        (
            {"source": DataSource.files, "dataset": "news", "data_root": "/nowhere"},
            "/nowhere/news, which does not exist",
        ),
        ({"weights": ""}, "weights is empty; set workload.weights=FOLDER"),
        ({"weights": "/nowhere"}, "weights=/nowhere does not contain config.json"),
    ],
)
def test_what_excludes_each_other_is_refused(changes, message):
    assert message in get_refusal(make_text_config(**changes))


def test_a_large_model_is_not_trained_on_cpus_that_nobody_chose():
    assert "no GPU was found; set gpu=cpu" in get_refusal(make_text_config(), CPU)
    make_text_config().complete().refuse_wrong(CPU, device_was_chosen=True)
    make_text_config(model_args={"hidden_size": 128}).complete().refuse_wrong(CPU, device_was_chosen=False)
    assert "needs a GPU" in get_refusal(make_text_config(step_mode=StepMode.cuda_graph), CPU)


def test_weights_must_fit(weights):
    good = make_text_config(weights=str(weights))
    planned = good.complete()
    planned.refuse_wrong(CPU, device_was_chosen=False)
    planned.refuse_missing_data()
    assert planned.program_options()["weights"] == str(weights)
    assert "more than the 256 positions" in get_refusal(make_text_config(weights=str(weights), sequence_tokens=300))
    assert "has hidden_size=384, but model_args.hidden_size=768" in get_refusal(
        make_text_config(weights=str(weights), model_args={"hidden_size": 768})
    )
    assert "contains a bert, but model=distilbert" in get_refusal(
        make_text_config(weights=str(weights), model=TextModel.distilbert)
    )
    (weights / "config.json").write_text("[]")
    assert "config.json that cannot be used" in get_refusal(good)
    (weights / "model.safetensors").unlink()
    assert "contains no weights" in get_refusal(good)
    (weights / "tokenizer.json").unlink()
    assert "does not contain tokenizer.json" in get_refusal(good)


def test_a_folder_of_texts_has_two_classes_and_no_more_than_the_model(tmp_path):
    def config(*classes: str, **changes: object) -> WorkloadConfig:
        root = write_texts(tmp_path / "-".join(("root", *classes)), *classes)
        (root / "news").mkdir(parents=True, exist_ok=True)
        return make_text_config(source=DataSource.files, dataset="news", data_root=str(root), **changes)

    config("a", "b").complete().refuse_missing_data()
    assert "has 0 folders of text files" in get_refusal(config())
    assert "has 1 folders of text files" in get_refusal(config("a"))
    assert "num_classes=2 is too few for the 3 classes in" in get_refusal(config("a", "b", "c", num_classes=2))


@pytest.mark.torch
def test_an_environment_without_transformers_is_refused(make_plan, monkeypatch):
    assert make_plan(["workload=tiny_text"]).groups
    interpreter = current.CurrentEnv().resolve()
    without_transformers = dataclasses.replace(
        interpreter, lock=tuple(line for line in interpreter.lock if not line.startswith("transformers"))
    )
    monkeypatch.setattr(current, "_describe", lambda: without_transformers)
    with pytest.raises(ConfigError, match=r"tiny_text: transformers is not installed in the environment of .*"):
        make_plan(["workload=tiny_text"])


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
    for name in ("docker", "singularity", "apptainer", "srun", "conda"):
        write_script(programs / name)
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


STRESSOR = ["workload=stressor", "degree=1", "baseline=never"]
BESIDE = ["+workload@sizes.stressor=stressor", "sizes.stressor.resource=host_cores", "mix=[workload,stressor]"]


def test_tensor_cores_need_a_gpu_that_has_them(make_plan):
    options = [*STRESSOR, "workload.resource=tensor_cores"]
    for_ampere = dataclasses.replace(GPU, facts=DeviceFacts(compute_capability=(8, 0)))
    assert len(make_plan(options, device=for_ampere).groups) == 1
    with pytest.raises(ConfigError, match=r"needs compute capability 8\.0, but .* has 7\.5"):
        make_plan(options, device=dataclasses.replace(GPU, facts=DeviceFacts(compute_capability=(7, 5))))


def test_a_mix_has_the_workload_and_the_stressor_and_a_baseline_of_each(make_plan):
    together, *alone = make_plan([*BESIDE, "sizes.stressor.dial=0.5"], is_sweep=True).groups
    groups = sorted((together, *alone), key=lambda group: group.degree)
    assert [group.job_names for group in groups] in (
        ["tiny", "stressor", "tiny+stressor"],
        ["stressor", "tiny", "tiny+stressor"],
    )
    stressor = groups[-1].jobs[1]
    params = dict(stressor.workload.params)
    assert (params["resource"], params["dial"], stressor.name) == ("host_cores", "0.5", "1-stressor")


def test_a_stressor_beside_a_script_is_a_co_runner_with_a_baseline_in_a_steady_window(make_plan, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    groups = make_plan(user_command.make_overrides([*BESIDE, "--", str(script)]), is_sweep=True).groups
    pair = next(group for group in groups if group.has_co_runners)
    assert [job.workload.name for job in pair.measured] == ["train"] and pair.window.kind is WindowKind.WORK
    (stressor,) = (job.workload for job in pair.jobs if job.is_co_runner)
    alone = {group.jobs[0].workload.digest: group.window.kind for group in groups if group.sequential}
    assert alone == {stressor.digest: WindowKind.STEADY, pair.measured[0].workload.digest: WindowKind.WORK}


TURNS = [
    "+workload@sizes.T=stressor_turns",
    "sizes.T.resources=[host_cores,host_memory]",
    "sizes.T.dials=[0.5,1]",
    "sizes.T.turn_s=0.5",
    "window.settle_s=0.4",
]


def test_groups_of_a_stressor_that_takes_turns_are_as_long_as_its_rounds(make_plan):
    groups = make_plan([*TURNS, "mix=[workload,T]", "window.seconds=3"], is_sweep=True).groups
    windows = {group.job_names: (group.window.seconds, group.window.settle_s) for group in groups}
    # Two rounds of four turns and two idle turns, and a turn as a reserve; the stressor is idle while jobs settle.
    assert windows == {"tiny": (3, 0.4), "T": (6.5, 0.4), "tiny+T": (6.5, 0.4)}
    longer = make_plan([*TURNS, "mix=[workload,T]", "window.seconds=9"], is_sweep=True).groups
    assert {group.window.seconds for group in longer} == {9}


def test_a_script_beside_turns_must_log_its_rate(make_plan, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    words = [*TURNS, "mix=[workload,T]"]
    with pytest.raises(
        ConfigError, match=r"train logs no rate, .*; set workload\.metric=NAME or .*sizes\.T=stressor "
    ) as refused:
        make_plan(user_command.make_overrides([*words, "--", str(script)]), is_sweep=True)
    assert "\n" not in str(refused.value)
    logged = user_command.make_overrides(
        [*words, "window.seconds=3", "workload.metric=train/steps_per_s", "--", str(script)]
    )
    groups = make_plan(logged, is_sweep=True).groups
    pair = next(group for group in groups if group.has_co_runners)
    alone = next(group for group in groups if group.job_names == "T")
    assert pair.window.kind is WindowKind.LOGGED and alone.window.seconds == 6.5


def test_a_chosen_workload_that_a_mix_names_is_read(compose):
    typed = ["workload=tiny", "workload.batch_size=8"]
    composed = compose([*BESIDE, *typed])
    refuse_unread(typed, config_reader.read(composed), composed)
    with pytest.raises(ConfigError, match="workload=tiny has no effect"):
        composed = compose(["mix=[S]", *typed])
        refuse_unread(typed, config_reader.read(composed), composed)


INFER_TINY = ["workload=infer_tiny", "gpu=cpu"]
POISSON = ["workload.arrival=poisson", "workload.rate_per_s=100"]


@pytest.mark.torch
def test_an_environment_without_the_server_is_refused(make_plan, monkeypatch):
    over_http = [*INFER_TINY, "workload.serve=http"]
    assert make_plan(over_http).groups
    interpreter = current.CurrentEnv().resolve()
    without_server = dataclasses.replace(
        interpreter, lock=tuple(line for line in interpreter.lock if not line.startswith("uvicorn"))
    )
    monkeypatch.setattr(current, "_describe", lambda: without_server)
    assert make_plan(INFER_TINY).groups
    with pytest.raises(ConfigError, match=r"infer_tiny: uvicorn is not installed in the environment of"):
        make_plan(over_http)


@pytest.mark.torch
@pytest.mark.slow
def test_large_images_need_a_gpu_that_nobody_asked_for(make_plan):
    with pytest.raises(ConfigError, match="no GPU was found"):
        make_plan(["workload=infer_resnet50"])
    assert make_plan(["workload=infer_resnet50", "gpu=cpu"]).groups


@pytest.mark.torch
def test_a_window_without_a_p99_is_noted_once(make_plan):
    short = make_plan(
        [*INFER_TINY, *POISSON, "window.seconds=9"], [*INFER_TINY, *POISSON, "window.seconds=9", "degree=3"]
    )
    notes = [note for note in short.notes if "p99" in note]
    assert notes == [
        "infer_tiny: no p99: a p99 needs at least 1,200 requests, but the window holds only about 900 requests (100/s "
        "for 9 s); set window.seconds=14"
    ]
    assert [note for note in make_plan([*INFER_TINY, *POISSON, "window.seconds=12"]).notes if "p99" in note] == [
        "infer_tiny: a p99 needs 1,200 requests that do not wait for others, about 4,000 at load 0.6 and 13,000 at "
        "load 0.8; the window holds about 1,200 requests (100/s for 12 s)"
    ]
    assert not any("p99" in note for note in make_plan([*INFER_TINY, *POISSON, "window.seconds=130"]).notes)
    assert not any(
        "p99" in note for note in make_plan([*INFER_TINY, *POISSON, "window=by_need", "window.most_s=130"]).notes
    )
    (note,) = make_plan([*INFER_TINY, *POISSON, "window=by_need", "window.most_s=5"]).notes
    assert note.endswith("about 500 requests (100/s for 5 s); set window.most_s=14")
    assert not any("p99" in note for note in make_plan([*INFER_TINY]).notes), "nobody knows how many there will be"


@pytest.mark.torch
def test_a_given_rate_is_known_to_comparisons_and_the_objective_is_none_of_the_program(make_plan):
    strict, free = (
        make_plan([*INFER_TINY, *POISSON, *more]).groups[0].jobs[0].workload
        for more in (["workload.objective_ms=9"], [])
    )
    assert (strict.work_unit, strict.is_rate_given, free.objective) == ("requests", True, None)
    assert strict.objective is not None
    assert strict.objective.latency_ms == 9
    assert strict.argv == free.argv
    assert "--rate-per-s" in strict.argv
    closed = make_plan([*INFER_TINY]).groups[0].jobs[0].workload
    assert not closed.is_rate_given
