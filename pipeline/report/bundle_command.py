"""The command `python -m pipeline.report export`: one file from which the report can be made again anywhere."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.base.system import entry_points
from pipeline.base.system.command_parser import CommandParser
from pipeline.base.system.errors import CollocationError, ConfigError
from pipeline.record.store import bundle
from pipeline.record.store.bundle_reader import is_bundle
from pipeline.record.store.store_access import open_named
from pipeline.report.read.rows import add_source_arguments

COMMAND = "export"


def main(argv: Sequence[str]) -> int:
    """Write the bundle of an experiment and print its size; return the exit status."""
    options = _parser().parse_args(argv)
    try:
        if is_bundle(options.root) and options.uri is None:
            raise ConfigError(f"{options.root} is a bundle already; set --root to the folder of a store")
        num_groups = bundle.export(open_named(options.uri or options.root), options.experiment, options.out)
    except CollocationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    size_mb = options.out.stat().st_size / 1e6
    sys.stdout.write(f"{options.out}: {num_groups} groups of experiment {options.experiment}, {size_mb:.2f} MB\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog=entry_points.spell("report", COMMAND),
        description="Write the groups of a study to one file (tar.xz), which every command reads in place "
        "of a store: --root FILE. The file does not name folders, users and hosts of the machine.",
    )
    add_source_arguments(parser, "folder of a local store")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write, such as study.tar.xz")
    return parser
