"""Names and docstrings follow the rules of CONTRIBUTING.md. Ruff checks that functions' docstrings begin with verbs."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR

FOLDERS = ("pipeline", "listeners", "workloads", "hydra_plugins")
EMPTY_NAMES = frozenset(
    [
        "each",
        "found",
        "said",
        "there",
        "asked",
        "wanted",
        "told",
        "given",
        "made",
        "whole",
        "theirs",
        "ours",
        "own",
        "mine",
        "here",
        "every",
        "kept",
        "left",
        "others",
    ]
)
"""Words that do not say what a variable or parameter holds."""
NO_VERBS = re.compile(r"_*(of|in|that|left|own|such|what|how|told|said|shown|found|given|kept)(_|$)")
"""First words that the name of a function must not have: prepositions, pronouns and participles."""
NO_SUBJECTS = re.compile(r"(What|That|Those|Of|Whether|How|Where)\b")
OTHER_WORDS = re.compile(
    r"ways? of sharing|speed-up against (serial|the best)|throughput gain|gain over|speed over (serial|one|a CUDA)"
)
"""Words that CONTRIBUTING.md replaces by those of the glossary."""
ALLOWED_NAMES = {
    ("pipeline/launch/job_state.py", "said"),
    ("pipeline/planner/transition/transition_steps.py", "made"),
    ("pipeline/prepare/device/time_slice.py", "found"),
    ("pipeline/prepare/device/time_slice.py", "ours"),
    ("workloads/framework.py", "given"),
}
"""Names in stored files: arguments of journal steps, keys of plans and of answers of programs."""
ALLOWED_MODULES = {
    "control_program": "the simulated MPS control program, and what starts the real one",
    "none": "choices of two configuration groups, named by `_target_`",
    "nvml": "a listener's name, and the library that all of the device layer uses",
    "options": "workloads/*/options.py, as your_own_workload.md describes",
}
"""Modules that share a name, with the reason; a test keeps this list as short as it can be."""


@cache
def modules() -> dict[Path, ast.Module]:
    files = (file for folder in FOLDERS for file in sorted((PROJECT_DIR / folder).rglob("*.py")))
    return {file.relative_to(PROJECT_DIR): ast.parse(file.read_text(encoding="utf-8")) for file in files}


def nodes() -> Iterator[tuple[Path, ast.AST]]:
    for file, tree in modules().items():
        for node in ast.walk(tree):
            yield file, node


def assigned_names() -> Iterator[tuple[str, str]]:
    for file, node in nodes():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield str(file), node.id
        if isinstance(node, ast.arg):
            yield str(file), node.arg


def test_no_variable_or_parameter_has_an_empty_name() -> None:
    empty = {(file, name) for file, name in assigned_names() if name in EMPTY_NAMES}
    assert empty == ALLOWED_NAMES


def test_no_function_begins_with_a_preposition_or_participle() -> None:
    functions = [(file, node) for file, node in nodes() if isinstance(node, ast.FunctionDef)]
    assert [f"{file}: {node.name}" for file, node in functions if NO_VERBS.match(node.name)] == []


def test_no_docstring_begins_with_a_pronoun() -> None:
    documented = ast.FunctionDef | ast.ClassDef | ast.Module
    texts = [(file, ast.get_docstring(node) or "") for file, node in nodes() if isinstance(node, documented)]
    assert [f"{file}: {text}" for file, text in texts if NO_SUBJECTS.match(text)] == []


def test_no_text_below_an_assignment_begins_with_a_pronoun() -> None:
    bodies = [(file, node.body) for file, node in nodes() if isinstance(node, ast.ClassDef | ast.Module)]
    texts = [
        (file, text.value.value)
        for file, body in bodies
        for text in body
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    ]
    assert [f"{file}: {text}" for file, text in texts if NO_SUBJECTS.match(text)] == []


def test_modules_that_share_a_name_are_known() -> None:
    counts = Counter(file.stem for file in modules() if file.stem not in ("__init__", "__main__"))
    assert {name for name, count in counts.items() if count > 1} == set(ALLOWED_MODULES)


def test_pages_and_code_use_the_words_of_the_glossary() -> None:
    kinds = {".md", ".py", ".jinja", ".yaml"}
    files = [
        file for folder in (*FOLDERS, "docs") for file in (PROJECT_DIR / folder).rglob("*") if file.suffix in kinds
    ]
    texts = {file: " ".join(file.read_text(encoding="utf-8").split()) for file in (PROJECT_DIR / "README.md", *files)}
    assert [f"{file}: {match[0]}" for file, text in texts.items() if (match := OTHER_WORDS.search(text))] == []


@pytest.mark.parametrize("word", ["of_group", "in_words", "_that_take", "left_by", "found", "__given"], ids=str)
def test_a_name_without_a_verb_is_seen(word: str) -> None:
    assert NO_VERBS.match(word)


@pytest.mark.parametrize("word", ["offer", "install", "format_rate", "find_groups", "keep_lines", "hold_lock"], ids=str)
def test_a_verb_is_none(word: str) -> None:
    assert not NO_VERBS.match(word)
