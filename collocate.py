"""The command `collocate`: every program of the project by one name, as `collocate run degree=2 -- train.py`.

An installed package holds this file, `run.py`, `conf/` and the folders of modules as a clone does, in one folder,
`gpu_collocation`. That folder becomes the first entry of `sys.path`, so that no package beside it, and none where the
user works, is taken for one of the project. Only this process has it there: user programs get no variable of it.
"""

from __future__ import annotations

import difflib
import importlib
import os
import runpy
import shlex
import subprocess
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

FOLDER = Path(__file__).resolve().parent
_SHELLS = ("bash", "zsh", "fish")
_COMPLETION = "completion"
_COMPLETING = "_ARGCOMPLETE"  # set by the shell code of argcomplete, to the number of words that name the program
_ABOUT_COMPLETION = 'print completion code for bash, zsh or fish: eval "$(collocate completion bash)"'
_MOST_MINUTES = 7 * 24 * 60
_NO_ARGCOMPLETE = "error: completion needs the package argcomplete; run pip install argcomplete\n"


def main() -> None:
    """Run the program that the command line names, and exit with its status."""
    sys.path[: 0 if sys.flags.safe_path else 1] = [str(FOLDER)]  # for the script's folder or the working directory
    from pipeline.base.system import entry_points

    if _COMPLETING in os.environ:
        sys.exit(_complete(os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]))
    if __name__ != "__main__":  # not `python CLONE/collocate.py`, which may be all that there is
        os.environ[entry_points.VARIABLE] = "1"
    words = sys.argv[1:]
    if words[:1] == [_COMPLETION]:
        sys.exit(_print_completion(words[1:]))
    if words == ["--version"]:
        sys.stdout.write(f"gpu-collocation {version('gpu-collocation')}\n")
        sys.exit()
    if words[:1] in ([], ["-h"], ["--help"], ["help"]):
        sys.stdout.write(_overview())
        sys.exit(0 if words else 2)
    name, *arguments = words
    if name in _SHORTCUTS:
        name, arguments = entry_points.RUN, _SHORTCUTS[name](arguments)
    if name not in entry_points.PROGRAMS:
        names = [*entry_points.PROGRAMS, _COMPLETION]
        if name.endswith(".py") or Path(name).is_file():
            command = shlex.join(words)
            sys.stderr.write(
                f"error: put a program before {name}: collocate advise -- {command}, or run -- {command}\n"
            )
            sys.exit(2)
        near = "".join(f"did you mean {match}? Or " for match in difflib.get_close_matches(name, names, n=1))
        sys.stderr.write(f"error: collocate has no program {name}; {near}choose one of {', '.join(names)}\n")
        sys.exit(2)
    sys.argv = [str(FOLDER / "run.py"), *arguments]
    if name == entry_points.RUN:
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        runpy.run_module(entry_points.module_of(name), run_name="__main__", alter_sys=True)


def _expand_advice(words: Sequence[str]) -> list[str]:
    """Convert the arguments of `advise` to those of `run`; exit for `--help` and for wrong minutes."""
    from pipeline.base.system.command_parser import CommandParser

    parser = CommandParser(
        prog="collocate advise",
        usage="%(prog)s [--minutes 10] [KEY=VALUE ...] [-- SCRIPT ARGUMENT ...]",
        description="Measure one, two, three, ... copies of a job in each sharing mode, until the best is decided. "
        "`collocate run --help` lists the keys.",
    )
    about_minutes = "start no measurement after this many minutes (default: 10)"
    parser.add_argument("--minutes", type=float, help=about_minutes)
    end = words.index("--") if "--" in words else len(words)
    options, overrides = parser.parse_known_args(words[:end])
    for word in overrides:
        if difflib.get_close_matches(word.partition("=")[0], ["--minutes"], cutoff=0.75):
            parser.error(f"{word} is no option; did you mean --minutes?")
    if end == len(words) and not any(word.startswith(("workload=", "mix=")) for word in overrides):
        script = next((word for word in overrides if Path(word).is_file() or ".py" in word), None)
        command = shlex.join(overrides[overrides.index(script) :]) if script else ""
        parser.error(
            f"put -- before {script}: collocate advise -- {command}"
            if script
            else "advise names no job; write collocate advise -- train.py, or workload=NAME"
        )
    if options.minutes is not None and not 0 < options.minutes <= _MOST_MINUTES:
        parser.error(f"--minutes {options.minutes:g} must be above 0 and at most {_MOST_MINUTES}")
    if stray := [word for word in words[end:] if word.startswith("--minutes")]:
        sys.stderr.write(f"note: {stray[0]} is passed to the script; an option of advise stands before --\n")
    minutes = [] if options.minutes is None else [f"advise_minutes={options.minutes:g}"]
    return ["+experiment=advise", *overrides, *minutes, *words[end:]]


