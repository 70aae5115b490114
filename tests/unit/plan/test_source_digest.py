"""What a digest covers: what a program computes and how the GPU is shared, not which other files there are."""

from __future__ import annotations

import ast
import shutil

import pytest

from pipeline.base.domain.machine_state import MachineState
from pipeline.base.system import paths
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import inventory
from pipeline.plan.source_digest import find_module_file, read_code
from pipeline.record import resume
from tests.conftest import GPU
from tests.support.tracking_cases import record

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
