"""The stores and the experiment that a command line names, for every command that reads results."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.base.system import tracking_root
from pipeline.base.system.errors import ConfigError
from pipeline.record.store.results import list_experiments
from pipeline.record.store.store_access import open_named


def add_store_arguments(parser: argparse.ArgumentParser, among: argparse._MutuallyExclusiveGroup | None = None) -> None:
    """Let a command take `--experiment`, `--root` and `--uri`.

    Args:
        parser: of the command.
        among: sources of which one must be given, and an experiment is one; if not given, it has a default.
    """
    default = tracking_root.EXPERIMENT if among is None else None
    about = "as tracking.experiment" + (f"; {default}" if default else ": the runs of a study")
    (among or parser).add_argument("--experiment", default=default, metavar="NAME", help=about)
    parser.add_argument(
        "--root",
        type=Path,
        action="append",
        default=[],
        help=f"folder of a local store; {tracking_root.DEFAULT}. Given again, its blocks count as further ones",
    )
    parser.add_argument("--uri", action="append", default=[], help="tracking server, like --root")


def named_stores(arguments: argparse.Namespace) -> Sequence[Path | str]:
    """The stores that are named, each of which has the experiment.

    Raises:
        ConfigError: one of them has not; it names those that there are.
        TrackingError: there is no such store.
    """
    stores = [*arguments.root, *arguments.uri] or [tracking_root.DEFAULT]
    for store in stores:
        _check_experiment(store, arguments.experiment)
    return stores


def _check_experiment(root_or_uri: Path | str, experiment: str) -> None:
    """Refuse an experiment that the store does not have; name those that it has."""
    names = list_experiments(open_named(root_or_uri))
    if experiment not in names:
        there = ", ".join(repr(name) for name in names if name != "Default") or "none"
        raise ConfigError(
            f"there is no experiment {experiment!r} in {root_or_uri}; there is: {there}; choose one with --experiment"
        )
