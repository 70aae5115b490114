"""The command `python -m pipeline.importer`, which converts experiments of other tools to experiment files.

Usage: `python -m pipeline.importer radt TABLE.csv`.
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
from pipeline.importer import experiment_file, radt_experiment
from pipeline.importer.experiment_file import NAME, Imported


def main(argv: Sequence[str] | None = None) -> int:
    """Import a table; return the exit status: 1 if jobs are left out, 2 if no file is written."""
    args = make_parser().parse_args(argv)
    try:
        default_name = re.sub(r"\W", "_", args.table.stem)
        name = _check_name(default_name if args.name is None else args.name)
        return _finish(radt_experiment.read(args.table, name, has_slices=args.slices), name, args)
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
    radt.add_argument("table", type=Path, metavar="TABLE", help="CSV file")
    radt.add_argument("--slices", action="store_true", help="write MIG profiles by slices (1g), for any GPU model")
    radt.add_argument("--name", help="name of the experiment (default: from the file)")
    radt.add_argument("--out", metavar="DIR", help="write DIR/experiment/NAME.yaml; - prints it (default: conf)")
    radt.add_argument("--force", action="store_true", help="replace an existing experiment")
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
        raise ConfigError(f"none of the {jobs} of {args.table} can be imported; fix the problems listed above")
    if args.out == "-":
        sys.stdout.write(imported.text)
        destination = "printed"
    else:
        destination = experiment_file.write(imported.text, name, args.out and Path(args.out), replace=args.force)
    num_taken = imported.num_read - len(imported.refused)
    sys.stderr.write(f"{num_taken} of {jobs} imported, {format_count(imported.num_groups, 'group')}; {destination}\n")
    return 1 if imported.refused else 0


if __name__ == "__main__":
    startup.run(main)
