"""The import contracts, what imports load, which tests a change selects, and programs as forks."""

from __future__ import annotations

import dataclasses
import re
import resource
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import config_schema
from tests.support import changed_rooms, forks

pytestmark = pytest.mark.covers("pyproject.toml", "tests/support")


CONTRACTS = tomllib.loads((PROJECT_DIR / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
CIRCLES = "no circle of imports"
# What is added: to which file, the module that it must not import, and the contract that this breaks.
TURNED = [
    ("pipeline/plan/config_reader.py", "pipeline.record.spool", "the flow runs one way"),
    ("pipeline/new.py", "pipeline.base.system.words", "the flow runs one way"),  # a new module has a layer
    ("pipeline/base/system/host_info.py", "pipeline.base.domain.records", "system code knows no job and no GPU"),
    (
        "pipeline/prepare/mps/mps_daemon.py",
        "pipeline.prepare.sharing.mps",
        "a sharing mode uses mechanisms, no mechanism knows a mode",
    ),
    (
        "pipeline/report/read/rows.py",
        "pipeline.report.page.study_tables",
        "a report is read, evaluated, drawn, laid out",
    ),
    (
        "listeners/nvml.py",
        "pipeline.plan.config_schema",
        "listeners know records, protocols, errors, helper programs and NVML",
    ),
    ("workloads/client.py", "pipeline.base.system.words", "workloads know only the client"),
    ("pipeline/study/study_run.py", "workloads.client", "the pipeline names neither listeners nor workloads"),
    ("pipeline/study/study_run.py", "mlflow", "record.store alone imports mlflow"),
    ("pipeline/planner/deployment.py", "pipeline.prepare.mig.mig_smi", "a plan is made without a GPU"),
    ("pipeline/study/executor.py", "pipeline.plan.config_schema", "only what asks for a study knows its configuration"),
    (
        "pipeline/plan/config_reader.py",
        "pipeline.prepare.device.nvml",
        "a study is read and planned without its machine",
    ),
    ("pipeline/base/system/errors.py", "pipeline.base.system.paths", CIRCLES),
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages, and the contracts."""
    folder = tmp_path_factory.mktemp("tree")
    only_code = shutil.ignore_patterns("__pycache__", "*.json", "*.yaml", "*.jinja")
    for package in CONTRACTS["root_packages"]:
        shutil.copytree(PROJECT_DIR / package, folder / package, ignore=only_code)
    shutil.copy(PROJECT_DIR / "pyproject.toml", folder)
    return folder


def list_broken_contracts(tree: Path) -> list[str]:
    """What the linter says of the tree; it reads the files that have not changed from its cache."""
    # `lint-imports`, which lies beside the interpreter and may not be on PATH.
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    argv = [sys.executable, "-c", program, "--cache-dir", str(tree / "cache")]
    done = subprocess.run(argv, cwd=tree, capture_output=True, text=True, timeout=300)
    broken = re.findall(r"^(.*) BROKEN", done.stdout, flags=re.MULTILINE)
    assert (done.returncode == 0) == (not broken), done.stdout + done.stderr
    return broken


def test_every_contract_has_an_arrow_to_turn() -> None:
    assert {name for *_, name in TURNED} == {contract["name"] for contract in CONTRACTS["contracts"]}
    assert not CONTRACTS.get("exclude_type_checking_imports", False)


@pytest.mark.slow
@pytest.mark.parametrize(("file", "module", "contract"), TURNED)
def test_an_arrow_that_is_turned_breaks_its_contract(tree: Path, file: str, module: str, contract: str) -> None:
    """An import for type checking counts like any other."""
    path = tree / file
    before = path.read_text(encoding="utf-8") if path.exists() else None
    added = f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import {module}\n"
    path.write_text(f"{before or ''}\n{added}", encoding="utf-8")
    try:
        broken = list_broken_contracts(tree)
    finally:
        path.unlink() if before is None else path.write_text(before, encoding="utf-8")
    assert contract in broken and set(broken) <= {contract, CIRCLES}


def test_the_contracts_hold(tree: Path) -> None:
    assert list_broken_contracts(tree) == []


def test_no_committed_link_leads_out_of_the_project() -> None:
    listed = subprocess.run(["git", "ls-files", "-s"], cwd=PROJECT_DIR, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this copy is no clone")
    links = [line.partition("\t")[2] for line in listed.stdout.splitlines() if line.startswith("120000 ")]
    assert not [link for link in links if PROJECT_DIR not in (PROJECT_DIR / link).resolve().parents]


def test_the_unit_tests_have_the_folders_of_the_code() -> None:
    root = PROJECT_DIR / "tests/unit"
    folders = [path.relative_to(root) for path in root.rglob("*") if path.is_dir() and path.name != "__pycache__"]
    assert len(folders) >= 10
    for folder in folders:
        above = PROJECT_DIR if folder.parts[0] in ("listeners", "workloads") else PROJECT_DIR / "pipeline"
        assert (above / folder).is_dir(), folder


PROBE = """
import sys
def forbid(event, args):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "socket.connect"):
        raise RuntimeError(f"an import caused {event}")
sys.addaudithook(forbid)
import listeners.activity, listeners.dcgm, listeners.gpm, listeners.host, listeners.nvml, listeners.smi
import workloads.client
import workloads.serving.options, workloads.rates.options, workloads.frameworks.options, workloads.program
import pipeline.prepare.mig.layouts, pipeline.study.execution, pipeline.tracking
import pipeline.record.store.results, pipeline.prepare.device.nvml
import pipeline.report.__main__, pipeline.report.figures.catalogue, pipeline.report.page.page
import pipeline.report.page.study_tables, pipeline.report.evaluate.paper
import pipeline.planner.__main__, pipeline.planner.profile_table, pipeline.planner.commands.results_commands
import pipeline.planner.commands.planning_commands
heavy = {"torch", "timm", "mlflow", "pandas", "numpy", "transformers", "rich", "pynvml"}
heavy = (heavy | {"matplotlib", "jinja2", "scipy"}) & set(sys.modules)
assert not heavy, heavy
"""


def test_imports_are_light_and_without_side_effects():
    done = subprocess.run([sys.executable, "-c", PROBE], cwd=PROJECT_DIR, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def read_child_cpu_s() -> float:
    """CPU seconds, not elapsed time, because other tests run beside this one."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_help_shows_the_groups_within_half_a_second():
    times = []
    for _ in range(5):
        before_s = read_child_cpu_s()
        done = subprocess.run(
            [sys.executable, "run.py", "--help"], cwd=PROJECT_DIR, capture_output=True, text=True, timeout=300
        )
        times.append(read_child_cpu_s() - before_s)
    assert "naive*, serial, streams" in " ".join(done.stdout.split())  # wherever the line is broken
    for words in ("\n  workload  ", "activity*, dcgm, gpm, host*, nvml*, smi*", "--help-keys"):
        assert words in done.stdout
    readme = (PROJECT_DIR / "README.md").read_text(encoding="utf-8").partition("## Six commands")[2]
    commands = [line.partition("#")[0].strip() for line in readme.split("```")[1].splitlines()[1:]]
    assert len(commands) == 6 and [command for command in commands if command not in done.stdout] == []
    assert done.stdout.count("\n") <= 70
    assert min(times) < 0.25


def test_every_key_is_explained_by_help_keys():
    done = subprocess.run(
        [sys.executable, "run.py", "--help-keys"], cwd=PROJECT_DIR, capture_output=True, text=True, timeout=300
    )
    fields = [field.name for field in dataclasses.fields(config_schema.Config)]
    groups = {name for name in fields if f"\n{name}." in done.stdout}
    assert {"gpu", "window", "limits"} <= groups
    assert [name for name in fields if name not in groups and f"\n{name}  (" not in done.stdout] == ["sizes"]
    assert "\ngpu.count  (int; default: 1)\n      number of GPUs of a simulated machine\n" in done.stdout


ROOMS = re.compile(r"mark\.covers\(([^)]*)\)")


def make_item(path: str, *covered: str, is_smoke: bool = False):
    return SimpleNamespace(
        path=PROJECT_DIR / path,
        iter_markers=lambda name: [SimpleNamespace(args=covered)] * (name == "covers"),
        get_closest_marker=lambda name: True if is_smoke and name == "smoke" else None,
    )


@pytest.mark.parametrize(
    ("test", "changed"),
    [
        (make_item("tests/unit/plan/test_plan.py"), "pipeline/plan/config_reader.py"),
        (make_item("tests/unit/prepare/mig/test_profiles.py"), "pipeline/prepare/mig/profiles.py"),
        (make_item("tests/unit/listeners/test_host.py"), "listeners/nvml.py"),
        (make_item("tests/unit/plan/test_plan.py"), "tests/unit/plan/test_plan.py"),
        (make_item("tests/flow/test_scale.py", "pipeline/scale"), "pipeline/scale/local_gpus.py"),
        (make_item("tests/flow/test_run.py", "run.py"), "run.py"),
        (make_item("tests/flow/test_run.py", is_smoke=True), "docs/mig.md"),
    ],
)
def test_a_test_is_about_its_folder_its_file_and_what_it_names(test, changed):
    assert changed_rooms.is_about(test, {"CHANGELOG.md", changed})


@pytest.mark.parametrize(
    ("test", "changed"),
    [
        (make_item("tests/unit/plan/test_plan.py"), "pipeline/planner/serve.py"),
        (make_item("tests/unit/plan/test_plan.py"), "pipeline/record/plan.py"),
        (make_item("tests/flow/test_scale.py", "pipeline/scale"), "pipeline/study.py"),
        (make_item("tests/unit/test_readme.py"), "tests/unit/test_imports.py"),
    ],
)
def test_a_test_is_about_nothing_else(test, changed):
    assert not changed_rooms.is_about(test, {changed})


def test_what_need_not_be_imported_is_known_by_its_text():
    unit = PROJECT_DIR / "tests/unit"
    assert changed_rooms.may_be_about(unit, {"README.md"})
    assert not changed_rooms.may_be_about(unit / "plan/test_plan.py", {"README.md"})
    assert changed_rooms.may_be_about(unit / "plan/test_plan.py", {"pipeline/plan/config_reader.py"})
    assert changed_rooms.may_be_about(PROJECT_DIR / "tests/flow/test_run.py", {"README.md"})


def test_each_test_of_the_flow_names_what_it_is_about_and_that_is_there():
    def is_there(room: str) -> bool:
        path = PROJECT_DIR / room
        # a folder that is gone may stand here with its cached modules
        return path.is_file() or any(file.suffix not in ("", ".pyc") for file in path.rglob("*"))

    for path in (PROJECT_DIR / "tests/flow").glob("test_*.py"):
        (named,) = ROOMS.findall(path.read_text(encoding="utf-8"))
        rooms = re.findall('"([^"]+)"', named)
        assert rooms and all(map(is_there, rooms)), path


def test_a_script_that_is_interrupted_before_its_first_lines_shows_nothing(tmp_path):
    (tmp_path / "early.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = forks.run(tmp_path / "early.py")
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
