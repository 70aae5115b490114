"""Command `python -m pipeline.gpu COMMAND [--gpu GPU] [--json]`: state and profiles of GPUs, and MIG by hand.

The exit status is 2 if the arguments are wrong or the GPU is in use, and nothing was changed. It is 1 if a GPU does not
respond, or a change of a study is not undone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.base.domain import mig_table
from pipeline.base.system import command_parser, entry_points, locks, startup, words
from pipeline.base.system.command_parser import CommandAnswer, CommandParser
from pipeline.base.system.errors import CollocationError, exit_status
from pipeline.prepare.mig import compute, layouts, profiles

if TYPE_CHECKING:
    from pipeline.gpu import manual_mig


def show_profiles(arguments: argparse.Namespace) -> CommandAnswer:
    """Show the MIG profiles of a GPU and their compute instances; unknown values are null, and `-` in the text."""
    gpu = profiles.find_gpu(arguments.gpu)
    rows = [
        {
            "name": profile.name,
            "id": profile.profile_id,
            "compute_slices": profile.compute_slices,
            "memory_slices": profile.memory_slices,
            "starts": list(profile.starts),
            "max_instances": profile.max_instances,
            "multiprocessors": profile.multiprocessors,
            "ideal_ratio": gpu.ideal_ratio(profile),
            "memory_mib": profile.memory_mib,
            "compute_instances": [
                mig_table.name_device(profile.name, slices) for slices in compute.list_widths(profile)
            ],
        }
        for profile in gpu.profiles
    ]
    data = {
        "gpu": gpu.name,
        "compute_slices": gpu.compute_slices,
        "memory_slices": gpu.memory_slices,
        "multiprocessors": gpu.multiprocessors,
        "profiles": rows,
    }
    head = ["profile", "id", "compute", "memory", "starts", "max", "SMs", "of GPU", "MiB", "parts"]
    cells = [[_format_cell(value) for name, value in row.items() if name != "compute_instances"] for row in rows]
    parts = [",".join(f"{slices}c" for slices in compute.list_widths(profile)) or "-" for profile in gpu.profiles]
    lines = [head, *([*row, names] for row, names in zip(cells, parts, strict=True))]
    table = "\n".join(words.align_table(lines, left_columns=range(len(head))))
    slices = f"{gpu.compute_slices} compute slices, {gpu.memory_slices} memory slices"
    text = f"{gpu.name}: {slices}, {_format_cell(gpu.multiprocessors)} SMs\n{table}"
    return CommandAnswer(data=data, text=text)


def show_partitions(arguments: argparse.Namespace) -> CommandAnswer:
    """Show all maximal legal combinations of the profiles `1g`, `2g`, ..., and their number."""
    gpu = profiles.find_gpu(arguments.gpu)
    pool = layouts.list_plain_profiles(gpu) if arguments.double_memory else layouts.list_slice_profiles(gpu)
    combinations = layouts.list_maximal_combinations(gpu, pool)
    num_layouts = len(layouts.list_maximal_layouts(gpu, pool))
    data = {
        "gpu": gpu.name,
        "count": len(combinations),
        "combinations": [list(names) for names in combinations],
        "num_layouts": num_layouts,
    }
    last = f"{len(combinations)} combinations; {num_layouts} layouts, counted by placement"
    return CommandAnswer(data=data, text="\n".join([gpu.name, *map(" ".join, combinations), last]))


def _show_status(arguments: argparse.Namespace) -> CommandAnswer:
    from pipeline.gpu import status

    return status.status(arguments.gpu, Path(arguments.lock_dir), arguments.machine)


def _clean_up(arguments: argparse.Namespace) -> CommandAnswer:
    from pipeline.gpu import status

    return status.clean(arguments.gpu, Path(arguments.lock_dir), arguments.machine)


def _create(arguments: argparse.Namespace) -> CommandAnswer:
    from pipeline.gpu import manual_mig

    return manual_mig.create(arguments.layout, _read_request(arguments))


def _destroy(arguments: argparse.Namespace) -> CommandAnswer:
    from pipeline.gpu import manual_mig

    return manual_mig.destroy(_read_request(arguments))


def _check(arguments: argparse.Namespace) -> CommandAnswer:
    from pipeline.gpu.selftest import gpu_selftest

    lock_dir, machine = Path(arguments.lock_dir), arguments.machine
    return gpu_selftest.check_gpu(arguments.gpu, lock_dir, machine, is_only_health=arguments.health)


def _accept(arguments: argparse.Namespace) -> CommandAnswer:
    from pipeline.gpu.acceptance import acceptance_command

    only = () if arguments.only is None else arguments.only.split(",")
    return acceptance_command.accept_mig(_read_request(arguments), Path(arguments.out), only, arguments.driver)


def _read_request(arguments: argparse.Namespace) -> manual_mig.ManualMigRequest:
    from pipeline.gpu import manual_mig

    return manual_mig.ManualMigRequest(
        gpu=arguments.gpu,
        folder=Path(arguments.lock_dir),
        machine=arguments.machine,
        admin=None if arguments.admin is None else tuple(filter(None, arguments.admin.split(","))),
        is_dry=arguments.dry_run,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Execute one command and return the exit status."""
    arguments = make_parser().parse_args(argv)
    try:
        with command_parser.name_options():
            answer: CommandAnswer = arguments.answer(arguments)
    except CollocationError as error:
        sys.stderr.write("\n".join([f"error: {error}", *getattr(error, "__notes__", ())]) + "\n")
        return exit_status(error)
    sys.stdout.write((json.dumps(answer.data) if arguments.json else answer.text) + "\n")
    return answer.status


