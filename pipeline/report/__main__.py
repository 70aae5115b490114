"""The command `python -m pipeline.report`: a page, figures and tables of the runs of an experiment.

`board`, `export`, `compare`, `claims`, `share` and `community` after it are commands of their own (`board_command.py`,
`bundle_command.py`, `comparison_command.py`, ...).
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.base.system import entry_points, startup
from pipeline.base.system.command_parser import CommandParser
from pipeline.base.system.errors import CollocationError, ConfigError, TrackingError
from pipeline.base.system.words import format_count
from pipeline.record.store.store_access import explain_read_only
from pipeline.report import (
    board_command,
    bundle_command,
    claims_command,
    community_command,
    comparison_command,
    share_command,
)
from pipeline.report.page.key_findings import describe_left_out
from pipeline.report.page.page import make_content
from pipeline.report.publish import WrittenReport, check_folder, default_folder, log, write
from pipeline.report.read import group_series, rows, stressor_counters
from pipeline.report.read.rows import add_store_arguments, named_stores
from pipeline.report.read.selection import DEVICE, STUDY, Choice
from pipeline.report.read.study_records import Study

COMMANDS = (board_command, bundle_command, claims_command, community_command, comparison_command, share_command)
"""Commands of their own, after the name of the program."""
logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Write one report, or a board; return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    command = next((command for command in COMMANDS if arguments[:1] == [command.COMMAND]), None)
    try:
        return _write_report(arguments) if command is None else command.main(arguments[1:])
    except CollocationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _write_report(arguments: Sequence[str]) -> int:
    options = make_parser().parse_args(arguments)
    stores = named_stores(options)
    folder = options.out or default_folder(options.experiment)
    check_folder(folder, options.experiment)
    written, study, summary = report(
        stores,
        options.experiment,
        folder,
        options.group,
        pools_hosts=options.pool == "hosts",
        choice=Choice(studies=options.study, devices=options.device),
    )
    sys.stdout.write(f"{summary}\nreport: {written.page.absolute()}\n")
    if options.no_log:
        return 0
    if reason := explain_read_only(stores[0], options.experiment):
        sys.stdout.write(f"report not logged: {reason}\n")
    else:
        run_id, link = log(written, stores[0], study)
        sys.stdout.write(f"logged as run {run_id} of experiment {options.experiment}: {link}\n")
    return 0


def report(
    stores: Sequence[Path | str],
    experiment: str,
    folder: Path,
    group: str | None = None,
    *,
    pools_hosts: bool = False,
    choice: Choice | None = None,
) -> tuple[WrittenReport, Study, str]:
    """Write the report of a study; return its files, the study, and a summary for the terminal.

    Raises:
        ConfigError: the study has no such group, or no group at all, or the folder is not writable.
        TrackingError: a store is not readable.
    """
    study = rows.read(stores, experiment, pools_hosts=pools_hosts, choice=choice)
    if not study.rows:
        raise ConfigError(
            f"experiment {experiment!r} in {', '.join(map(str, stores))} has no group with a result; "
            "choose another experiment with --experiment"
        )
    row = group_series.choose_group(study, group)
    timeline = None
    try:
        timeline = group_series.read_case(study, row) if row else None
        if timeline is None and group is not None:
            logger.warning("group %s has no samples, so the report does not show it over time", group)
    except TrackingError as error:
        logger.warning("%s", error)
        # The page does not depend on the place of the store.
        run_id = row.run_id if row else ""
        sentence = f"Not drawn: a group over time, because the artifacts of run {run_id} cannot be read."
        study = dataclasses.replace(study, not_drawn=(sentence,))
    study = stressor_counters.add_counters(study)
    content = make_content(study, timeline, has_columns=True)
    blocks = f"{study.num_complete_blocks} of {len(study.blocks)} blocks complete"
    groups, figures = format_count(len(study.rows), "group"), format_count(len(content.figures), "figure")
    summary = f"{experiment}: {groups}, {blocks}, {figures}"
    if study.is_simulated:
        summary += " (simulated: no measurement of a real GPU)"
    return write(content, folder), study, "\n".join([summary, *describe_left_out(study)])


def make_parser(*_: str) -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = CommandParser(
        prog=entry_points.spell("report"),
        description="Write the report of a study: an HTML page, figures as SVG and PDF, tables as CSV and LaTeX; log "
        "them to MLflow. Several studies in one table: "
        f"{entry_points.spell('report', board_command.COMMAND, '--help')}. All data in one file: "
        f"{entry_points.spell('report', bundle_command.COMMAND, '--help')}. Before and after an upgrade: "
        f"{entry_points.spell('report', comparison_command.COMMAND, '--help')}. Numbers of pages and their bundles: "
        f"{entry_points.spell('report', claims_command.COMMAND, '--help')}. A study for the public table: "
        f"{entry_points.spell(share_command.COMMAND, '--help')}",
    )
    add_store_arguments(parser)
    study_help = "only this study, by the tag collocation.study of its runs; repeat the option to add a study"
    parser.add_argument(STUDY, action="append", default=[], metavar="ID", help=study_help)
    device_help = "only this device, by its name or a unique part of its name; repeat the option to add a device"
    parser.add_argument(DEVICE, action="append", default=[], metavar="NAME", help=device_help)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write to (default: reports/NAME)")
    parser.add_argument("--group", metavar="RUN_OR_NAME", help="group to show over time, by run id or name")
    parser.add_argument(
        "--pool",
        choices=["hosts"],
        help="pool the blocks of hosts with different CPUs, power limits or drivers",
    )
    parser.add_argument(
        "--no-log", action="store_true", help="do not log the report to MLflow (default: log it to the first store)"
    )
    return parser


if __name__ == "__main__":
    startup.run(main)
