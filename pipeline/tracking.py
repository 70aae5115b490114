"""The command `python -m pipeline.tracking status | flush | upgrade | relocate | import`; studies start `serve`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pipeline.base.domain import layout
from pipeline.base.system import entry_points, squeue, startup
from pipeline.base.system.command_parser import CommandParser
from pipeline.base.system.errors import CollocationError, ConfigError, StoreError, TrackingError
from pipeline.record import group_folder
from pipeline.record.owner import spell_close_command
from pipeline.record.shards.overview import read_overview
from pipeline.record.shards.shard_states import close_silent
from pipeline.record.store import bundle
from pipeline.record.store.local_store import is_server, set_mlflow_defaults, upgrade
from pipeline.record.store.portable_paths import relocate
from pipeline.record.store.store_access import open_named
from pipeline.record.tracking_server import RequestHandler, format_error, serve

WATCH_S, SILENT_S = 10.0, 3600.0

log = logging.getLogger(__name__)


def flush(handler: RequestHandler, spool_root: Path, *, closes_lost: bool = False) -> int:
    """Send every group in the spool whose study has ended, and every amendment (a later change of a sent run).

    Return 1 if something was not sent.

    Groups that another machine left open are sent only with `closes_lost`, because that machine may still write them.

    Raises:
        StoreError: a group or amendment belongs to the local store, which cannot be used.
    """
    spooled = group_folder.survey(spool_root, closes_lost=closes_lost)
    paths = (*spooled.ready, *group_folder.list_amendments(spool_root))
    handler.refuse_unusable(paths)
    failures = [f"{folder}: {reason}" for folder, reason in spooled.unreadable.items()]
    for path in paths:
        try:
            if path in spooled.ready:
                target = handler.describe_target(path) if path.exists() else ""
                runs = handler.send(path)
                _say(f"sent {path}" + (f" to {target} as run {runs.parent}" if runs else " (by another process)"))
            else:
                handler.answer({"op": "amend", "spool": str(path)})
                _say(f"sent {path}")
        except Exception as error:  # noqa: BLE001  no failure may prevent the sending of other groups
            if path.exists():
                failures.append(f"{path}: {format_error(error)}")
            else:
                _say(f"sent {path} (by another process)")
    handler.tidy()
    for folder in spooled.busy:
        _say(f"skipped {folder}: a study is writing it")
    for folder, owner in spooled.elsewhere.items():
        if closes_lost:
            _say(f"skipped {folder}: a study, perhaps on host {owner}, is writing it; end that study first")
        else:
            command = spell_close_command(spool_root.parent)
            _say(f"skipped {folder}: host {owner} may still write it; if that host is lost, run {command}")
    if not (spooled.ready or spooled.busy or spooled.elsewhere or failures):
        _say(f"nothing to send in {spool_root}")
    for failure in failures:
        log.error("not sent: %s", failure)
    return 1 if failures or spooled.elsewhere else 0


def status(options: argparse.Namespace) -> int:
    """Print the progress of a study, with `--watch` until its end; return 0 only if all shards are done."""
    if options.uri is not None and not is_server(options.uri):
        raise ConfigError(f"--uri {options.uri} is not a tracking server; use --uri http://HOST:PORT")
    store = options.uri or options.root
    if options.close_lost:
        for name in close_silent(open_named(store), options.experiment, SILENT_S):
            _say(f"closed as interrupted: {name}")
    while True:
        try:
            progress = read_overview(store, options.experiment, squeue.read_cluster_states)
        except TrackingError as error:
            if not options.watch:
                raise
            log.warning("%s; trying again in %g s", error, WATCH_S)  # the study has not begun, or the server is down
        else:
            _say(json.dumps(dataclasses.asdict(progress), indent=2) if options.json else progress.as_text(time.time()))
            if progress.is_done or not options.watch:
                return 0 if progress.is_done else 1
            _say("")
        time.sleep(WATCH_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    options = make_parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    set_mlflow_defaults()
    try:
        return _run(options)
    except CollocationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2 if isinstance(error, ConfigError | StoreError) else 1


def _run(options: argparse.Namespace) -> int:
    match options.command:
        case "status":
            return status(options)
        case "relocate":
            counts = relocate(options.root, options.old_root)
            for column, count in counts.items():
                _say(f"{column}: {count} rewritten")
            if not counts:
                _say(f"nothing to do: every artifact path is already below {options.root.absolute()}")
            return 0
        case "upgrade":
            _say(upgrade(options.root))
            return 0
        case "import":
            experiment = bundle.unpack(options.bundle, options.root)
            _say(f"imported experiment {experiment} from {options.bundle} to {options.root.absolute()}")
            return 0
    handler = RequestHandler(options.root.absolute(), options.uri, options.series_points)
    if options.command == "serve":
        return serve(handler)
    if not options.root.is_dir():
        raise ConfigError(f"the folder {options.root.absolute()} does not exist; set --root to the folder of a study")
    return flush(handler, options.root.absolute() / layout.SPOOL, closes_lost=options.close_lost)


def make_parser(*_: str) -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = CommandParser(prog=entry_points.spell("tracking"), description="Track studies in MLflow.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("status", "show the progress of a study, shard by shard; exit status 0 if all shards are done"),
        ("serve", "answer the requests of an orchestrator on stdin"),
        ("flush", "send the groups in the spool; close and send the groups of killed studies"),
        ("upgrade", "upgrade a local store of an older MLflow; a copy of the old database is kept"),
        ("relocate", "update artifact paths after a local store was copied or moved"),
        ("import", "add the runs of a bundle (report export) to a local store"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--root", type=Path, default=Path("mlruns"), help="folder of the store and its spool")
        if name == "status":
            command.add_argument("--experiment", default="collocation", help="tracking.experiment of the study")
            command.add_argument("--uri", help="tracking server, instead of --root")
            command.add_argument("--watch", action="store_true", help=f"repeat every {WATCH_S:g} s until all is done")
            command.add_argument(
                "--close-lost",
                action="store_true",
                help=f"first close groups that run for over {SILENT_S / 3600:g} h; only for groups of lost hosts",
            )
            command.add_argument("--json", action="store_true", help="print JSON")
        elif name == "import":
            command.add_argument("bundle", type=Path, help="file that `report export` wrote")
        elif name == "upgrade":
            continue
        elif name == "relocate":
            command.add_argument("--from", dest="old_root", type=Path, help="former folder (default: from the store)")
        else:
            command.add_argument("--uri", help="tracking server for all groups (default: the server of each study)")
            command.add_argument("--series-points", type=int, default=500, help="points of a series in MLflow's charts")
        if name == "flush":
            command.add_argument(
                "--close-lost",
                action="store_true",
                help="also close and send groups that other hosts left open; only for groups of lost hosts",
            )
    return parser


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()  # with `--watch`, stdout may be a pipe


if __name__ == "__main__":
    if "serve" in sys.argv:
        startup.open_streams()
        startup.drop_warning_errors()
        os._exit(main())  # saves 50 ms of MLflow's clean-up, for which the orchestrator would wait
    startup.run(main)
