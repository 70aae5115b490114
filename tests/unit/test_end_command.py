"""The command of `on_end`: started without a shell, in ten seconds at most, and never a reason to fail."""

from __future__ import annotations

import sys

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.study import execution

SUMMARY = "robroek: 3 groups, 3 ok; $(touch injected)"


@pytest.fixture
def messages(monkeypatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(execution.words, "say", lines.append)
    return lines


def test_the_summary_is_one_word_and_a_variable(tmp_path, messages):
    code = (
        "import os, sys; open(sys.argv[1], 'w').write('\\n'.join([*sys.argv[2:], os.environ['COLLOCATION_SUMMARY']]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "told"), execution.SUMMARY_VARIABLE, "SUMMARY", "$HOME"]
    execution.run_end_command(command, SUMMARY)
    assert (tmp_path / "told").read_text().splitlines() == [execution.SUMMARY_VARIABLE, SUMMARY, "$HOME", SUMMARY]
    assert messages == []


@pytest.mark.parametrize(
    ("command", "note"),
    [
        (["false"], "`false` ended with status 1: no message"),
        (["sh", "-c", "echo no such >&2; echo user >&2; exit 3"], "`sh` ended with status 3: no such user"),
        (["sleep", "30"], "`sleep` did not complete: killed after its time limit of 0.1 s."),
        (["/"], "Permission denied"),
    ],
)
def test_a_failure_is_only_noted(command, note, messages, monkeypatch):
    monkeypatch.setattr(execution, "_LIMIT_S", 0.1)
    execution.run_end_command(command, SUMMARY)
    (line,) = messages
    assert line.startswith("note: on_end: ") and note in line and "\n" not in line


def test_a_program_that_leaves_a_process_behind_has_not_failed(messages, monkeypatch):
    monkeypatch.setattr(execution, "_LIMIT_S", 5.0)
    execution.run_end_command(["sh", "-c", "sleep 6 & exit 0"], SUMMARY)
    assert messages == []


@pytest.mark.parametrize(("command", "name"), [(["no-such-program"], "'no-such-program'"), ([], "none")])
def test_an_unknown_program_is_refused(command, name):
    with pytest.raises(ConfigError, match=f"^on_end: program {name} was not found; write, for example, on_end="):
        execution.refuse_unknown_program(command)


def test_a_known_program_is_accepted():
    execution.refuse_unknown_program(["true", execution.SUMMARY])
