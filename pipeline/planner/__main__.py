"""Plans from measured profiles: `python -m pipeline.planner COMMAND [--json]`.

Each command is an entry of `COMMANDS` and two functions of a module of `commands/`: `add_NAME_arguments` and
`answer_NAME`. Exit status: 0 on success; 1 if no plan exists or a check fails; 2 for unusable input.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any

from pipeline.base.system import entry_points, startup
from pipeline.base.system.command_parser import CommandAnswer, CommandParser
from pipeline.base.system.errors import CollocationError, exit_status

COMMANDS = {
    "advise": ("results", "answer for each case of a study whether jobs should share the GPU, and in which mode"),
    "check": ("results", "compare the predictions of a plan with the measurements of its experiment"),
    "export": ("output", "export a plan as an experiment, a mig-parted configuration or Kubernetes manifests"),
    "granted": ("output", "compare the GPUs that each pod got with the exported plan"),
    "pairs": (
        "results",
        "predict the slowdown of every pair of workloads measured beside stressors, and choose pairs",
    ),
    "profile": (
        "results",
        "make a profile: throughput, latency and memory of each workload on each share of a GPU",
    ),
    "serve": ("planning", "find the fewest GPUs that serve given rates within latency objectives"),
    "compare": ("planning", "compare the GPUs that each method needs, also for whole GPUs and smallest instances"),
    "transition": ("transition", "plan the steps from one plan to another, with every service kept running"),
    "draw": ("output", "draw a plan, a transition or a comparison of methods as SVG and PDF"),
    "replay": ("transition", "carry out a transition on a simulated machine, or resume it"),
    "train": ("planning", "schedule training jobs for the least makespan, mean completion or energy"),
}
"""The module of each command, `MODULE_commands.py`, and its help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = make_parser(*words).parse_args(words)
    try:
        answer: CommandAnswer = _load("answer_{}", arguments.command)(arguments)
    except CollocationError as error:
        sys.stderr.write(f"error: {error}\n")
        return exit_status(error)
    sys.stdout.write((json.dumps(answer.data) if arguments.json else answer.text) + "\n")
    return answer.status


def make_parser(*words: str) -> argparse.ArgumentParser:
    """Return the parser; import only the command that `words` begins with, and add its arguments."""
    parser = CommandParser(
        prog=entry_points.spell("planner"),
        description="Plan which job runs on which partition of which GPU, from measured profiles. No GPU is used.",
        epilog=f"{entry_points.spell('planner')} COMMAND --help explains a command. Exit status: 0 on success; 1 if "
        "no plan exists, a check fails or a step failed; 2 for unusable input or a machine in use.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        command.add_argument("--json", action="store_true", help="print JSON")
        if words[:1] == (name,):
            _load("add_{}_arguments", name)(command)
    return parser


def _load(function: str, command: str) -> Any:
    module = importlib.import_module(f"pipeline.planner.commands.{COMMANDS[command][0]}_commands")
    return getattr(module, function.format(command))


if __name__ == "__main__":
    startup.run(main)
