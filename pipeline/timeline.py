"""The timelines of all groups of a study (`record/trace.py`) as one trace for https://ui.perfetto.dev.

python -m pipeline.timeline --experiment NAME --out trace.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.base.domain import layout
from pipeline.base.system import entry_points, startup
from pipeline.base.system.command_parser import CommandParser
from pipeline.base.system.errors import CollocationError, TrackingError
from pipeline.base.system.words import format_count
from pipeline.clean import temporary_folder
from pipeline.record import trace as trace_file
from pipeline.record.store import results, store_access


def merge_timelines(root_or_uri: Path | str, experiment: str) -> tuple[dict[str, Any], int]:
    """Return the trace of an experiment, and the number of groups without a readable timeline.

    Raises:
        ConfigError: the folder contains no store.
        TrackingError: the store cannot be read or lacks the experiment, or none of its groups has a timeline.
    """
    names = results.list_experiments(root_or_uri)
    stored = results.read_groups(root_or_uri, experiment) if experiment in names else []
    groups = [group for group in stored if group.result is not None]
    if not groups:
        raise TrackingError(
            f"experiment {experiment!r} in {root_or_uri} has no finished group; "
            "name a study (its tracking.experiment) with --experiment"
        )
    traces = [trace for group in groups if (trace := _fetch_trace(root_or_uri, group.run_id)) is not None]
    if not traces:
        raise TrackingError(
            f"no group of experiment {experiment!r} has a readable {layout.TIMELINE}; "
            "name another experiment with --experiment"
        )
    return trace_file.merge(traces), len(groups) - len(traces)


def _fetch_trace(store: Path | str, run_id: str) -> dict[str, Any] | None:
    with temporary_folder.hold_scratch() as scratch:
        try:
            path = store_access.fetch(store, run_id, layout.TIMELINE, scratch)
        except TrackingError as error:
            raise TrackingError(f"cannot read {layout.TIMELINE} of run {run_id}: {error}") from error
        if path is None:
            return None
        try:
            trace: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            trace_file.merge([trace])
        except Exception as error:  # noqa: BLE001  a damaged file may raise anything
            sys.stderr.write(
                f"warning: {layout.TIMELINE} of run {run_id} is left out, because it is damaged: {error}\n"
            )
            return None
        return trace


def make_parser(*_: str) -> argparse.ArgumentParser:
    """Return the parser of the command."""
    description = "Write the timeline of a study as a trace for Perfetto."
    parser = CommandParser(prog=entry_points.spell("timeline"), description=description)
    parser.add_argument("--experiment", default="collocation", help="tracking.experiment (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("trace.json"), help="file to write (default: %(default)s)")
    parser.add_argument("--root", type=Path, default=Path("mlruns"), help="folder of the store (default: %(default)s)")
    parser.add_argument("--uri", help="tracking server, instead of --root")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Write the trace of an experiment; return the exit status."""
    options = make_parser().parse_args(arguments)
    try:
        content, num_without = merge_timelines(options.uri or options.root, options.experiment)
        options.out.write_text(json.dumps(content), encoding="utf-8")
    except CollocationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"error: cannot write {options.out}: {error.strerror}; choose another file with --out\n")
        return 2
    without = f" ({num_without} more without a readable timeline)" if num_without else ""
    sys.stdout.write(
        f"{format_count(content['otherData']['groups'], 'group')}{without} in {options.out}; open https://ui.perfetto.dev\n"
    )
    return 0


if __name__ == "__main__":
    startup.run(lambda: main(sys.argv[1:]))
