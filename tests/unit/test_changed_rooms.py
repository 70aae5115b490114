"""`make test-changed`: which tests are about a file."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from tests.support import changed_rooms

pytestmark = pytest.mark.covers("tests/support/changed_rooms.py")
ROOMS = re.compile(r"mark\.covers\(([^)]*)\)")


def item(path: str, *covered: str, is_smoke: bool = False):
    return SimpleNamespace(
        path=PROJECT_DIR / path,
        iter_markers=lambda name: [SimpleNamespace(args=covered)] * (name == "covers"),
        get_closest_marker=lambda name: True if is_smoke and name == "smoke" else None,
    )


@pytest.mark.parametrize(
    ("test", "changed"),
    [
        (item("tests/unit/plan/test_plan.py"), "pipeline/plan/config_reader.py"),
        (item("tests/unit/prepare/mig/test_profiles.py"), "pipeline/prepare/mig/profiles.py"),
        (item("tests/unit/listeners/test_host.py"), "listeners/nvml.py"),
        (item("tests/unit/plan/test_plan.py"), "tests/unit/plan/test_plan.py"),
        (item("tests/flow/test_scale.py", "pipeline/scale"), "pipeline/scale/local_gpus.py"),
        (item("tests/flow/test_run.py", "run.py"), "run.py"),
        (item("tests/flow/test_run.py", is_smoke=True), "docs/mig.md"),
    ],
)
def test_a_test_is_about_its_folder_its_file_and_what_it_names(test, changed):
    assert changed_rooms.is_about(test, {"CHANGELOG.md", changed})


@pytest.mark.parametrize(
    ("test", "changed"),
    [
        (item("tests/unit/plan/test_plan.py"), "pipeline/planner/serve.py"),
        (item("tests/unit/plan/test_plan.py"), "pipeline/record/plan.py"),
        (item("tests/flow/test_scale.py", "pipeline/scale"), "pipeline/study.py"),
        (item("tests/unit/test_readme.py"), "tests/unit/test_imports.py"),
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
