"""The committed experiments: sweeps without `-m`, whose every key the command line can replace."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig

from hydra_plugins.study import _as_override
from pipeline.base.system import override_values
from pipeline.base.system.errors import ConfigError
from pipeline.plan import config_reader
from pipeline.plan.config_reader import name_company, name_rehearsal, name_reproductions, separate_rehearsals
from pipeline.plan.config_schema import Config
from tests.support import forks
from tests.support.experiments import composed, composed_by_hydra, configs_of, planned, sweeper_of


def print_plan(tmp_path: Path, *overrides: str, is_real: bool = False) -> list[str]:
    """The names of the groups that the command line plans, as a user starts it."""
    start = forks.start_real if is_real else forks.start
    with start("run.py", *overrides, "dry_run=true", f"gpu.lock_dir={tmp_path}") as process:
        out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return [line.split()[3] for line in out.splitlines() if "  block " in line]


@pytest.mark.slow
def test_quick_is_a_sweep_of_its_blocks_without_m(tmp_path):
    names = print_plan(
        tmp_path, "+experiment=robroek_quick", "gpu=simulated_h100_80gb", "workload.step_mode=eager", is_real=True
    )
    blocks = 5
    assert len(names) == 25 * blocks  # 12 collocated, 2 alone under MPS, 2 alone, 9 of mixes
    assert Counter(names)["serial-M+S+S"] == Counter(names)["naive-3x-resnet26_cifar10"] == blocks


@pytest.mark.slow
def test_quick_is_planned_as_it_is_for_a_gpu_that_is_not_there(tmp_path):
    overrides = ["+experiment=robroek_quick", "gpu=simulated_h100_80gb", "scenario=naive,mig", "shard=2"]
    with forks.start("run.py", *overrides, "dry_run=true", f"gpu.lock_dir={tmp_path}") as process:
        out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert {line.split()[2] for line in out.splitlines() if "  block " in line} == {"2"}
    assert "step_mode=cuda_graph" in out and " steady, " in out
    assert "nvidia-smi -i GPU-" in out and " mig -i GPU-" in out
    assert out.splitlines()[-1].startswith("takes at least ")


@pytest.mark.slow
def test_quick_is_rehearsed_with_tiny_networks(tmp_path):
    names = Counter(print_plan(tmp_path, "+experiment=robroek_quick", "+rehearse=tiny", "scenario=naive,mps,mig"))
    mixes = [f"{mode}-{mix}" for mode in ("serial", "naive", "mps", "mig") for mix in ("M+S", "M+S+S", "L+S")]
    copies = [f"{mode}-{degree}x-tiny" for mode in ("naive", "mps", "mig") for degree in (1, 2, 3, 7)]
    assert names == dict.fromkeys([*mixes, *copies, "serial-1x-tiny"], 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "expected"),
    [("scenario=naive", {"naive", "serial"}), ("scenario=mig", {"mig", "serial"})],
)
def test_the_command_line_wins_over_the_blocks(tmp_path, override, expected):
    names = print_plan(tmp_path, "+experiment=robroek_quick", "+rehearse=tiny", override)
    assert {name.split("-")[0] for name in names} == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("degree=2", {f"{mode}-2x-tiny" for mode in ("naive", "mps")} | {"serial-1x-tiny"}),
        ("mix=[M,S]", {f"{mode}-M+S" for mode in ("naive", "mps", "serial")}),
    ],
)
def test_a_number_of_jobs_leaves_out_the_blocks_that_cannot_have_it(tmp_path, override, expected):
    names = print_plan(tmp_path, "+experiment=robroek_quick", "+rehearse=tiny", override)
    assert set(names) == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("typed", "step_modes"),
    [
        (["workload=resnet152_imagenet"], {"eager", "cuda_graph"}),
        (["workload=resnet152_imagenet", "workload.step_mode=eager"], {"eager"}),
    ],
)
def test_another_workload_keeps_the_options_of_blocks_that_it_has(typed, step_modes):
    configs = configs_of(["+experiment=robroek_curves", *typed])
    assert {config.workload.step_mode.name for config in configs} == step_modes


def test_options_that_blocks_keep_are_swept_in_the_order_of_the_block():
    grid = "{workload: resnet26_cifar10, workload.batch_size: '8,16', degree: '1,2'}"
    words = [f"blocks=[{grid}]", "workload=resnet152_imagenet"]
    combinations = sweeper_of(words).expand(words)
    options = [[word for word in combination if not word.startswith("workload=")] for combination in combinations]
    assert options == [[f"workload.batch_size={size}", f"degree={degree}"] for size in (8, 16) for degree in (1, 2)]


@pytest.mark.slow
def test_another_scenario_drops_the_options_of_blocks():
    configs = configs_of(["+experiment=robroek_resnet_bs32", "scenario=mig_mps"])
    assert {config.scenario.profile for config in configs} == {"auto"}


@pytest.mark.slow
def test_each_combination_refers_to_its_list_project_choices(tmp_path):
    overrides = ["-m", "gpu=cpu", "listeners=[]", "baseline=never", "degree=1", "scenario=naive,serial"]
    names = print_plan(tmp_path, *overrides, "workload.name=a_${hydra:runtime.choices.scenario}")
    assert sorted(names) == ["naive-1x-a_naive", "serial-1x-a_serial"]


@pytest.mark.slow
def test_a_rehearsal_without_an_experiment_is_one_too(tmp_path):
    assert sorted(print_plan(tmp_path, "+rehearse=tiny", "degree=1,2")) == [
        "naive-1x-tiny",
        "naive-2x-tiny",
        "serial-1x-tiny",
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "overrides",
    [
        ["degree=3", "window.seconds=5"],
        ["scenario=mig", "mix=[M,S]", "scenario.size_profile={S: 1g, M: 2g}", "workload@sizes.S=tiny"],
        ["workload=script", "workload.script=run.py", "+workload.environ.A=b", "+workload@sizes.XL=tiny"],
        ["listeners=[host,nvml]", "~listeners.nvml", "listeners.host.interval_ms=7", "env=conda", "env.file=f"],
        ["+experiment=robroek_mixes", "window=steady", "gpu=simulated_a100_40gb"],
    ],
)
def test_a_sweep_composes_what_hydra_composes_for_a_single_run(overrides):
    composed(overrides)
    assert composed(overrides) == composed_by_hydra(overrides)


@pytest.mark.parametrize("value", [["--re", r"\d+ x", "l1\nl2"], [None, True, 1e-3], {"a b": ["it's"]}, None, False])
def test_a_value_of_a_block_is_set_as_it_stands_in_the_file(value):
    key, _, text = _as_override("workload.args", value).partition("=")
    assert (key, override_values.parse(text)) == ("workload.args", value)
    assert _as_override("scenario", "naive,mps") == "scenario=naive,mps"


@pytest.mark.torch
@pytest.mark.slow
def test_fractions_are_run_with_the_rest_of_the_gpu_idle_and_loaded(tmp_path):
    names = Counter(print_plan(tmp_path, "+experiment=fractions", "gpu=simulated_h100_80gb", "workload.outstanding=8"))
    shares = [(f"mps_percent-{{}}x-{{}}-active_thread_pct={pct}", n) for pct, n in ((50, 2), (33, 3), (25, 4))]
    shares += [(f"mps_static-{{}}x-{{}}-chunks={chunks}", n) for chunks, n in ((7, 2), (5, 3), (3, 4))]
    shares += [(f"mig-{{}}x-{{}}-profile={profile}", n) for profile, n in (("3g", 2), ("2g", 3), ("1g.20gb", 4))]
    expected = [share.format(degree, "infer_bert_base") for share, n in shares for degree in (1, n)]
    assert names == dict.fromkeys([*expected, "serial-1x-infer_bert_base"], 3)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("with_mig", [False, True])
def test_modes_on_the_command_line_select_the_shares_of_these_modes(tmp_path, with_mig):
    modes = "mps_percent,mig" if with_mig else "mps_percent"
    typed = ["+experiment=fractions", "gpu=simulated_h100_80gb", "workload.outstanding=8", f"scenario={modes}"]
    expected = [f"mps_percent-{n}x-infer_bert_base-active_thread_pct={pct}" for n, pct in ((2, 50), (3, 33), (4, 25))]
    expected += [f"mps_percent-1x-infer_bert_base-active_thread_pct={pct}" for pct in (50, 33, 25)]
    if with_mig:
        fractions = (("3g", 2), ("2g", 3), ("1g.20gb", 4))
        expected += [f"mig-{k}x-infer_bert_base-profile={name}" for name, n in fractions for k in (1, n)]
    assert Counter(print_plan(tmp_path, *typed)) == dict.fromkeys([*expected, "serial-1x-infer_bert_base"], 3)


def test_copies_of_a_server_divide_a_load_and_have_an_equal_one():
    with planned(configs_of(["+experiment=server_copies", "gpu=simulated_h100_80gb", "dry_run=true"])) as plan:
        groups = [group for group in plan.groups if group.block == 1]
    loads = Counter[tuple[str, int, str, str]]()
    for group in groups:
        server = dict(group.jobs[0].workload.params)
        loads[group.scenario, group.degree, server["outstanding_per"], server["outstanding"]] += 1
    swept = {"group": (12, 24, 48), "job": (6, 12, 24)}
    copies = [
        (mode, n, per, str(c)) for mode in ("naive", "mps") for n in (2, 3, 4) for per in swept for c in swept[per]
    ]
    alone = [("serial", 1, "group", str(n)) for n in (6, 12, 24, 48, 96)]
    assert loads == dict.fromkeys([*copies, *alone, *(("serial", 1, "job", str(n)) for n in (6, 12, 24))], 1)
    assert {group.settings["pinned CPUs"] for group in groups} == {"servers"}


def test_a_server_of_a_language_model_can_be_the_service_beside_a_training():
    server = ["workload@sizes.I=vllm", "sizes.I.model=m", "sizes.I.memory_fraction=0.4", "sizes.I.rate_per_s=2"]
    objectives = ["sizes.I.objective_ms=null", "sizes.I.objective_percentile=null", "sizes.I.ttft_ms=450"]
    typed = ["+experiment=service_beside_training", "gpu=simulated_h100_80gb", "dry_run=true", *server, *objectives]
    with planned(configs_of([*typed, "window.seconds=60"])) as plan:
        names = {job.workload.name for group in plan.groups for job in group.jobs if job.size == "I"}
    assert names == {"vllm"} and len(plan.groups) == 11 * 5


MINUTES = "+duration=minutes"
SMALL = ["workload=robroek_small", "degree=2", "scenario=naive"]


def get_window(config: Config) -> tuple[object, ...]:
    return config.window.kind.value, config.window.seconds, config.window.settle_s


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, -1])
def test_copies_are_measured_in_windows_whatever_the_order_of_the_arguments(order):
    config, *further_configs = configs_of([*["+experiment=robroek_resnet_bs32", MINUTES][::order], *SMALL])
    assert [get_window(one) for one in (config, *further_configs)] == [("steady", 20, 2)] * 5  # once for each block
    assert (config.data.source, config.workload.source.name, config.workload.samples) == (
        *["synthetic_files"] * 2,
        None,
    )


@pytest.mark.slow
def test_mixes_keep_the_proportions_of_their_work():
    config, *_ = configs_of(["+experiment=robroek_mixes", MINUTES, "mix=[L,M,S]", "scenario=naive"])
    assert (config.window.kind.value, config.window.epochs) == ("work", 1)
    samples = {size: config.sizes[size].samples for size in "SML"}
    published = {"S": 50_000, "M": 1_281_167, "L": 1_281_167}
    shares = [5 * published[size] / samples[size] for size in "SML"]
    assert shares == pytest.approx([195.3] * 3, rel=0.002)
    assert all(samples[size] % config.sizes[size].batch_size == 0 for size in "SML")


@pytest.mark.slow
def test_blocks_and_the_command_line_have_precedence():
    overrides = ["+experiment=robroek_quick", MINUTES, "window.seconds=7", "scenario=naive"]
    configs = configs_of([*overrides, "data.source=synthetic_device"])
    mixes = [config for config in configs if config.mix]
    assert {get_window(config) for config in configs if not config.mix} == {("steady", 7, 2)}
    assert {(mix.window.kind.value, mix.sizes["S"].samples) for mix in mixes} == {("work", 28_800)}
    assert {config.data.source for config in configs} == {"synthetic_device"}


@pytest.mark.slow
def test_a_rehearsal_stays_short():
    (config,) = configs_of([MINUTES, "+rehearse=tiny", "degree=2"])
    assert get_window(config) == ("steady", 1, 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["window=work"], r"window=work runs whole epochs, but \+duration=minutes measures windows; remove one$"),
        (["+duration=minutes,minutes"], r"cannot be swept; start a study for each duration$"),
    ],
)
def test_contradictions_are_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        sweeper_of([MINUTES]).expand([*SMALL, *arguments])


@pytest.fixture(autouse=True)
def _list_project_choices(monkeypatch):
    """Forget what Hydra composed before, here and in the tests that follow."""
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)


@pytest.mark.parametrize(
    ("overrides", "experiment"),
    [
        (["gpu=cpu"], "collocation"),
        (["gpu=nvidia", "tracking.experiment=mine"], "mine"),
        (["gpu=simulated_a100_40gb"], "collocation-rehearsal"),
        (["gpu=simulated_h100_80gb", "tracking.experiment=mine"], "mine-rehearsal"),
        (["gpu=simulated_h100_80gb", "tracking.experiment=mine-rehearsal"], "mine-rehearsal"),
    ],
)
def test_a_rehearsal_has_an_experiment_of_its_own(compose, overrides, experiment):
    configs = config_reader.read(compose(overrides))
    separate_rehearsals(configs)
    assert [config.tracking.experiment for config in configs] == [experiment]


def test_stand_ins_on_a_real_device_are_a_rehearsal():
    (config,) = configs_of(["+rehearse=tiny", "gpu=cpu"])
    separate_rehearsals([config])
    assert config.tracking.experiment == "collocation-rehearsal"


def test_names_are_derived_from_the_study_and_not_from_each_other():
    assert name_rehearsal(name_rehearsal("a")) == "a-rehearsal"
    assert [name_company(name) for name in ("a", "a-rehearsal")] == ["a_company", "a_company-rehearsal"]
    for original in ("a", "a-rehearsal", "a-reproductions", "a-rehearsal-reproductions"):
        assert name_reproductions(original, is_rehearsed=False) == "a-reproductions"
        assert name_reproductions(original, is_rehearsed=True) == "a-rehearsal-reproductions"
