"""The command `python -m pipeline.importer`, which converts experiments of other tools to experiment files.

Usage: `python -m pipeline.importer radt TABLE.csv` or `python -m pipeline.importer carma JOB.rad ...`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.base.system import entry_points, startup
from pipeline.base.system.command_parser import CommandParser
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import format_count
from pipeline.importer import carma_experiment, experiment_file, radt_experiment
from pipeline.importer.experiment_file import NAME, Imported

_SEVERAL = "carma"


def main(argv: Sequence[str] | None = None) -> int:
    """Import a table or job files; return the exit status: 1 if jobs are left out, 2 if no file is written."""
    args = make_parser().parse_args(argv)
    try:
        default_name = re.sub(r"\W", "_", args.files[0].stem) if len(args.files) == 1 else _SEVERAL
        name = _check_name(default_name if args.name is None else args.name)
        if args.tool == "radt":
            imported = radt_experiment.read(args.files[0], name, has_slices=args.slices)
        else:
            imported = carma_experiment.read(args.files, name, is_together=args.together, environments=args.envs)
        return _finish(imported, name, args)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def make_parser(*_: str) -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = CommandParser(
        prog=entry_points.spell("importer"),
        description="Turn an experiment of another tool into an experiment file.",
        epilog="exit status: 0 all jobs imported, 1 some left out (listed), 2 nothing written",
    )
    tools = parser.add_subparsers(dest="tool", required=True, metavar="TOOL")
    radt = tools.add_parser("radt", help="a table written for radT", description="Import a table written for radT.")
    radt.add_argument("files", type=Path, nargs=1, metavar="TABLE", help="CSV file")
    radt.add_argument("--slices", action="store_true", help="write MIG profiles by slices (1g), for any GPU model")
    carma = tools.add_parser("carma", help="job files of CARMA", description="Import job files of CARMA.")
    carma.add_argument("files", type=Path, nargs="+", metavar="JOB", help=".rad file")
    carma.add_argument("--together", action="store_true", help="make one mix of all jobs, including exclusive jobs")
    carma.add_argument("--envs", metavar="DIR", help="folder of the conda environments that the jobs activate")
    for tool in (radt, carma):
        tool.add_argument("--name", help="name of the experiment (default: from the file)")
        tool.add_argument("--out", metavar="DIR", help="write DIR/experiment/NAME.yaml; - prints it (default: conf)")
        tool.add_argument("--force", action="store_true", help="replace an existing experiment")
    return parser


def _check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not a valid experiment name; set --name to letters, digits and _")
    return name


def _finish(imported: Imported, name: str, args: argparse.Namespace) -> int:
    for refused in imported.refused:
        sys.stderr.write(f"not imported: {refused}\n")
    for note in imported.notes:
        sys.stderr.write(f"note: {note}\n")
    jobs = f"{imported.num_read} {imported.unit}s"
    if not imported.num_groups:
        raise ConfigError(f"none of the {jobs} of {args.files[0]} can be imported; fix the problems listed above")
    if args.out == "-":
        sys.stdout.write(imported.text)
        where = "printed"
    else:
        where = experiment_file.write(imported.text, name, args.out and Path(args.out), replace=args.force)
    num_taken = imported.num_read - len(imported.refused)
    sys.stderr.write(f"{num_taken} of {jobs} imported, {format_count(imported.num_groups, 'group')}; {where}\n")
    return 1 if imported.refused else 0


if __name__ == "__main__":
    startup.run(main)