def _expand_pack(words: Sequence[str]) -> list[str]:
    """Convert the arguments of `pack` to those of `run`; exit for `--help` and for wrong options."""
    from pipeline.base.system.command_parser import CommandParser

    parser = CommandParser(
        prog="collocate pack",
        usage="%(prog)s [--jobs FILE] [--mode naive|mps] [--most N] [--number N] [--gpus N] [--check 5%%] [--resume] "
        "[KEY=VALUE ...] [-- SCRIPT ARGUMENT ...]",
        description="Run every trial once, several at a time: as many as the measured rates gain from. In single "
        "quotes, braces list the values of an argument: collocate pack -- train.py --lr '{1e-1,1e-2}' --seed '{1..8}'. "
        "`collocate run --help` lists the keys.",
    )
    parser.add_argument("--jobs", metavar="FILE", help="the trials, one command a line, instead of braces")
    parser.add_argument("--mode", choices=("naive", "mps"), help="sharing mode (default: naive)")
    parser.add_argument("--most", metavar="N", type=int, help="most trials at a time (default: 32)")
    parser.add_argument("--number", metavar="N", type=int, help="exactly N trials at a time, without comparing numbers")
    parser.add_argument("--gpus", metavar="N", type=int, help="divide the trials among N free GPUs of this host")
    parser.add_argument("--check", metavar="PCT", help="share of the time in which one trial runs alone (default: 5%%)")
    parser.add_argument("--resume", action="store_true", help="run only the trials that have not ended")
    end = words.index("--") if "--" in words else len(words)
    options, overrides = parser.parse_known_args(words[:end])
    if (options.jobs is None) is (end == len(words)):
        parser.error(
            "pack names no trial; write collocate pack -- train.py --lr '{1e-1,1e-2}', or --jobs trials.txt"
            if options.jobs is None
            else "--jobs and the command line after -- both name the trials; remove one"
        )
    keys = {
        "scenario": options.mode,
        "pack.trials": options.jobs,
        "pack.most": options.most,
        "pack.number": options.number,
        "pack.check_pct": options.check and options.check.removesuffix("%"),
        "resume": "true" if options.resume else None,
    }
    from pipeline.base.system.user_command import make_override

    settings = [make_override(key, text) for key, text in keys.items() if text is not None]
    if options.gpus is not None:
        if options.gpus < 1:
            parser.error(f"--gpus {options.gpus} must be at least 1")
        parts = ",".join(f"{number}/{options.gpus}" for number in range(1, options.gpus + 1))
        settings = ["-m", *settings, f"pack.part={parts}", "hydra/launcher=gpus"]
    return ["+experiment=pack", *overrides, *settings, *words[end:]]


_SHORTCUTS: dict[str, Callable[[Sequence[str]], list[str]]] = {"advise": _expand_advice, "pack": _expand_pack}
"""Programs that are experiments of `run`, each with the function that converts its arguments."""


def _overview() -> str:
    from pipeline.base.system import entry_points

    programs = {**entry_points.PROGRAMS, _COMPLETION: _ABOUT_COMPLETION}
    lines = [f"  {name:<12} {about}" for name, about in programs.items()]
    head = "Measure what GPU jobs gain by running together.\n\nusage: collocate PROGRAM ...\n\n"
    return head + "\n".join(lines) + "\n\ncollocate PROGRAM --help describes a program.\n"


def _print_completion(words: Sequence[str]) -> int:
    try:
        from argcomplete.shell_integration import shellcode
    except ImportError:
        sys.stderr.write(_NO_ARGCOMPLETE)
        return 2
    shell = words[0] if words else Path(os.environ.get("SHELL", "bash")).name
    if shell not in _SHELLS or len(words) > 1:
        sys.stderr.write(
            f"error: collocate completion {' '.join(words) or shell} is unknown; choose one of {', '.join(_SHELLS)}\n"
        )
        return 2
    sys.stdout.write(shellcode(["collocate"], shell=shell) + "\n")
    return 0


def _complete(line: str) -> int:
    """Answer the shell: complete a program's name, or with its own parser what follows that."""
    import argcomplete

    from pipeline.base.system import entry_points

    typed = line.split()
    name = typed[1] if len(typed) > 2 or (len(typed) == 2 and line[-1:].isspace()) else None
    if name is None:
        parser = _make_parser(choices=[*entry_points.PROGRAMS, _COMPLETION])
    elif name == entry_points.RUN or name in _SHORTCUTS:
        is_script = "--" in typed
        parser = _make_parser(None if is_script else partial(_ask_hydra, line.partition(name)[2]), nargs="*")
        for option in ("--help", "--help-keys", "-m", "--multirun"):
            parser.add_argument(option, action="store_true")
        parser.add_argument("--config-dir")
        parser.add_argument("--cfg", choices=("job", "hydra", "all"))
    elif name in entry_points.PROGRAMS:
        module = importlib.import_module(entry_points.module_of(name))
        if hasattr(module, "__path__"):
            module = importlib.import_module(f"{module.__name__}.__main__")
        parser = module.make_parser(*typed[2:3])
    else:
        parser = _make_parser(choices=_SHELLS if name == _COMPLETION else [])
    os.environ[_COMPLETING] = "1" if name is None else "2"
    argcomplete.autocomplete(parser, always_complete_options="long")
    return 0


def _make_parser(completer: Callable[..., list[str]] | None = None, **options: Any) -> argparse.ArgumentParser:
    """Return a parser with one positional argument, completed from its choices, by a completer, or as a file."""
    import argparse

    parser = argparse.ArgumentParser(add_help=False)
    argument = parser.add_argument("words", **options)
    if completer is not None:
        argument.completer = completer  # type: ignore[attr-defined]
    return parser


def _ask_hydra(typed: str, **_: object) -> list[str]:
    """Return what Hydra proposes for the last of some overrides."""
    line = f"run.py {typed.lstrip()}"
    environ = {**os.environ, "COMP_LINE": line, "COMP_POINT": str(len(line))}
    argv = [sys.executable, str(FOLDER / "run.py"), "-sc", "query=bash"]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False).stdout.split()


if __name__ == "__main__":
    main()
