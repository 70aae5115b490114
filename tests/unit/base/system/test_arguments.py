"""A mistake in the arguments of a program is one line with a remedy."""

from __future__ import annotations

import pytest

from pipeline.base.system.arguments import Parser


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serv"], "command serv does not exist; did you mean serve?"),
        (["xyz"], "command xyz does not exist; choose one of check, serve"),
        ([], "the following arguments are required: COMMAND; see x --help"),
        (["serve", "--size"], "argument --size: expected one argument; see x serve --help"),
    ],
)
def test_a_mistake_is_one_line(capsys, words: list[str], message: str) -> None:
    parser = Parser(prog="x")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("check")
    commands.add_parser("serve").add_argument("--size")
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    assert (ended.value.code, capsys.readouterr()) == (2, ("", f"error: {message}\n"))
