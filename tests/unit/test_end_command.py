"""The command of `on_end`: started without a shell, in ten seconds at most, and never a reason to fail."""

from __future__ import annotations

import sys

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.study import end_command

SUMMARY = "robroek: 3 groups, 3 ok; $(touch injected)"


@pytest.fixture
def said(monkeypatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(end_command.words, "say", lines.append)
    return lines


def test_the_summary_is_one_word_and_a_variable(tmp_path, said):
    code = (
        "import os, sys; open(sys.argv[1], 'w').write('\\n'.join([*sys.argv[2:], os.environ['COLLOCATION_SUMMARY']]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "told"), end_command.SUMMARY_VARIABLE, "SUMMARY", "$HOME"]
    end_command.run_end_command(command, SUMMARY)
    assert (tmp_path / "told").read_text().splitlines() == [end_command.SUMMARY_VARIABLE, SUMMARY, "$HOME", SUMMARY]
    assert said == []


@pytest.mark.parametrize(
    ("command", "note"),
    [(["false"], "returned non-zero exit status 1"), (["sleep", "30"], "timed out"), (["/"], "Permission denied")],
)
def test_a_failure_is_only_noted(command, note, said, monkeypatch):
    monkeypatch.setattr(end_command, "_LIMIT_S", 0.1)
    end_command.run_end_command(command, SUMMARY)
    (line,) = said
    assert line.startswith("note: on_end: ") and note in line


@pytest.mark.parametrize(("command", "name"), [(["no-such-program"], "'no-such-program'"), ([], "none")])
def test_an_unknown_program_is_refused(command, name):
    with pytest.raises(ConfigError, match=f"^on_end: program {name} was not found; write, for example, on_end="):
        end_command.refuse_unknown(command)


def test_a_known_program_is_accepted():
    end_command.refuse_unknown(["true", end_command.SUMMARY])
