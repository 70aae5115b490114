"""The plan: expansion, digests, order, and everything that must be refused before the machine is touched."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from pipeline.base.domain import layout
from pipeline.base.domain.window import WindowKind
from pipeline.base.system import override_values
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import config_reader, plan_text
from pipeline.plan import plan_builder as planning
from pipeline.plan.inventory import take_inventory as take_inventory
from pipeline.record.group_record import Original
from pipeline.study.reproduce.reproduction import read_config
from tests.conftest import DATA, GPU, inventory_of, sweep
from tests.support.container_programs import write_apptainer, write_image
from tests.support.experiments import configs_of
from tests.support.tracking_cases import record

SYNTHETIC = "data.source=synthetic_device"


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ([], {"naive-2x-tiny", "serial-1x-tiny"}),
        (["baseline=never"], {"naive-2x-tiny"}),
        (["degree=1"], {"naive-1x-tiny"}),
        (["mix=[S,S]", "workload@sizes.S=tiny"], {"naive-2x-S", "serial-1x-S"}),
    ],
)
def test_a_single_run_of_several_jobs_says_what_they_gain(make_plan, overrides, names):
    assert {group.name for group in make_plan(overrides, is_sweep=False).groups} == names


def test_a_sweep_measures_each_baseline_once_and_drops_duplicates(make_plan):
    plan = make_plan(*sweep(scenario=["serial", "naive"], degree=[1, 2, 3]))
    assert Counter(group.name for group in plan.groups) == {
        "serial-1x-tiny": 1,
        "naive-1x-tiny": 1,
        "naive-2x-tiny": 1,
        "naive-3x-tiny": 1,
    }


def test_a_sweep_adds_the_baseline_that_nobody_asked_for(make_plan):
    names = {group.name for group in make_plan(*sweep(degree=[2, 3])).groups}
    assert "serial-1x-tiny" in names
    without = {group.name for group in make_plan(*[[*o, "baseline=never"] for o in sweep(degree=[2, 3])]).groups}
    assert without == {"naive-2x-tiny", "naive-3x-tiny"}


def test_repeats_are_whole_blocks_in_an_order_of_their_own(make_plan):
    plan = make_plan(*[[*o, "repeats=4"] for o in sweep(scenario=["serial", "naive"], degree=[1, 2, 3, 4, 5])])
    blocks = {block: [g.name for g in plan.groups if g.block == block] for block in (1, 2, 3, 4)}
    assert [group.block for group in plan.groups] == sorted(group.block for group in plan.groups)
    assert len({frozenset(names) for names in blocks.values()}) == 1
    assert len({tuple(names) for names in blocks.values()}) > 1
    assert len({group.digest for group in plan.groups}) == len(plan.groups)


def test_some_groups_of_a_study_keep_their_names_digests_and_baselines(make_plan):
    combinations = [*sweep(scenario=["naive", "mps"], degree=[2, 3]), ["workload.batch_size=16", "degree=2"]]
    names_by_digest = {
        group.digest: group.name for group in make_plan(*[[*o, "repeats=2"] for o in combinations]).groups
    }
    names = ["naive-3x-tiny-batch_size=32", "mps-3x-tiny-batch_size=32"]
    assert {*names} < {*names_by_digest.values()}
    plan = make_plan(*[[*o, "repeats=2", f"only=[{','.join(map(repr, names))}]"] for o in combinations])
    assert Counter(group.name for group in plan.groups) == dict.fromkeys([*names, "serial-1x-tiny-batch_size=32"], 2)
    assert {group.digest: group.name for group in plan.groups}.items() <= names_by_digest.items()
    assert [group.number for group in plan.groups] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(ConfigError, match="only=naive-9x-tiny is not a group of the plan; choose a group, such as"):
        make_plan(*[[*o, "only=[naive-9x-tiny]"] for o in combinations])


def test_numbers_select_groups_of_the_plan_that_printed_them_and_of_no_other(make_plan):
    combinations = [*sweep(scenario=["naive", "mps"], degree=[2, 3])]
    plan = make_plan(*[[*o, "repeats=2"] for o in combinations])
    selectors = {group.name: group.selector for group in plan.groups}
    assert {group.selector for group in plan.groups if group.block == 1} == set(selectors.values())
    numbers = f"{selectors['naive-3x-tiny']}+{selectors['mps-2x-tiny'].partition(':')[2]}"
    assert override_values.parse(numbers) == numbers  # neither a shell nor a sweep needs quotes
    for repeats, order in (2, "random"), (3, "listed"):  # neither is part of the digest
        selected = make_plan(*[[*o, f"repeats={repeats}", f"order={order}", f"only={numbers}"] for o in combinations])
        assert {group.name: group.selector for group in selected.groups} == {
            name: selectors[name] for name in ("naive-3x-tiny", "mps-2x-tiny", "serial-1x-tiny")
        }
        assert len(selected.groups) == 3 * repeats
    prefix = numbers.partition(":")[0]
    assert f"add only={prefix}:" in plan_text.format_plan(plan)
    with pytest.raises(ConfigError, match=f"only={prefix}:6: the plan has no group 6; choose from 1 to 5"):
        make_plan(*[[*o, f"only={prefix}:6"] for o in combinations])
    with pytest.raises(ConfigError, match=rf"only={prefix}:1 has no numbers of this plan, \w+; see them with dry_run"):
        make_plan(*[[*o, "workload.batch_size=16", f"only={prefix}:1"] for o in combinations])


def test_a_mix_in_one_window_keeps_the_baseline_of_all_its_jobs(make_plan):
    mix = ["mix=[S,S]", "workload@sizes.S=tiny", "window=work", "+workload@sizes.T=tiny", "sizes.T.batch_size=16"]
    plan = make_plan([*mix, "mix=[S,T]", "only=[naive-S+T]"], ["degree=2", "only=[naive-S+T]"])
    assert {group.name for group in plan.groups} == {"naive-S+T", "serial-S+T"}


def test_listed_order_and_the_same_seed_give_the_same_plan(make_plan):
    listed = make_plan(*[[*o, "order=listed"] for o in sweep(degree=[3, 1, 2])])
    assert [group.name for group in listed.groups] == [
        "naive-3x-tiny",
        "serial-1x-tiny",
        "naive-1x-tiny",
        "naive-2x-tiny",
    ]
    again = [make_plan(*sweep(degree=[1, 2, 3, 4])) for _ in range(2)]
    assert again[0] == again[1]


def test_a_mix_is_one_job_a_size_with_solo_baselines(make_plan):
    plan = make_plan(["mix=[M,S,S]", SYNTHETIC], device=GPU, is_sweep=True)
    assert Counter(group.name for group in plan.groups) == {"naive-M+S+S": 1, "serial-1x-M": 1, "serial-1x-S": 1}


def test_a_mix_with_a_fixed_amount_of_work_is_really_run_in_series(make_plan):
    plan = make_plan(["mix=[M,S]", "window=work", SYNTHETIC], device=GPU, is_sweep=True)
    serial = next(group for group in plan.groups if group.sequential)
    assert serial.name == "serial-M+S"
    assert serial.degree == 2


@pytest.mark.parametrize(
    "override",
    ["tracking.experiment=other", "listeners.host.interval_ms=500", "listeners=[host]", "tracking.root=elsewhere"],
)
def test_the_digest_ignores_how_a_group_is_observed(make_plan, override):
    assert make_plan([]).groups[0].digest == make_plan([override]).groups[0].digest


def test_the_digest_ignores_where_data_lies(make_plan, tmp_path):
    for name in ("here", "there"):
        (tmp_path / name / "cifar-10-batches-py").mkdir(parents=True)
    plans = [
        make_plan(["workload=resnet26_cifar10", f"data.root={tmp_path / name}"], device=GPU)
        for name in ("here", "there")
    ]
    assert plans[0].groups[0].digest == plans[1].groups[0].digest


@pytest.mark.parametrize(
    "override",
    [
        "workload.batch_size=16",
        "seed=1",
        "degree=3",
        "window.seconds=5",
        "window=work",
        "scenario=serial",
        "pin_cpus=true",
        "pin_cpus=servers",
    ],
)
def test_the_digest_covers_what_is_measured(make_plan, override):
    assert make_plan([]).groups[0].digest != make_plan([override]).groups[0].digest


def test_the_digest_covers_the_device_and_the_script(make_plan, tmp_path):
    assert make_plan([]).groups[0].digest != make_plan([], device=GPU).groups[0].digest
    script = tmp_path / "train.py"
    digests = set()
    for text in ("print(1)", "print(2)"):
        script.write_text(text)
        digests.add(make_plan(["workload=script", f"workload.script={script}"]).groups[0].digest)
    assert len(digests) == 2


@pytest.mark.slow
def test_plans_of_one_study_for_two_gpu_models_have_a_digest_in_common(make_plan):
    study = sweep(scenario=["naive", "mps"], degree=[1, 2])

    def plan_study(model, *more):
        device = dataclasses.replace(GPU, name=model)
        return make_plan(
            *[[*overrides, "repeats=2", "data.source=synthetic_device", *more] for overrides in study], device=device
        )

    first, second = plan_study("H100"), plan_study("A100")
    assert first.digest != second.digest
    assert first.any_gpu_digest == second.any_gpu_digest
    assert first.any_gpu_digest != plan_study("H100", "seed=1").any_gpu_digest
    assert first.any_gpu_digest != plan_study("H100", "shard_of=case").any_gpu_digest


def test_a_script_is_measured_to_its_end_and_the_plan_says_so(make_plan, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    plan = make_plan(["workload=script", f"workload.script={script}", "workload.args=[--epochs,'3']"])
    assert plan.groups[0].window.kind is WindowKind.WORK
    assert plan.groups[0].jobs[0].workload.argv == (
        str(PROJECT_DIR / "workloads/script.py"),
        str(script),
        "--epochs",
        "3",
    )
    assert "the whole run is measured" in plan_text.format_plan(plan)


def test_programs_of_the_project_are_not_taken_from_a_folder_of_the_users(make_plan, tmp_path, monkeypatch):
    (tmp_path / "workloads").mkdir()
    for name in ("script.py", "train_timm.py"):
        (tmp_path / "workloads" / name).write_text("")
    monkeypatch.chdir(tmp_path)
    for workload, name in (("tiny", "train_timm.py"), ("script", "script.py")):
        overrides = [
            f"workload={workload}",
            *(["workload.script=./workloads/script.py"] if workload == "script" else []),
        ]
        argv = make_plan(overrides).groups[0].jobs[0].workload.argv
        assert argv[0] == str(PROJECT_DIR / "workloads" / name)
    assert argv[1] == str(tmp_path / "workloads/script.py")
    with pytest.raises(ConfigError, match=r"runner; for your own file, write \./workloads/script\.py"):
        make_plan(["workload=script", "workload.script=workloads/script.py"])


def test_options_become_flags(make_plan):
    plan = make_plan(["workload=resnet26_cifar10", SYNTHETIC, "workload.precision=bf16"], device=GPU)
    argv = plan.groups[0].jobs[0].workload.argv
    assert argv[0] == str(PROJECT_DIR / "workloads/train_timm.py")
    for flag, value in (
        ("--model", "resnetv2_50"),
        ("--model-args", "layers=[2,2,2,2]"),
        ("--precision", "bf16"),
        ("--device", "cuda"),
        ("--epochs", "0"),
        ("--source", "synthetic_device"),
    ):
        assert argv[argv.index(flag) + 1] == value
    assert "--channels-last" in argv and "--no-validate" in argv and "--samples" not in argv


def test_large_images_on_cpus_are_fine_for_those_who_say_so(make_plan):
    plan = make_plan(["workload=resnet152_imagenet", SYNTHETIC, "gpu=cpu"])
    assert plan.groups[0].degree == 2


CONF = PROJECT_DIR / "conf"


def format_choice(path: Path) -> str:
    """What the command line says to choose this file."""
    group = path.parent.name
    if group == "listeners":
        return f"listeners=[{path.stem}]"
    return f"{'+' if group in ('experiment', 'rehearse', 'duration') else ''}{group}={path.stem}"


def list_marks(path: Path) -> list[pytest.MarkDecorator]:
    """A workload that names packages is refused where they are not installed, as on the newest Python of `.ci/run`."""
    names_packages = re.search(r"/schema/(infer|infer_text|train_text|framework)@", path.read_text(encoding="utf-8"))
    return [pytest.mark.torch] if names_packages else []


CHOICES = [pytest.param(format_choice(path), marks=list_marks(path)) for path in sorted(CONF.glob("*/*.yaml"))]


@pytest.mark.torch
@pytest.mark.sampled(8)
@pytest.mark.parametrize("choice", CHOICES)
def test_every_yaml_composes_and_plans(make_plan, choice, tmp_path, monkeypatch):
    uv = dict.fromkeys(("env=venv", "workload=framework_env", "workload=infer_unet"), "uv")
    if choice in (builders := {"env=conda": "rattler", **uv}):
        pytest.importorskip(builders[choice])  # the extra `envs`
    (tmp_path / "nvidia-smi").symlink_to("/bin/true")  # the commands of a plan name it by its whole path
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    script = tmp_path / "train.py"
    script.write_text("")
    (tmp_path / "trials.txt").write_text(f"{script} 1\n{script} 2\n")
    (tmp_path / "environment.yml").write_text("channels: [conda-forge]\ndependencies: [python]")
    (tmp_path / "requirements.txt").write_text("diffusers")
    write_apptainer(tmp_path)
    write_image(tmp_path / "train.sif")
    built = ["env=venv", f"env.cache_root={tmp_path}/cache"]
    extra = {
        "env=conda": [f"env.file={tmp_path}/environment.yml", f"env.cache_root={tmp_path}/cache"],
        "env=apptainer": [f"env.image={tmp_path}/train.sif"],
        "env=existing": [f"env.prefix={sys.executable}"],
        "env=venv": [f"env.file={tmp_path}/requirements.txt", *built[1:]],
        "workload=framework_env": built,
        "workload=infer_unet": [*built, f"workload.env_file={tmp_path}/requirements.txt"],
        "workload=server": ["workload.command='serve --port {port}'"],
        "workload=openai_server": ["workload.command='serve --port {port}'", "workload.model=m"],
        **{
            f"workload={name}": ["workload.model=m"]
            for name in ("transformers_serve", "vllm", "sglang", "llama_server", "ollama")
        },
        "workload=script": [f"workload.script={script}"],
        "workload=bert_finetune": ["workload.weights=null"],
        "+experiment=pack": [f"pack.trials={tmp_path}/trials.txt"],
        "+experiment=advise": ["baseline=auto"],  # nothing rises without a baseline
        "tracking=server": ["tracking.uri=http://127.0.0.1:5000"],
        "profiler=nsys": ["profiler.program=/bin/true"],
        "profiler=ncu": ["profiler.program=/bin/true"],
        "scenario=mig": ["scenario.program=/bin/true"],
        "scenario=mig_mps": ["scenario.program=/bin/true"],
    }
    plan = make_plan([choice, SYNTHETIC, *extra.get(choice, [])], device=GPU)
    assert plan.groups
    assert plan_text.format_plan(plan).count("\n") >= 1


def test_a_search_takes_few_separate_jobs_in_each_mode_before_more(make_plan):
    settings = ["window=work", "advise_minutes=3", "baseline=auto", SYNTHETIC]
    swept = sweep(scenario=["naive", "mps"], degree=["2", "3"])
    plan = make_plan(*[[*choices, *settings] for choices in swept], device=GPU)
    first = [(group.scenario, len(group.jobs)) for group in plan.groups if group.block == 1]
    assert first == [("serial", 1), ("naive", 2), ("mps", 2), ("naive", 3), ("mps", 3)]


def test_the_text_of_a_plan_is_stable(make_plan):
    plan = make_plan(
        *[[*o, "order=listed", SYNTHETIC] for o in sweep(scenario=["serial", "naive"], mix=["[S,M]", "[M]"])],
        device=GPU,
    )
    head, *lines = plan_text.format_plan(plan).splitlines()
    assert ", steady, 20 s after 2 s, plan " in head
    text = "\n".join(" ".join(line.split()[:-1]) for line in lines[:-1])
    assert text == (DATA / "plan_golden.txt").read_text().rstrip("\n")


def test_combinations_that_differ_only_in_paths_are_refused(make_plan, tmp_path):
    for name in ("here", "there"):
        (tmp_path / name / "cifar-10-batches-py").mkdir(parents=True)
    with pytest.raises(ConfigError, match="only in paths"):
        make_plan(*[["workload=resnet26_cifar10", f"data.root={tmp_path / n}"] for n in ("here", "there")], device=GPU)


def test_combinations_that_differ_only_in_limits_or_in_the_gpu_are_refused(make_plan, compose):
    with pytest.raises(ConfigError, match="only in limits"):
        make_plan(["limits.stop_s=10"], ["limits.stop_s=20"])
    configs = config_reader.read(compose(["gpu=nvidia", "gpu.device=0"], ["gpu=nvidia", "gpu.device=1"]))
    two = take_inventory(configs, lambda gpu: dataclasses.replace(GPU, uuid=f"GPU-{gpu.device}"))
    with pytest.raises(ConfigError, match="only in the GPU"):
        planning.build_plan(configs, two, is_sweep=True)


def test_only_jobs_that_run_together_get_the_exclusive_mode(make_plan):
    plan = make_plan(["scenario=mps", "gpu.exclusive_process=true", "baseline=always"], device=GPU)
    assert {group.scenario: group.gpu.exclusive_process for group in plan.groups} == {"mps": True, "serial": False}


def test_a_job_gets_whole_paths_because_its_current_folder_is_another_one(make_plan, tmp_path, monkeypatch):
    (tmp_path / "data/cifar-10-batches-py").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for data_root in ("'~/data'", "data"):
        plan = make_plan(["workload=resnet26_cifar10", f"data.root={data_root}"], device=GPU)
        argv = plan.groups[0].jobs[0].workload.argv
        assert argv[argv.index("--data-root") + 1] == str(tmp_path / "data")


@pytest.mark.slow
def test_a_thousand_groups_are_planned_in_seconds(compose):
    import time

    configs = config_reader.read(compose([])) * 150
    configs = [type(c)(**{**vars(c), "degree": 1 + n % 150, "repeats": 7}) for n, c in enumerate(configs)]
    inventory = inventory_of(configs)
    begin = time.process_time()
    plan = planning.build_plan(configs, inventory, is_sweep=True)
    assert len(plan.groups) == 151 * 7
    assert time.process_time() - begin < 5


def test_groups_of_a_sweep_over_an_option_of_the_scenario_are_told_apart_by_name(make_plan):
    shares = [["scenario=mps_percent", f"scenario.active_thread_pct={share}"] for share in ("14", "[25,50]")]
    plan = make_plan(*shares, ["scenario=mig", "scenario.profile=2g"], ["scenario=naive"], device=GPU)
    assert sorted(group.name for group in plan.groups) == [
        "mig-2x-tiny-profile=2g",
        "mps_percent-2x-tiny-active_thread_pct=14",
        "mps_percent-2x-tiny-active_thread_pct=25,50",
        "naive-2x-tiny",
        "serial-1x-tiny",
    ]


def make_original(text: str) -> Original:
    return Original(group=record((), run_id="r"), experiment="e", files={layout.CONFIG: text})


@pytest.fixture
def added_folder(tmp_path, monkeypatch):
    """A folder of configurations and classes that others add."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for group in ("scenario", "env", "profiler", "workload"):
        (tmp_path / group).mkdir()
    return tmp_path, f"hydra.searchpath=[file://{tmp_path}]"


