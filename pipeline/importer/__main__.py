"""Experiments of other tools as experiments of this project.

`python -m pipeline.importer radt TABLE.csv` and `python -m pipeline.importer carma JOB.rad ...`. Exit status: 0 when
every job was taken, 1 when some were not (they are listed, the others are written), 2 when nothing was written.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.base.system import entry_points, startup
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import format_count
from pipeline.importer import carma_experiment, experiment_file, radt_experiment
from pipeline.importer.experiment_file import NAME, Imported

_SEVERAL = "carma"


def main(argv: Sequence[str] | None = None) -> int:
    """Import a table or job files; returns the exit status."""
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
    """Return the parser of the command, whatever is typed."""
    parser = argparse.ArgumentParser(
        prog=entry_points.spell("importer"),
        description="Turn the experiment of another tool into one of this project.",
        epilog="exit status: 0 every job was imported, 1 some were not and are listed, 2 nothing was written",
    )
    tools = parser.add_subparsers(dest="tool", required=True, metavar="TOOL")
    radt = tools.add_parser("radt", help="a table written for radT", description="Import a table written for radT.")
    radt.add_argument("files", type=Path, nargs=1, metavar="TABLE", help="CSV file")
    radt.add_argument("--slices", action="store_true", help="MIG profiles by slices (1g), so that they follow the GPU")
    carma = tools.add_parser("carma", help="job files of CARMA", description="Import job files of CARMA.")
    carma.add_argument("files", type=Path, nargs="+", metavar="JOB", help=".rad file")
    carma.add_argument("--together", action="store_true", help="all jobs as one mix, exclusive ones as well")
    carma.add_argument("--envs", metavar="DIR", help="folder of the conda environments that the jobs activate")
    for tool in (radt, carma):
        tool.add_argument("--name", help="name of the experiment (default: that of the file)")
        tool.add_argument("--out", metavar="DIR", help="write DIR/experiment/NAME.yaml; - prints it (default: conf)")
        tool.add_argument("--force", action="store_true", help="replace an experiment of this name")
    return parser


def _check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot be the name of an experiment: letters, digits and _; give one with --name")
    return name


def _finish(imported: Imported, name: str, args: argparse.Namespace) -> int:
    for refused in imported.refused:
        sys.stderr.write(f"not taken: {refused}\n")
    for note in imported.notes:
        sys.stderr.write(f"note: {note}\n")
    jobs = f"{imported.num_read} {imported.unit}s"
    if not imported.num_groups:
        raise ConfigError(f"none of the {jobs} of {args.files[0]} can be imported; nothing was written")
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
