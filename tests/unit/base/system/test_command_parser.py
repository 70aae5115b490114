"""Command lines that a command refuses: one line with a remedy, exit status 2."""

from __future__ import annotations

import importlib
import re

import pytest

from pipeline.base.system import entry_points
from pipeline.base.system.paths import PROJECT_DIR

_RUN = entry_points.RUN


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["pairs", "--driver-branch", "abc"], "--driver-branch: 'abc' is not a whole number; write a whole number"),
        (["compare", "s.yaml", "--profile", "p", "--load", "much"], "--load: 'much' is not a number; write a number"),
        (["draw", "plan.json"], "the following arguments are required: --out; see PLANNER draw --help"),
        (["pairs", "--nope"], "unrecognized arguments: --nope; see PLANNER --help"),
        (["serv"], "COMMAND: 'serv' is unknown; did you mean serve?"),
        (["pairs", "--device"], "--device: expected one argument; see PLANNER pairs --help"),
    ],
)
def test_a_wrong_command_line_is_one_line_with_a_remedy(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipeline.planner.__main__ import main

    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"error: {line.replace('PLANNER', entry_points.spell('planner'))}\n")


def test_an_unknown_command_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    from pipeline.planner.__main__ import COMMANDS, main

    with pytest.raises(SystemExit):
        main(["nope"])
    assert capsys.readouterr().err == f"error: COMMAND: 'nope' is unknown; choose from {', '.join(COMMANDS)}\n"


@pytest.mark.parametrize("name", [name for name in entry_points.PROGRAMS if name not in (_RUN, entry_points.ADVISE)])
def test_every_command_refuses_in_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(entry_points.module_of(name))
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{module.__name__}.__main__")
    with pytest.raises(SystemExit) as ended:
        module.make_parser().parse_args(["--unknown-option"])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and re.fullmatch(r"error: [^\n;]+; [^\n]+\n", error)


def test_no_command_has_a_parser_that_prints_its_usage() -> None:
    files = [path for path in (PROJECT_DIR / "pipeline").rglob("*.py") if path.name != "command_parser.py"]
    assert [path for path in files if re.search(r"= argparse\.ArgumentParser\(", path.read_text("utf-8"))] == []
