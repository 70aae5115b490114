"""Commands that the README, the guides and the files of `conf/` show: each can be typed, or is of a listed kind."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from hydra.types import RunMode

from pipeline import rehearsal
from pipeline.base.domain.machine_state import cpu_device
from pipeline.base.domain.records import Device, Plan
from pipeline.base.system import user_command
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import config_reader, plan_builder
from pipeline.plan import plan_builder as planning
from pipeline.plan.command_line import quote_home
from pipeline.plan.config_schema import GpuConfig, GpuKind
from pipeline.plan.inventory import take_inventory
from pipeline.plan.job_entries import refuse_unread
from tests.conftest import GPU
from tests.support.container_programs import write_apptainer, write_image
from tests.support.experiments import sweeper_of

pytestmark = pytest.mark.covers("docs", "README.md", "conf")

PAGES = [PROJECT_DIR / "README.md", *sorted((PROJECT_DIR / "docs").glob("**/*.md"))]
COMMENTED = sorted((PROJECT_DIR / "conf").glob("**/*.yaml"))
# What these pages name is made by the reader: `tests/flow/test_extensions.py` makes it and runs their commands.
EXTENSIONS = ("your_own_listener", "your_own_workload", "your_own_sharing_mode", "your_own_column")
KINDS = {
    "an ellipsis": r"\.\.\.",
    "names of the reader's": r"^run\.py .*\b(NAME|KEY=VALUE|DIR)\b|^-m pipeline\.NAME",
    "a run of a store": r"\breproduce=",
    "the variable of a loop": r"\$shard",
    "weights of the reader's": r"\bworkload\.weights=",
    "a program at the place where NVIDIA installs it": r"=/opt/nvidia/",
    "nothing, as it prints help": r" --(help|help-keys)\b",
    "nothing, as it prints code for a shell": r" -sc install=",
}
"""Commands that cannot be planned as they stand, by what they need."""
_COMMAND = re.compile(
    r"(?<![\w/])python ((?:run\.py|-m (?:pipeline|benchmarks|tests)[.\w]*)(?: [^`\n]*|(?=`|$)))", re.M
)
_ASSIGNMENT = re.compile(r'^(?P<name>[A-Z])="(?P<value>[^"]*)"$', re.M)
_NAME_OF_A_PROGRAM = re.compile(r"python (run\.py|-m [\w.]+( \w+)?)")  # that a sentence speaks of
_CODE = re.compile(r"^ *```\w*\n(.*?)^ *```|`(python [^`]+)`", re.M | re.S)


def commands_of(path: Path) -> Iterator[str]:
    """Yield the commands of a page, or of the comments of a YAML file, without what follows them on the line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        variables = dict(_ASSIGNMENT.findall(text))
        code = [block or " ".join(span.split()) for block, span in _CODE.findall(text)]
        text = "\n".join(words for words in code if not _NAME_OF_A_PROGRAM.fullmatch(words))
        for _ in variables:
            text = re.sub(r"\$([A-Z])\b", lambda match: variables.get(match[1], match[0]), text)
    for command in _COMMAND.findall(text.replace("\\\n", " ")):
        yield " ".join(re.split(r"\s#|;|\s>", command)[0].split())


def kind_of(command: str) -> str | None:
    """Name the first kind of `KINDS` that the command is of."""
    project_words = " ".join(user_command.divide(command.split())[0])
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, project_words)), None)


COMMANDS = {
    (path, command): kind_of(command)
    for path in (*PAGES, *COMMENTED)
    if path.stem not in EXTENSIONS
    for command in commands_of(path)
}


def typable(prefix: str) -> list[object]:
    """Return a parameter for each command that begins so and needs nothing, once."""
    pages = {command: path for (path, command), kind in reversed(COMMANDS.items()) if kind is None}

    def is_slow(command: str, path: Path) -> bool:
        return "+experiment=" in command or path.parent.name in ("experiment", "results")

    return [
        pytest.param(
            *(command, path),
            id=f"{path.stem}: {command.removeprefix(prefix).strip()}"[:80],
            marks=pytest.mark.slow if is_slow(command, path) else (),
        )
        for command, path in pages.items()
        if command.startswith(prefix)
    ]


