"""The inventory of a machine, and the digest of what it runs."""

from __future__ import annotations

import ast
import shutil

import pytest

from pipeline import rehearsal as rehearsal_of
from pipeline.base.domain.machine_state import MachineState
from pipeline.base.system import paths
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import config_reader, inventory
from pipeline.plan.inventory import SPEED_VARIABLES
from pipeline.plan.source_digest import find_module_file, read_code
from pipeline.record import resume
from tests.conftest import GPU, sweep
from tests.support.experiments import composed
from tests.support.tracking_cases import record


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("scenario", "rehearsal"),
    [
        ("mps", ""),
        ("mps_percent", ""),
        ("mps_static", " gpu.driver=590"),
        ("timeslice", ""),
        ("mig", ""),
        ("mig_mps", ""),
    ],
)
def test_each_mode_without_a_gpu_is_refused_with_what_rehearses_it(make_plan, scenario, rehearsal):
    remedy = f"gpu=simulated_h100_80gb{rehearsal}"
    with pytest.raises(ConfigError, match=rf"not .*; rehearse it with {remedy}, or choose scenario=naive$"):
        make_plan([f"scenario={scenario}"])
    configs = config_reader.read([composed([f"scenario={scenario}", *remedy.split()])])
    with rehearsal_of.prepare_machine(configs) as machine:
        assert make_plan([f"scenario={scenario}"], device=machine.find_device(configs[0].gpu)).groups


def test_in_a_study_a_group_that_cannot_be_held_is_skipped_with_the_reason(make_plan):
    plan = make_plan(["scenario=mps"], ["scenario=naive"])
    skipped = {group.name: group.skip_reason for group in plan.groups if group.skip_reason}
    assert list(skipped) == ["mps-2x-tiny"]
    assert "needs an NVIDIA GPU" in skipped["mps-2x-tiny"]


def test_a_study_of_which_nothing_but_baselines_could_run_is_refused(make_plan):
    with pytest.raises(ConfigError, match="needs an NVIDIA GPU"):
        make_plan(*sweep(scenario=["serial", "mps"], degree=[1, 2]))


def test_a_list_of_percentages_must_fit_the_jobs(make_plan):
    with pytest.raises(ConfigError, match="2 values for 3 jobs"):
        make_plan(["scenario=mps_percent", "degree=3", "scenario.active_thread_pct=[50,50]"], device=GPU)


NAMES = ("CUDA_LAUNCH_BLOCKING", "OMP_NUM_THREADS", "NVIDIA_TF32_OVERRIDE")


@pytest.mark.parametrize(
    ("name", "is_recorded"),
    [
        *((name, True) for name in NAMES),
        ("PYTORCH_CUDA_ALLOC_CONF", True),
        ("CUDA_DEVICE_MAX_CONNECTIONS", True),
        ("CUBLAS_WORKSPACE_CONFIG", True),
        ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", True),
        ("TORCHINDUCTOR_MAX_AUTOTUNE", True),
        ("NCCL_P2P_DISABLE", True),
        ("MKL_NUM_THREADS", True),
        ("OPENBLAS_NUM_THREADS", True),
        ("LD_PRELOAD", True),
        # What the orchestrator sets or removes, and what changes no speed.
        ("CUDA_VISIBLE_DEVICES", False),
        ("CUDA_MPS_PIPE_DIRECTORY", False),
        ("CUDA_HOME", False),
        ("CUDA_VERSION", False),
        ("TORCH_HOME", False),
        ("TORCHINDUCTOR_CACHE_DIR", False),
        ("KMP_BLOCKTIME", True),
        ("KMP_DUPLICATE_LIB_OK", False),
        ("KMP_INIT_AT_FORK", False),
        ("HOME", False),
    ],
)
def test_which_variables_are_recorded(name, is_recorded):
    assert (SPEED_VARIABLES.match(name) is not None) == is_recorded


