"""Plans: launches, shards, blocks, arrival sequences, rehearsals, and groups that cannot run."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest

from pipeline.base.domain.precision_goal import PrecisionGoal
from pipeline.base.domain.records import Job
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.observe.exporters.none import NoExporter
from pipeline.plan import config_reader, plan_builder, plan_text, shards
from pipeline.plan.config_schema import Config
from pipeline.plan.inventory import take_inventory as take_inventory
from pipeline.plan.plan_builder import cut_plan, number_sequences
from pipeline.prepare.device import nvml
from pipeline.scale import worker_command
from pipeline.study import plans
from pipeline.study.study_request import StudyRequest
from tests.conftest import GPU, inventory_of, sweep
from tests.support.experiments import configs_of
from tests.support.rows import group
from tests.support.tables import refused_plans

INTERLEAVED = ["window=interleaved", "data.source=synthetic_device"]


def list_launches(plan) -> list[list[str]]:
    return [
        [group.name.partition("-window")[0] for group in members]
        for members in plan_builder.split_by_launch(plan.groups)
    ]


def test_groups_that_differ_in_their_number_of_jobs_share_a_launch(make_plan) -> None:
    sweep = [[*INTERLEAVED, "order=listed", f"degree={degree}"] for degree in (1, 2, 3)]
    plan = make_plan(*sweep)
    # One job without MPS is launched by itself: it is the baseline.
    assert list_launches(plan) == [["serial-1x-tiny"], ["naive-3x-tiny", "naive-2x-tiny"]]
    assert {group.window.text for group in plan.groups} == {"interleaved, 4 s in slices, each after 0.1 s"}


def test_each_block_has_launches_of_its_own_in_an_order_of_its_own(make_plan) -> None:
    plan = make_plan(*([*INTERLEAVED, f"degree={degree}", "repeats=6"] for degree in (1, 2, 3)))
    by_launch = plan_builder.split_by_launch(plan.groups)
    assert len(by_launch) == 12 and all(len({group.block for group in members}) == 1 for members in by_launch)
    assert all(len({group.launch for group in members}) == 1 for members in by_launch)
    assert len({group.launch for group in plan.groups}) == 12
    assert {len(by_launch[number][0].jobs) for number in range(0, 12, 2)} == {1, 3}


def test_launches_of_one_program_follow_each_other(make_plan) -> None:
    cases = [[f"workload.batch_size={size}", f"degree={degree}"] for size in (4, 8, 16, 32) for degree in (1, 2)]
    plan = make_plan(*([*INTERLEAVED, "repeats=4", *case] for case in cases))
    programs = [members[0].jobs[0].workload.digest for members in plan_builder.split_by_launch(plan.groups)]
    assert programs[0::2] == programs[1::2] and len(programs) == 32
    assert len({tuple(programs[begin : begin + 8]) for begin in range(0, 32, 8)}) > 1


def test_other_workloads_and_settings_are_launched_apart(make_plan) -> None:
    sweep = [[*INTERLEAVED, f"workload.batch_size={size}", f"seed={seed}"] for size in (8, 16) for seed in (0, 1)]
    plan = make_plan(*([*overrides, f"degree={degree}"] for overrides in sweep for degree in (2, 3)))
    assert [len(members) for members in plan_builder.split_by_launch(plan.groups)].count(2) == 4


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["data.source=disk", "workload.loader_workers=2"], "workload tiny: its data loader"),
        (["pin_cpus=true"], "pin_cpus=true"),
        (["co_runners=1"], "co-runners"),
        (["mix=[S,S]", "workload@sizes.S=tiny", "degree=null"], "mix"),
    ],
)
def test_what_cannot_be_interleaved_has_a_launch_of_its_own_and_the_plan_says_so(make_plan, overrides, reason) -> None:
    plan = make_plan([*INTERLEAVED, "degree=2", *overrides])
    assert {group.window.kind for group in plan.groups} == {WindowKind.STEADY}
    assert {group.launch for group in plan.groups} == {""}
    note = next(note for note in plan.notes if "launch" in note)
    assert reason in note and note.endswith("(steady, 4 s after 1 s)")


def test_jobs_with_a_loader_can_be_held_if_they_load_themselves(make_plan) -> None:
    plan = make_plan(["window=interleaved", "data.source=disk", "workload.loader_workers=0", "degree=2"])
    assert {group.window.kind for group in plan.groups} == {WindowKind.INTERLEAVED}


def test_the_shards_are_the_blocks_and_make_up_the_plan(make_plan) -> None:
    plan = make_plan(["repeats=3", "degree=2", "baseline=always"])
    groups_by_shard = shards.group_by_shard(plan.groups)
    assert list(groups_by_shard) == [1, 2, 3]
    assert [group for number in groups_by_shard for group in shards.select_shard(plan, number).groups] == list(
        plan.groups
    )
    third = shards.select_shard(plan, 3)
    assert (third.digest, third.num_planned) == (plan.digest, 6)
    assert {group.block for group in third.groups} == {3}
    assert shards.select_shard(plan, None) is plan


def test_a_shard_may_be_a_case_with_all_that_shares_its_baselines(make_plan) -> None:
    by_case = ["shard_of=case", "repeats=2"]
    sweep = [[*by_case, f"workload.batch_size={size}", f"degree={degree}"] for size in (8, 16) for degree in (1, 2)]
    plan = make_plan(*sweep)
    assert plan.shard_sizes == (3, 3, 3, 3)
    groups_of_shards = list(shards.group_by_shard(plan.groups).values())
    assert [{group.block for group in members} for members in groups_of_shards] == [{1}, {1}, {2}, {2}]
    programs = [{job.workload.digest for group in members for job in group.jobs} for members in groups_of_shards]
    assert all(len(digests) == 1 for digests in programs)
    assert programs[0] == programs[2] != programs[1] == programs[3]
    assert plan.digest != make_plan(*(overrides[1:] for overrides in sweep)).digest  # workers must agree on it


def test_shards_are_numbered_without_gaps_where_a_block_lacks_cases(make_plan) -> None:
    sizes = {8: 1, 16: 3, 32: 2}
    sweep = [["shard_of=case", f"workload.batch_size={size}", f"repeats={times}"] for size, times in sizes.items()]
    plan = make_plan(*sweep)
    assert list(shards.group_by_shard(plan.groups)) == [1, 2, 3, 4, 5, 6] and len(plan.shard_sizes) == 6
    assert [len({group.case for group in plan.groups if group.block == block}) for block in (1, 2, 3)] == [3, 2, 1]


def test_cases_are_numbered_in_the_order_of_the_plan(make_plan) -> None:
    sizes = [16, 8, 64, 32, 4]  # an order by digest would have to be this one of 120
    plan = make_plan(*(["shard_of=case", "order=listed", f"workload.batch_size={size}"] for size in sizes))
    cases = dict.fromkeys((group.case, int(dict(group.jobs[0].workload.params)["batch_size"])) for group in plan.groups)
    assert list(cases) == list(enumerate(sizes, start=1))


def test_mixes_that_share_a_program_are_one_case(make_plan) -> None:
    of_workloads = ["workload@sizes.S=tiny", "workload@sizes.M=robroek_small", "workload@sizes.L=robroek_medium"]
    mixes = [["shard_of=case", *of_workloads, f"mix=[{mix}]", "data.source=synthetic_device"] for mix in ("S,M", "M,L")]
    assert set(shards.group_by_shard(make_plan(*mixes).groups)) == {1}


@pytest.mark.parametrize("number", [0, 4, -1])
def test_a_shard_outside_the_plan_is_refused(make_plan, number) -> None:
    with pytest.raises(ConfigError, match=f"shard={number} does not exist in this plan; choose a shard from 1 to 3"):
        shards.select_shard(make_plan(["repeats=3"]), number)


def test_a_shard_of_groups_that_are_all_skipped_is_one_as_any_other(compose) -> None:
    of_mps = ["scenario=mps", "workload.batch_size=8"]  # which needs a GPU
    study = [[*overrides, "degree=2", "shard_of=case"] for overrides in (of_mps, ["workload.batch_size=16"])]
    skipped = set()
    for number in (1, 2):
        configs = config_reader.read(compose(*([*overrides, f"shard={number}"] for overrides in study)))
        request = StudyRequest(
            configs=configs, is_sweep=True, sender=None, simulated=None, exporter=NoExporter(), reproduction=None
        )
        skipped.add(
            frozenset(group.scenario for group in request.plan(inventory_of(configs)).groups if group.skip_reason)
        )
    assert skipped == {frozenset(), frozenset({"mps"})}


AUTO = ["repeats=auto", "repeats_max=7"]


def test_the_plan_has_the_most_blocks_and_says_when_the_study_stops(make_plan):
    plan = make_plan([*AUTO, "precision_goal_pct=2.5"], is_sweep=False)
    assert plan.goal == PrecisionGoal(pct=2.5, max_blocks=7)
    assert {group.block for group in plan.groups} == {1, 2, 3, 4, 5, 6, 7}
    (note,) = plan_text.list_notes(plan)
    assert note == (
        "note: repeats=auto: 5 to 7 blocks, until the interval of every speed-up over serial is at most 2.5 % wide to "
        "each side"
    )
    exported = json.loads(json.dumps(plan_text.export_plan(plan, {})))
    assert exported["precision_goal"] == {"pct": 2.5, "max_blocks": 7}
    fixed = make_plan(["repeats=7"], is_sweep=False)
    assert fixed.goal is None and fixed.digest == plan.digest
    assert plan_text.export_plan(fixed, {})["precision_goal"] is None and plan_text.list_notes(fixed) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shard_of", ["block", "case"])
def test_the_plan_of_the_blocks_that_ran_is_that_of_as_many_repeats(make_plan, shard_of):
    combinations = [[*o, f"shard_of={shard_of}"] for o in sweep(scenario=["naive", "mps"], degree=[1, 2])]
    cut = cut_plan(make_plan(*[[*o, *AUTO] for o in combinations]), lambda group: group.block <= 5)
    assert cut == make_plan(*[[*o, "repeats=5"] for o in combinations])


def test_an_interpolated_number_of_repeats_is_a_number(make_plan, monkeypatch):
    monkeypatch.setenv("REPEATS", "3")
    assert {group.block for group in make_plan(["repeats=${oc.env:REPEATS}"]).groups} == {1, 2, 3}


def test_all_parts_of_a_study_stop_by_the_same_rule(make_plan):
    with pytest.raises(ConfigError, match="repeats=3 conflicts with repeats=auto in the same study"):
        make_plan(["degree=2", "repeats=auto"], ["degree=3", "repeats=3"])
    # Groups without a speed-up run along, and have no say.
    assert make_plan(["degree=2", "repeats=auto"], ["co_runners=1", "repeats=auto"]).goal is not None


@pytest.mark.parametrize("launcher", ["gpus", "beside", "slurm"])
def test_launchers_that_run_blocks_on_several_gpus_are_refused(compose, launcher):
    configs = config_reader.read(compose(["repeats=auto"]))
    with pytest.raises(ConfigError, match=f"repeats=auto conflicts with hydra/launcher={launcher}, because"):
        worker_command.refuse_decided_keys(configs, launcher)


def number(names: str, block: int, co_runners: str = "") -> list[int]:
    jobs = group(*names, *co_runners).jobs
    return [
        job.arrivals
        for job in number_sequences([set_role(job, is_co_runner=job.index >= len(names)) for job in jobs], block)
    ]


def set_role(job: Job, *, is_co_runner: bool) -> Job:
    return dataclasses.replace(job, is_co_runner=is_co_runner)


def test_a_job_alone_has_the_first_sequence_and_of_several_copies_another_in_each_block() -> None:
    assert [number("a", block) for block in (1, 2, 3)] == [[0], [0], [0]]
    assert [number("aaa", block) for block in (1, 2, 3, 4)] == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]
    assert [number("aba", block) for block in (1, 2)] == [[0, 0, 1], [1, 0, 0]]


def test_co_runners_never_have_the_sequence_of_a_measured_copy() -> None:
    assert [number("aa", block, "aab") for block in (1, 2)] == [[0, 1, 2, 3, 0], [1, 0, 2, 3, 0]]


def test_a_store_in_a_folder_that_is_not_utf8_is_refused_and_one_elsewhere_is_not(make_plan, monkeypatch, tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(
        ConfigError, match=r"^tracking\.root=mlruns has a path that is not UTF-8, .*; choose another folder, such as"
    ):
        make_plan([])
    assert make_plan([f"tracking.root={tmp_path}"]).groups


def test_a_file_that_is_not_there_is_named_with_each_folder_once(make_plan, monkeypatch):
    monkeypatch.chdir(PROJECT_DIR)
    for overrides in (["workload=script", "workload.script=absent.py"], ["env=venv", "env.file=absent"]):
        with pytest.raises(ConfigError) as refused:
            make_plan(overrides)
        assert f"=absent{'.py' if 'workload=script' in overrides else ''} does not exist" in str(refused.value)
        assert str(refused.value).endswith(f" in {PROJECT_DIR}; check the name")


def test_a_gpu_that_is_named_is_not_replaced_by_the_cpus(compose, monkeypatch):
    monkeypatch.setattr(nvml, "list_devices", list)
    (config,) = config_reader.read(compose(["gpu=auto"]))
    assert take_inventory([config], plans.find_device).device_of(config.gpu).kind == "cpu"
    (config,) = config_reader.read(compose(["gpu=auto", "gpu.device=1"]))
    with pytest.raises(ConfigError, match=r"gpu\.device='1' needs an NVIDIA GPU"):
        take_inventory([config], plans.find_device)


@pytest.mark.sampled(1)
@pytest.mark.torch
@pytest.mark.parametrize("workload", ["tiny", "bert_base", "infer_bert_base"])
def test_a_dry_run_on_a_simulated_gpu_plans_what_only_a_real_one_can_run(make_plan, workload):
    simulated = dataclasses.replace(GPU, kind="simulated")
    graphs = [f"workload={workload}", "workload.step_mode=cuda_graph"]
    assert make_plan([*graphs, "dry_run=true"], device=simulated).groups
    with pytest.raises(
        ConfigError, match=r"on a simulated NVIDIA H100 .*; use dry_run=true to print the plan, or \+re"
    ):
        make_plan(graphs, device=simulated)
    for more in ([], ["dry_run=true"]):
        with pytest.raises(ConfigError, match=r"; use gpu=simulated_h100_80gb dry_run=true to print the plan, or \+re"):
            make_plan([*graphs, "gpu=cpu", *more])


def test_fp16_in_a_cuda_graph_is_refused(make_plan):
    with pytest.raises(ConfigError, match="use precision=bf16"):
        make_plan(["workload.step_mode=cuda_graph", "workload.precision=fp16"], device=GPU)


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


@refused_plans()
def test_a_plan_that_cannot_be_is_refused_in_one_line(make_plan, tmp_path, monkeypatch, words, pattern, is_sweep):
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=pattern) as refused:
        make_plan(words, is_sweep=is_sweep)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (f"tracking.experiment={'x' * 256}", "must have at most 255 bytes"),
        (f"gpu.lock_dir={'x' * 256}", "is too long for a path"),
        (f"tracking.root={__file__}", "is a file; add a bundle to a store with"),
    ],
)
def test_a_name_or_path_that_cannot_be_used_is_refused(make_plan, override, words):
    with pytest.raises(ConfigError, match=words):
        make_plan([override])
