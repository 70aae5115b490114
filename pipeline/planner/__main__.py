"""Plans from measured profiles: `python -m pipeline.planner COMMAND [--json]`.

A command is one entry of `COMMANDS` and one file of `commands/`, which offers `add_arguments` and `answer`. Exit
status: 0; 1 where no plan exists, or what is checked does not hold; 2 for input that cannot be used.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any

from pipeline.base.domain.command_answer import CommandAnswer
from pipeline.base.system import entry_points, startup
from pipeline.base.system.errors import CollocationError, exit_status

COMMANDS = {
    "advise": "which sharing mode the results of a study recommend for each of its cases, and why",
    "check": "what a plan predicted of each service beside what its experiment measured",
    "export": "a plan as an experiment of this project, a configuration of mig-parted, or manifests of Kubernetes",
    "profile": "make a profile: throughput, latency and memory of each workload on each share of a GPU",
    "serve": "the fewest GPUs that serve given rates within given latency objectives",
    "compare": "the GPUs that each method needs, beside whole GPUs and the smallest instances",
    "transition": "the steps from one plan to another, with every service kept running on the way",
    "draw": "pictures of a plan, of a transition, or of the GPUs that methods need, as SVG and PDF",
    "replay": "carry the steps of a transition out on a simulated machine, or go on with what was killed",
    "train": "which training jobs run together, in which mode and order, for the least makespan, completion or energy",
}
"""What each is for. Its file is `NAME_command.py`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Answer one command and return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = make_parser(*words).parse_args(words)
    try:
        answer: CommandAnswer = _load(arguments.command).answer(arguments)
    except CollocationError as error:
        sys.stderr.write(f"error: {error}\n")
        return exit_status(error)
    sys.stdout.write((json.dumps(answer.data) if arguments.json else answer.text) + "\n")
    return answer.status


def make_parser(*words: str) -> argparse.ArgumentParser:
    """Return the parser, with the arguments of the command that is typed; files of other commands are not imported."""
    parser = argparse.ArgumentParser(
        prog=entry_points.spell("planner"),
        description="Plan which job runs on which partition of which GPU, from measured profiles. Touches no GPU.",
        epilog=f"{entry_points.spell('planner')} COMMAND --help explains one. Exit status: 0; 1 where no plan exists "
        "or what is checked does not hold, or a step failed; 2 for input that cannot be used, or a machine in use.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, about in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        command.add_argument("--json", action="store_true", help="print JSON")
        if words[:1] == (name,):
            _load(name).add_arguments(command)
    return parser


def _load(command: str) -> Any:
    return importlib.import_module(f"pipeline.planner.commands.{command}_command")


if __name__ == "__main__":
    startup.run(main)
