"""The import contracts of pyproject.toml fail when an arrow is turned, and the tests have the folders of the code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR

pytestmark = pytest.mark.covers("pyproject.toml")

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


def broken_contracts(tree: Path) -> list[str]:
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
        broken = broken_contracts(tree)
    finally:
        path.unlink() if before is None else path.write_text(before, encoding="utf-8")
    assert contract in broken and set(broken) <= {contract, CIRCLES}


def test_the_contracts_hold(tree: Path) -> None:
    assert broken_contracts(tree) == []


def test_the_unit_tests_have_the_folders_of_the_code() -> None:
    root = PROJECT_DIR / "tests/unit"
    folders = [path.relative_to(root) for path in root.rglob("*") if path.is_dir() and path.name != "__pycache__"]
    assert len(folders) >= 10
    for folder in folders:
        above = PROJECT_DIR if folder.parts[0] in ("listeners", "workloads") else PROJECT_DIR / "pipeline"
        assert (above / folder).is_dir(), folder