def test_a_kind_with_options_of_its_own_is_a_class_and_a_yaml(make_plan, added_folder):
    folder, search_path = added_folder
    (folder / "others.py").write_text(
        "from pipeline.prepare.env.current import CurrentEnv\n"
        "from pipeline.prepare.sharing.naive import Naive\n"
        "from pipeline.launch.profilers.none import NoProfiler\n\n"
        "class Fair(Naive):\n    def __init__(self, share): pass\n\n"
        "class Other(CurrentEnv):\n    def __init__(self, index): super().__init__()\n\n"
        "class Tracer(NoProfiler):\n    def __init__(self, depth): super().__init__()\n"
    )
    (folder / "scenario/fair.yaml").write_text("name: fair\n_target_: others.Fair\nshare: [1, 2]\n")
    (folder / "env/other.yaml").write_text("_target_: others.Other\nindex: x\n")
    (folder / "profiler/tracer.yaml").write_text("name: tracer\n_target_: others.Tracer\ndepth: 3\n")
    chosen = [search_path, "scenario=fair", "env=other", "profiler=tracer"]
    (group,) = make_plan(chosen).groups
    assert group.options == {"share": (1, 2), "profiler": ("tracer", ("depth", 3))}
    assert group.jobs[0].workload.env.options == (("index", "x"),)
    again, unrecorded = read_config(make_original(group.config_text()))
    assert unrecorded == []
    (config,) = config_reader.read([again])
    (same,) = planning.build_plan([config], inventory_of([config]), is_sweep=False).groups
    assert same.digest == group.digest
    with pytest.raises(ConfigError, match=r"scenario\.name is missing; set scenario\.name=VALUE"):
        (folder / "scenario/nameless.yaml").write_text("_target_: others.Fair\nshare: 1\n")
        make_plan([search_path, "scenario=nameless", *chosen[2:]])