def make_parser(*_: str) -> argparse.ArgumentParser:
    """Return the parser of the command; the typed words are ignored."""
    parser = CommandParser(
        prog=entry_points.spell("gpu"),
        description="Show the state and MIG profiles of GPUs, check a GPU, create MIG instances, and clean up after "
        "killed studies.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    models = ", ".join(mig_table.SIMULATED + name for name in mig_table.models())

    def add(
        answer: Callable[[argparse.Namespace], CommandAnswer],
        name: str,
        description: str,
        *,
        is_about_all: bool = False,
        has_journals: bool = True,
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=description, description=f"{description[0].upper()}{description[1:]}.")
        command.set_defaults(answer=answer)
        default, scope = (None, "default: all GPUs; ") if is_about_all else ("0", "default: 0; ")
        command.add_argument("--gpu", default=default, help=f"{scope}index or UUID of a GPU, or one of {models}")
        if has_journals:
            command.add_argument("--lock-dir", default=str(locks.DEFAULT_FOLDER), help="gpu.lock_dir of the studies")
            command.add_argument("--machine", metavar="FILE", help="file of a simulated machine (gpu.machine)")
        command.add_argument("--json", action="store_true", help="print JSON")
        return command

    description = "state of each GPU, its processes, and the steps to undo (exit status 1 if any)"
    add(_show_status, "status", description, is_about_all=True)
    description = "undo only the changes of killed studies (exit status 1 if any remain)"
    add(_clean_up, "clean", description, is_about_all=True)
    description = "create MIG instances that remain until you destroy them (exit status 2 if nothing was changed)"
    create = add(_create, "create", description)
    description = "profiles of the instances: 3g,2g,1g; compute instances of a GPU instance: 1c.3g,2c.3g"
    create.add_argument("layout", help=description)
    destroy = add(_destroy, "destroy", "undo only the changes of `create` (exit status 1 if any remain)")
    description = "check every promise about MIG on an idle GPU, 30 to 60 minutes (exit status 1 if one is broken)"
    accept = add(_accept, "acceptance", description)
    accept.add_argument("--out", default="reports/acceptance", help="folder of the page and of the raw readings")
    accept.add_argument("--only", metavar="CHECKS", help="names of checks, separated by commas: mode,profiles")
    accept.add_argument("--driver", metavar="BRANCH", help="branch of the driver of a simulated model")
    for command in (create, destroy, accept):
        command.add_argument("--dry-run", action="store_true", help="show the commands, and change nothing")
        description = "prefix of commands that need an administrator, separated by commas: sudo,-n (gpu.admin)"
        command.add_argument("--admin", metavar="WORDS", help=description)
    description = "check the counters of a GPU under load, and its health (exit status 1 if a check fails)"
    about_health = "check only the health, without load; the GPU may be in use"
    add(_check, "selftest", description).add_argument("--health", action="store_true", help=about_health)
    description = "the MIG profiles of a GPU, with placements, SMs and compute instances"
    add(show_profiles, "profiles", description, has_journals=False)
    description = "every combination of MIG instances to which no instance can be added"
    about_double = "include profiles with double memory for their compute slices, such as 1g.20gb"
    combinations = add(show_partitions, "partitions", description, has_journals=False)
    combinations.add_argument("--double-memory", action="store_true", help=about_double)
    return parser


def _format_cell(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.3f}"
    return "-" if value is None else str(value)


if __name__ == "__main__":
    startup.run(main)