@pytest.fixture
def plan_script(make_plan, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    for name in (*NAMES, "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    return lambda *overrides: make_plan(["workload=script", "workload.script=train.py", *overrides]).groups[0]


def test_a_variable_makes_another_group_and_is_a_param_of_it(plan_script, monkeypatch):
    without = plan_script()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    group = plan_script()
    assert group.digest != without.digest
    params = dict(group.jobs[0].workload.params)
    assert {name: value for name, value in params.items() if name.startswith("environ.")} == {
        "environ.OMP_NUM_THREADS": "1"
    }
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert plan_script().digest not in (group.digest, without.digest)


def test_a_variable_of_the_workload_replaces_that_of_the_caller(plan_script, monkeypatch):
    group = plan_script("workload.environ.OMP_NUM_THREADS=1")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert plan_script("workload.environ.OMP_NUM_THREADS=1").digest == group.digest


def test_a_secret_is_masked(plan_script, monkeypatch):
    monkeypatch.setenv("TORCH_API_TOKEN", "sesame")
    params = dict(plan_script().jobs[0].workload.params)
    assert params["environ.TORCH_API_TOKEN"] == "<hidden>"


MOVED = "from pipeline.prepare.sharing.naive import Naive\n\nclass Moved(Naive):\n    pass\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A copy of the programs, which a test may change."""
    shutil.copytree(PROJECT_DIR / "workloads", tmp_path / "workloads", ignore=shutil.ignore_patterns("__pycache__"))
    for module in (inventory, paths):
        monkeypatch.setattr(module, "PROJECT_DIR", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_stored_results(plan):
    """Every group of the plan as a result in the store."""
    facts = dict(MachineState.read(GPU).facts)
    same = {"facts": facts, "gpu_uuid": GPU.uuid}
    return [record((), digest=group.digest, settings_digest=group.settings_digest, **same) for group in plan.groups]


def test_after_a_program_was_added_and_a_class_moved_every_row_is_found_again(make_plan, project, monkeypatch):
    (project / "train.py").write_text("print(1)")
    runs = ([], ["workload=script", "workload.script=train.py", "baseline=always"])
    before = [make_plan(run, device=GPU) for run in runs]
    (project / "workloads/inference.py").write_text("from workloads import client\n")
    (project / "moved.py").write_text(MOVED)
    monkeypatch.syspath_prepend(str(project))
    for plan, run in zip(before, runs, strict=True):
        after = make_plan([*run, "scenario._target_=moved.Moved"], device=GPU)
        assert "moved.Moved" in {group.sharing.target for group in after.groups}
        remaining_groups, rows = resume.select_remaining(after, make_stored_results(plan))
        assert remaining_groups == () and len(rows) == len(plan.groups)
        assert resume.find_unused(after, remaining_groups, make_stored_results(plan)) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "file", ["train_timm", "training/training_steps", "images/image_files", "client", "timm_imports", "images/__init__"]
)
def test_what_a_program_imports_belongs_to_its_digest(make_plan, project, file):
    before = make_plan([]).groups[0].jobs[0].workload
    path = project / f"workloads/{file}.py"
    path.write_text(f"{path.read_text()}\nCHANGED = 1\n")
    after = make_plan([]).groups[0].jobs[0].workload
    assert after.digest != before.digest


def test_a_script_of_a_user_has_the_runner_and_its_imports_in_its_digest(make_plan, project):
    (project / "train.py").write_text("def main():\n    import other\n")
    for name in ("other.py", "unrelated.py"):
        (project / name).write_text("")
    digests = [make_plan(["workload=script", "workload.script=train.py"]).groups[0].digest]
    for changed in (
        "unrelated.py",
        "workloads/training/training_steps.py",
        "train.py",
        "other.py",
        "workloads/script.py",
    ):
        with (project / changed).open("a") as text:
            text.write("\nCHANGED = 1\n")
        digests.append(make_plan(["workload=script", "workload.script=train.py"]).groups[0].digest)
    assert digests[0] == digests[1] == digests[2]
    assert len(set(digests[2:])) == 4


@pytest.mark.parametrize(
    ("script", "args"),
    [
        ("python", "[-m,mine.train]"),
        ("torchrun", "[--nproc-per-node,'1',-m,mine.train]"),
        ("python", "[mine/train.py]"),
        ("launcher", "['--config=mine/train.py']"),
    ],
)
def test_code_that_a_command_line_names_belongs_to_its_digest(make_plan, project, monkeypatch, script, args):
    (project / "mine").mkdir()
    for name, text in {"train.py": "from . import model\n", "model.py": "", "other.py": ""}.items():
        (project / "mine" / name).write_text(text)
    for program in ("python", "torchrun", "launcher"):
        (project / program).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(project), prepend=":")
    digests = []
    for changed in ("other.py", "model.py", "train.py"):
        digests.append(make_plan(["workload=script", f"workload.script={script}", f"workload.args={args}"]))
        with (project / "mine" / changed).open("a") as text:
            text.write("CHANGED = 1\n")
    digests.append(make_plan(["workload=script", f"workload.script={script}", f"workload.args={args}"]))
    first, second, third, last = (plan.groups[0].digest for plan in digests)
    assert first == second
    assert len({second, third, last}) == 3


def test_a_script_in_the_place_of_a_program_that_speaks_to_the_study_is_refused(make_plan, project):
    texts = {"train.py": "import torch\n", "mine.py": "import part\n", "part.py": "from workloads import client\n"}
    texts |= {"old.py": "print 1\n", "run.sh": "#!/bin/sh\n"}
    for name, text in texts.items():
        (project / name).write_text(text)
        (project / name).chmod(0o755)
    for name in ("mine.py", "old.py", "run.sh"):
        make_plan([f"workload.script={name}"])
    with pytest.raises(ConfigError, match=r"train.py does not use the job protocol; .* with workload=script"):
        make_plan(["workload.script=train.py"])


def test_the_modules_of_a_users_script_are_found_in_its_folder_and_its_repository(tmp_path):
    files = {
        "outside.py": "",
        "mine/.git/HEAD": "",
        "mine/common.py": "import outside, torch",
        "mine/src/lib/__init__.py": "from . import deep",
        "mine/src/lib/deep.py": "def f():\n    from .more import x\n",
        "mine/src/lib/more/__init__.py": "from ..gone import z",
        "mine/src/lib/unused.py": "",
        "mine/runs/a/namespace/part.py": "print 'of another Python'",
        "mine/runs/a/fast.cpython-311-x86_64-linux-gnu.so": "\0",
        "mine/runs/a/train.py": "import lib, common, fast\nimport namespace.part as part\nfrom os import path",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    code = read_code(tmp_path / "mine/runs/a/train.py", PROJECT_DIR)
    names = {source.name for source in code.sources}
    assert names == {
        *("train.py", "namespace/part.py", "fast.cpython-311-x86_64-linux-gnu.so", "../../common.py"),
        *("../../src/lib/__init__.py", "../../src/lib/deep.py", "../../src/lib/more/__init__.py"),
    }
    (tmp_path / "mine/.git/HEAD").unlink()
    (tmp_path / "mine/.git").rmdir()
    alone = read_code(tmp_path / "mine/runs/a/train.py", PROJECT_DIR)
    assert {source.name for source in alone.sources} == {name for name in names if not name.startswith("..")}


def test_where_a_program_lies_is_no_part_of_the_digest_and_an_option_is(make_plan):
    plain, elsewhere, other = (
        make_plan(["scenario=mps", *more], device=GPU).groups[0].digest
        for more in ([], ["scenario.program=/bin/true"], ["scenario.pinned_mem_limit=1G"])
    )
    assert plain == elsewhere != other


def test_imports_are_followed_in_every_form(tmp_path):
    package = tmp_path / "workloads"
    (package / "images").mkdir(parents=True)
    texts = {
        "__init__.py": "",
        "images/__init__.py": "",
        "images/files.py": "from ..deep import thing\nimport numpy",
        "images/data.py": "def f():\n    from . import files",
        "deep.py": "thing = 1",
        "plain.py": "import workloads.other, os",
        "other.py": "from workloads.images.data import anything",
        "alone.py": "",
    }
    for name, text in texts.items():
        (package / name).write_text(text)
    before = {name: read_code(package / name, tmp_path).digest for name in texts}
    (package / "deep.py").write_text("thing = 2")
    after = {name: read_code(package / name, tmp_path).digest for name in texts}
    changed = {name for name in texts if before[name] != after[name]}
    assert changed == {"deep.py", "images/files.py", "images/data.py", "other.py", "plain.py"}
    assert find_module_file("workloads.images", tmp_path) == package / "images/__init__.py"
    assert find_module_file("os.path", tmp_path) is None


def test_only_the_fork_server_imports_a_module_that_no_import_names():
    def names(tree):
        return {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(tree)}

    files = (PROJECT_DIR / "workloads").rglob("*.py")
    dynamic = {"import_module", "__import__", "run_path", "run_module", "spec_from_file_location"}
    # computing.py imports frameworks, which are packages of the environment and no modules of the project.
    known = {"fork_server.py", "computing.py"}
    assert {file.name for file in files if names(ast.parse(file.read_text())) & dynamic} == known


def test_a_program_of_ours_that_is_no_python_is_one_error(make_plan, project):
    (project / "workloads/training/training_steps.py").write_text("def")
    with pytest.raises(ConfigError, match=r"train_timm.py: .*steps.py is not valid Python"):
        make_plan([])