@pytest.fixture
def files_of_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the scripts, data and programs that the pages speak of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    interpreter = tmp_path / "miniconda3/envs/mine/bin/python"
    interpreter.parent.mkdir(parents=True)
    interpreter.symlink_to(sys.executable)
    for folder in ("imagenet64", "cifar-10-batches-py", "cifar10", "imagenet", "train", "validation"):
        (tmp_path / folder).mkdir()
    for name in ("train.py", "eval.py", "requirements.txt"):
        (tmp_path / name).touch()
    for name in ("environment.yml", "eval.yml", "torch26.yml", "torch27.yml"):
        (tmp_path / name).write_text("{channels: [conda-forge], dependencies: [python]}")
    (tmp_path / "asks.jsonl").write_text("{}\n")
    (tmp_path / "trials.txt").write_text("train.py 1\ntrain.py 2\n")
    for program in ("nsys", "ncu", "lmp", "namd3", "pmemd.cuda", "gmx"):
        (tmp_path / program).symlink_to("/bin/true")
    write_apptainer(tmp_path)
    for name in ("train.sif", "timm.sif"):
        write_image(tmp_path / name)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def covering(combinations: Sequence[list[str]]) -> list[list[str]]:
    """Select combinations in which each value of a sweep occurs."""
    seen = set[str]()
    selected = []
    for overrides in combinations:
        if not seen.issuperset(overrides):
            seen.update(overrides)
            selected.append(overrides)
    return selected


def planned(arguments: list[str], *, is_whole: bool) -> Plan:
    """Plan what `python run.py ARGUMENTS` runs, on an H100 unless it asks for another device.

    Of a sweep that is not planned as a whole, each value is, once.
    """

    def find_device(gpu: GpuConfig) -> Device:
        if simulated is not None:
            return simulated.find_device(gpu)
        return cpu_device() if gpu.kind is GpuKind.cpu else GPU

    words = [word for word in map(quote_home, user_command.make_overrides(arguments)) if word != "-m"]
    sweeper = sweeper_of(
        [word for word in words if word.startswith(("hydra", "+experiment", "+rehearse", "+duration"))]
    )
    is_sweep = "-m" in arguments or sweeper.config.hydra.mode is RunMode.MULTIRUN
    combinations = sweeper.expand(words)
    assert is_sweep or len(combinations) == 1, "add -m"
    composed = [
        sweeper.launcher.compose(overrides) for overrides in (combinations if is_whole else covering(combinations))
    ]
    configs = config_reader.read(composed)
    refuse_unread(words, configs, composed)
    with ExitStack() as stack:
        simulated = stack.enter_context(rehearsal.prepare_machine(configs))
        return plan_builder.check_plan(
            planning.build_plan(configs, take_inventory(configs, find_device), is_sweep=is_sweep)
        )


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("command", "path"), typable("run.py"))
def test_a_command_that_is_shown_plans(command: str, path: Path, files_of_the_reader: Path) -> None:
    words = shlex.split(re.sub(r"(?<==)(FOLDER|DATA|/data)\b", str(files_of_the_reader), command))
    plan = planned(words[1:], is_whole=path.name == "README.md" or "only=" in command)
    assert any(group.skip_reason is None for group in plan.groups)


def test_every_kind_of_command_that_cannot_be_typed_is_shown() -> None:
    assert set(COMMANDS.values()) == {None, *KINDS}


class IsReadError(Exception):
    """Raised in the place of what a program does once its command line is read."""


@pytest.mark.parametrize(("command", "path"), typable("-m"))
def test_a_command_of_a_module_is_read(command: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parse = argparse.ArgumentParser.parse_args

    def parse_only(parser: argparse.ArgumentParser, *words: object) -> None:
        parse(parser, *words)  # type: ignore[call-overload]
        raise IsReadError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    _, name, *arguments = shlex.split(command)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    try:
        module = importlib.import_module(f"{name}.__main__")
    except ModuleNotFoundError:
        module = importlib.import_module(name)
    with pytest.raises(IsReadError):
        module.main(arguments) if module.main.__code__.co_argcount else module.main()
