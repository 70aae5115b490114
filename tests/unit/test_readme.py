"""The README says what is true: its links exist, and its commands compose and plan."""

from __future__ import annotations

import os
import re
import shlex

import pytest
from conftest import GPU

from pipeline.inventory import PROJECT_DIR

PAGES = [PROJECT_DIR / "README.md", *sorted((PROJECT_DIR / "docs").glob("**/*.md"))]
README = PAGES[0].read_text(encoding="utf-8")
COMMANDS = re.findall(r"^(python run\.py [^#\n]*)", README, flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)\)", text)
    for target in targets:
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_readme_shows_commands():
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("command", [c for c in COMMANDS if "--help" not in c])
def test_the_commands_of_the_readme_plan(make_plan, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "nsys").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    arguments = [a for a in shlex.split(command)[2:] if a != "-m"]
    axes = [a.split("=", 1) for a in arguments]
    grid: list[list[str]] = [[]]
    for key, value in axes:
        values = [value] if value.startswith("[") else value.split(",")
        grid = [[*given, f"{key}={v}"] for given in grid for v in values]
    assert make_plan(*grid, device=GPU).groups


def test_the_test_command_is_what_continuous_integration_runs():
    assert "make test" in README
    assert "make test" in (PROJECT_DIR / ".ci/run").read_text(encoding="utf-8")
