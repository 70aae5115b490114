"""A program reads the command line that a plan writes for it, for every class of options."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import config_reader, groups, option_loader
from workloads import program
from workloads.options import PLACE, option

OF_A_FILE = {
    file.stem: next(iter(option_loader._NAMED.findall(file.read_text())), None)
    for file in sorted((PROJECT_DIR / "conf/workload").glob("*.yaml"))
}
FILES = {kind: name for name, kind in OF_A_FILE.items() if kind is not None}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", FILES)
def test_a_program_gets_the_options_that_were_planned(compose, kind):
    needed = ["workload.command='serve {port}'"] if kind.endswith("Server") else []
    (config,) = config_reader.read(compose([f"workload={FILES[kind]}", "data.root=/data", *needed]))
    planned = config.workload.complete().program_options()
    written = [word.replace("{{port}}", "{port}") for word in groups._make_flags(planned)]  # as the launcher fills it
    args = program.parse(type(config.workload).__mro__[1], written)
    for name, value in planned.items():
        read_back = getattr(args, name)
        if isinstance(read_back, Path):
            read_back = str(read_back)
        expected = value.name if isinstance(value, enum.Enum) else value
        assert read_back == (expected.replace("{{port}}", "{port}") if isinstance(expected, str) else expected), name


Colour = enum.Enum("Colour", "red blue")


@dataclass(kw_only=True)
class Paint:
    """Paint a wall."""

    colour: Colour | None = option(None, help="of the paint")
    layers: list[int] = option([1], help="per cent of each")
    metres: int = option(least=2, help="of the wall")
    folder: str | None = option(None, path=PLACE, help="where")
    budget: float | None = option(None, is_flag=False, help="for the study")

    def check(self, device):
        if self.metres == 13 and not device.is_gpu:
            raise ValueError("metres=13 needs a GPU")


def test_flags_have_the_types_of_the_fields():
    args = program.parse(Paint, ["--metres", "3", "--colour", "blue", "--layers", "4", "5", "--folder", "a"])
    assert (args.metres, args.colour, args.layers, args.folder) == (3, "blue", [4, 5], Path("a"))
    assert (args.options.colour, args.options.budget) == (Colour.blue, None)
    assert (args.seed, args.device, args.epochs) == (0, "auto", 1)
    assert not hasattr(args, "budget")
    assert program.record_options(args) == {"colour": "blue", "layers": [4, 5], "metres": 3, "seed": 0}


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ([], "required: --metres"),
        (["--metres", "x"], "invalid int value"),
        (["--metres", "1"], "metres=1 must be at least 2"),
        (["--metres", "2", "--colour", "green"], "invalid choice: 'green'"),
        (["--metres", "13", "--device", "cpu"], "metres=13 needs a GPU"),
        (["--metres", "2", "--epochs", "-1"], "epochs=-1 must not be negative"),
        (["--metres", "2", "--budget", "1"], "unrecognized arguments: --budget"),
    ],
)
def test_a_wrong_command_line_ends_with_status_2(flags, why, capsys):
    with pytest.raises(program.UsageError) as ended:
        program.parse(Paint, flags)
    assert ended.value.code == 2 and why in capsys.readouterr().err
