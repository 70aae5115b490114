"""The command `python -m pipeline.report`: from the runs of an experiment to a page, figures and tables.

`python -m pipeline.report board ...` is a command of its own (`board_command.py`).
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.base.system import entry_points, startup
from pipeline.base.system.errors import CollocationError, ConfigError, TrackingError
from pipeline.base.system.words import format_count
from pipeline.record.store.store_access import is_writable
from pipeline.report import board_command
from pipeline.report.page.key_findings import describe_left_out
from pipeline.report.page.page import content_of
from pipeline.report.publish import WrittenReport, check_folder, default_folder, log, write
from pipeline.report.read import group_series, rows
from pipeline.report.read.choice import DEVICE, STUDY, Choice
from pipeline.report.read.stores import add_store_arguments, named_stores
from pipeline.report.read.study_records import Study

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Write one report, or a board; returns the exit status: 2 for whatever it cannot be written for."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == [board_command.COMMAND]:
        return board_command.main(arguments[1:])
    options = make_parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    try:
        folder = options.out or default_folder(options.experiment)
        check_folder(folder, options.experiment)
        stores = named_stores(options)
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
        if not is_writable(stores[0]):
            sys.stdout.write(f"not logged: {stores[0]} may only be read\n")
        else:
            run_id, link = log(written, stores[0], study)
            sys.stdout.write(f"logged as run {run_id} of experiment {options.experiment}: {link}\n")
    except CollocationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
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
    """Read a study, draw it, and write its report.

    Returns:
        What was written, the study that it is about, and that in a line, with a line for what was left out.

    Raises:
        ConfigError: there is no such group, or none at all, or the folder cannot be written.
        TrackingError: the store cannot be read.
    """
    study = rows.read(stores, experiment, pools_hosts=pools_hosts, choice=choice)
    if not study.rows:
        raise ConfigError(
            f"experiment {experiment!r} of {', '.join(map(str, stores))} has no group with a result; "
            "name a study (its tracking.experiment) with --experiment"
        )
    row = group_series.choose_group(study, group)
    timeline = None
    try:
        timeline = group_series.read_group(row) if row is not None else None
        if timeline is None and group is not None:
            logger.warning("group %s has no samples, so it is not drawn over time", group)
    except TrackingError as error:
        logger.warning("%s; no group is drawn over time, --group chooses another", error)
    content = content_of(study, timeline)
    blocks = f"{study.num_complete_blocks} of {len(study.blocks)} blocks complete"
    groups, figures = format_count(len(study.rows), "group"), format_count(len(content.figures), "figure")
    summary = f"{experiment}: {groups}, {blocks}, {figures}"
    if study.is_simulated:
        summary += " (simulated: says nothing about a real GPU)"
    return write(content, folder), study, "\n".join([summary, *describe_left_out(study)])


def make_parser(*_: str) -> argparse.ArgumentParser:
    """Return the parser of the command, whatever is typed."""
    parser = argparse.ArgumentParser(
        prog=entry_points.spell("report"),
        description="Write the report of a study: one HTML page, every figure as SVG and PDF, every table as CSV and "
        "LaTeX, all of it also logged to MLflow. Several studies in one table: "
        f"{entry_points.spell('report', board_command.COMMAND, '--help')}",
    )
    add_store_arguments(parser)
    of_study = "only this study, as the tag collocation.study of a run has it; given again, this one as well"
    parser.add_argument(STUDY, action="append", default=[], metavar="ID", help=of_study)
    of_device = "only this device: its name, or a part of it that no other has; given again, this one as well"
    parser.add_argument(DEVICE, action="append", default=[], metavar="NAME", help=of_device)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write to; reports/NAME")
    parser.add_argument("--group", metavar="RUN_OR_NAME", help="the group that is drawn over time: run id or name")
    parser.add_argument(
        "--pool",
        choices=["hosts"],
        help="take blocks of hosts that differ in CPU, number of CPUs, power limit or driver for repeats of each other",
    )
    parser.add_argument("--no-log", action="store_true", help="do not log the report to MLflow (to the first store)")
    return parser


if __name__ == "__main__":
    startup.run(main)