@pytest.mark.slow
def test_options_of_a_workload_outside_the_project_are_a_class_a_program_and_a_yaml(make_plan, added_folder):
    folder, search_path = added_folder
    (folder / "tokens").mkdir()
    (folder / "tokens/options.py").write_text(
        "from dataclasses import dataclass, field, replace\n\n"
        "@dataclass\nclass Tokens:\n    work_unit = 'tokens'\n"
        "    length: int = field(default=8, metadata={'help': 'of a text'})\n    words: list[str] | None = None\n\n"
        "    def check(self, device):\n"
        "        if self.length > 99 and not device.is_gpu:\n            raise ValueError('length needs a GPU')\n\n"
        "    def small(self):\n        return replace(self, length=2)\n"
    )
    (folder / "tokens/program.py").write_text("from tokens.options import Tokens\nfrom workloads import client\n")
    (folder / "workload/mine.yaml").write_text("defaults: [/schema/tokens.options.Tokens@_here_, _self_]\n")
    (group,) = make_plan([search_path, "workload=mine", "workload.length=16", "gpu=cpu"]).groups
    workload = group.jobs[0].workload
    assert workload.argv[:3] == (str(folder / "tokens/program.py"), "--length", "16")
    assert (workload.name, workload.work_unit, workload.module_path) == ("tokens", "tokens", (str(folder),))
    assert [source.name for source in workload.sources] == ["options.py", "program.py"]
    assert dict(workload.params)["script"] == "tokens/program.py"
    again, unrecorded = read_config(make_original(group.config_text()))
    assert (again.workload.length, unrecorded) == (16, [])
    with pytest.raises(ConfigError, match="workload tokens: length needs a GPU"):
        make_plan([search_path, "workload=mine", "workload.length=100", "gpu=cpu"])
    rehearsed = configs_of(["+rehearse=tiny", search_path, "workload=mine", "workload.environ.A=b"])
    assert [(config.workload.length, config.workload.environ) for config in rehearsed] == [(2, {"A": "b"})]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import nothing_of_this_name", "cannot be imported: No module named 'nothing_of_this_name'"),
        ("class Broken:\n    size: int = 1", "is not a dataclass"),
        ("def", "cannot be imported: SyntaxError"),
        (
            "from dataclasses import dataclass\n@dataclass\nclass Broken:\n    size: set = None",
            "size has the unsupported type set; use",
        ),
        ("", "has no attribute 'Broken'"),
        (
            "from dataclasses import dataclass\n@dataclass\nclass Broken:\n    small: int = 1",
            "an option with the reserved name small; rename this option",
        ),
    ],
)
def test_a_class_of_options_that_cannot_be_loaded_is_refused_in_one_line(make_plan, added_folder, code, why):
    folder, search_path = added_folder
    module = f"broken_{abs(hash(code))}"
    (folder / f"{module}.py").write_text(code)
    (folder / "workload/broken.yaml").write_text(f"defaults: [/schema/{module}.Broken@_here_, _self_]\n")
    with pytest.raises(ConfigError, match=why) as refused:
        make_plan([search_path, "workload=broken"])
    assert str(refused.value).startswith(f"/schema/{module}.Broken")
    assert "\n" not in str(refused.value)


