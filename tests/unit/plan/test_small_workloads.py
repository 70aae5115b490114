"""A rehearsal keeps what each job is: training on images, training on text, inference."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan.config_schema import Config
from tests.support.experiments import configs_of

EXPERIMENT = """
# @package _global_
defaults:
  - override /workload@sizes.S: distilbert
  - _self_
hydra:
  mode: MULTIRUN
blocks:
  - workload: resnet50_imagenet64,bert_base,robroek_large
    workload.batch_size: 4,8
    workload.precision: bf16
    degree: 2
  - {workload: bert_large, workload.sequence_tokens: "32,256", workload.step_mode: cuda_graph, degree: 1}
  - workload: infer_bert_base
    workload.arrival: poisson
    workload.rate_per_s: 50,100
    degree: 1
  - {+workload@sizes.T: resnet50_imagenet64, +workload@sizes.I: infer_resnet50, mix: "[T,I,S]"}
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """The project's own configuration, with an experiment more."""
    shutil.copytree(PROJECT_DIR / "conf", tmp_path / "conf")
    (tmp_path / "conf/experiment/mine.yaml").write_text(EXPERIMENT.lstrip())
    return tmp_path / "conf"


@pytest.mark.slow
def test_each_job_stays_what_it_is_and_keeps_its_axes(conf):
    def list_settings(config: Config) -> tuple[object, ...]:
        keys = ("batch_size", "sequence_tokens", "rate_per_s")
        return (config.workload.name, *(getattr(config.workload, key, None) for key in keys))

    configs = configs_of(["+experiment=mine", "+rehearse=tiny"], conf)
    copies = [config for config in configs if config.mix is None]
    assert {list_settings(config) for config in copies} == {
        ("tiny", 4, None, None),
        ("tiny", 8, None, None),
        ("tiny_text", 4, 64, None),
        ("tiny_text", 8, 64, None),
        ("tiny_text", 16, 32, None),
        ("tiny_text", 16, 64, None),  # 256 tokens are more than a rehearsal has time for
        ("infer_tiny_text", 1, 64, 50),
        ("infer_tiny_text", 1, 64, 100),
    }
    assert all(config.workload.step_mode.name == "eager" for config in configs)
    assert all(config.workload.precision.name == "default" for config in copies)
    (mix,) = (config for config in configs if config.mix is not None)
    assert {name: mix.sizes[name].name for name in ("T", "I", "S")} == {
        "T": "tiny",
        "I": "infer_tiny",
        "S": "tiny_text",
    }


@pytest.mark.slow
def test_the_command_line_wins_over_stand_ins(conf):
    overrides = [
        "+experiment=mine",
        "+rehearse=tiny",
        "workload=tiny_text",
        "workload.batch_size=2",
        "workload.threads=2",
    ]
    for config in configs_of(overrides, conf):
        assert (config.workload.name, config.workload.batch_size, config.workload.threads) == ("tiny_text", 2, 2)


IN_FILE = """
# @package _global_
defaults:
  - override /workload: script
  - override /workload@sizes.S: script
  - override /workload@sizes.M: resnet50_imagenet64
  - _self_
hydra:
  mode: MULTIRUN
blocks:
  - {degree: 2}
  - {mix: "[S,M]", sizes.M.batch_size: 16}
workload: {script: train.py, args: [--lr, "0.1"], name: mine, samples: 256, flags: {epochs: 90}}
sizes:
  S: {script: train.py, samples: 4}
  M: {image_px: 224, batch_size: 512, environ: {A: b}}
"""


@pytest.mark.slow
def test_values_of_the_file_go_with_the_workloads_that_they_are_of(conf):
    (conf / "experiment/mine.yaml").write_text(IN_FILE.lstrip())
    copies, mix = configs_of(["+experiment=mine", "+rehearse=tiny", "sizes.S.samples=2"], conf)
    (tiny,) = configs_of(["+rehearse=tiny", "workload=tiny"], conf)
    assert copies.workload == tiny.workload
    assert (mix.sizes["S"].script, mix.sizes["S"].samples) == (tiny.workload.script, 2)
    of_m = mix.sizes["M"]
    assert (of_m.name, of_m.image_px, of_m.batch_size, of_m.environ) == ("tiny", 32, 16, {})


def test_a_program_without_a_small_form_is_left_alone_and_a_script_is_replaced(conf):
    command = "command: 'serve {port}'"
    (conf / "experiment/mine.yaml").write_text(
        f"# @package _global_\ndefaults:\n  - override /workload: server\n  - _self_\nworkload: {{{command}}}\n"
    )
    (config,) = configs_of(["+experiment=mine", "+rehearse=tiny", "degree=1"], conf)
    assert (config.workload.name, config.workload.command) == ("server", "serve {port}")
    with pytest.raises(ConfigError, match=r"workload\.command does not exist"):
        configs_of(["+experiment=robroek_quick", "+rehearse=tiny", "+workload.command=x"], conf)
