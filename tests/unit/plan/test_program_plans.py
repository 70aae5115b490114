"""Options of programs, as plans have them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from pipeline.base.domain.machine_state import cpu_device
from pipeline.base.domain.records import DeviceFacts
from pipeline.base.system.errors import ConfigError
from pipeline.plan.option_loader import join
from pipeline.plan.workload_config import WorkloadConfig
from pipeline.prepare.env import current
from tests.conftest import GPU
from workloads.model_options import DataSource, StepMode
from workloads.rates.options import Micro, Operation
from workloads.text.options import Task, TextModel, TrainText

CPU = cpu_device()


def text(**changes: object) -> WorkloadConfig:
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
    assert message in get_refusal(text(**changes))


def test_a_large_model_is_not_trained_on_cpus_that_nobody_chose():
    assert "no GPU was found; set gpu=cpu" in get_refusal(text(), CPU)
    text().complete().refuse_wrong(CPU, device_was_chosen=True)
    text(model_args={"hidden_size": 128}).complete().refuse_wrong(CPU, device_was_chosen=False)
    assert "needs a GPU" in get_refusal(text(step_mode=StepMode.cuda_graph), CPU)


def test_weights_must_fit(weights):
    good = text(weights=str(weights))
    planned = good.complete()
    planned.refuse_wrong(CPU, device_was_chosen=False)
    planned.refuse_missing_data()
    assert planned.program_options()["weights"] == str(weights)
    assert "more than the 256 positions" in get_refusal(text(weights=str(weights), sequence_tokens=300))
    assert "has hidden_size=384, but model_args.hidden_size=768" in get_refusal(
        text(weights=str(weights), model_args={"hidden_size": 768})
    )
    assert "contains a bert, but model=distilbert" in get_refusal(
        text(weights=str(weights), model=TextModel.distilbert)
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
        return text(source=DataSource.files, dataset="news", data_root=str(root), **changes)

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