def test_a_window_by_need_has_a_shortest_and_a_longest_length(make_plan):
    plan = make_plan(["degree=2", "window=by_need"])
    assert {group.window.text for group in plan.groups} == {"steady, 1 to 10 s after 2 s"}
    assert make_plan(["window.most_s=30"]).groups[0].window.text == "steady, 20 to 30 s after 3 s"
    fixed = make_plan(["window=by_need", "window.most_s=null"]).groups[0].window
    assert fixed.text == "steady, 1 s after 1 s"
    with pytest.raises(ConfigError, match=r"window.most_s=10 must be greater than window.seconds=20; .*most_s=null"):
        make_plan(["window=by_need", "window.seconds=20"])


def test_only_groups_that_cannot_be_interleaved_have_a_length_by_need(make_plan):
    in_turns = make_plan(["degree=2", "window=interleaved"]).groups
    by_need = make_plan(["degree=2", "window=interleaved", "window.most_s=10"]).groups
    assert [group.digest for group in by_need] == [group.digest for group in in_turns]
    alone = make_plan(["degree=2", "window=interleaved", "window.most_s=10", "pin_cpus=true"]).groups
    assert {group.window.text for group in alone} == {"steady, 4 to 10 s after 2 s"}


def test_solo_baselines_run_several_times_in_a_block_and_the_first_run_keeps_its_digest(make_plan):
    combinations = sweep(scenario=["naive"], degree=[1, 2])
    once = make_plan(*[[*o, "repeats=2"] for o in combinations])
    plan = make_plan(*[[*o, "repeats=2", "baseline_runs=3"] for o in combinations])
    assert Counter((group.name, group.block) for group in plan.groups) == {
        ("serial-1x-tiny", 1): 3,
        ("naive-1x-tiny", 1): 1,
        ("naive-2x-tiny", 1): 1,
        ("serial-1x-tiny", 2): 3,
        ("naive-1x-tiny", 2): 1,
        ("naive-2x-tiny", 2): 1,
    }
    assert {group.digest for group in once.groups} < {group.digest for group in plan.groups}
    assert len({group.digest for group in plan.groups}) == len({group.program_digest for group in plan.groups}) == 10
    assert len({group.key for group in plan.groups}) == 3
    assert sum("serial-1x-tiny run 3" in line for line in plan_text.format_plan(plan).splitlines()) == 2


def test_the_runs_of_a_baseline_have_launches_of_their_own(make_plan):
    plan = make_plan(["degree=2", "window=interleaved", "baseline_runs=2"], is_sweep=False)
    assert len(plan.groups) == 3 and len({group.launch for group in plan.groups}) == 3


def test_the_baseline_of_a_mix_with_fixed_work_runs_once(make_plan):
    mix = ["mix=[S,M]", "workload@sizes.S=tiny", "workload@sizes.M=tiny", "sizes.M.batch_size=16", "window=work"]
    assert len(make_plan([*mix, "baseline_runs=3"], is_sweep=False).groups) == 2
