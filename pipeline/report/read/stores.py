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
    """Return the named stores, each of which has the experiment.

    Raises:
        ConfigError: one of them has not; it names those that there are.
        TrackingError: there is no such store.
    """
    stores = [*arguments.root, *arguments.uri] or [tracking_root.DEFAULT]
    for store in stores:
        find_stores([store], arguments.experiment)
    return stores


def find_stores(stores: Sequence[Path | str], experiment: str) -> list[Path | str]:
    """Return the stores that have an experiment.

    Raises:
        ConfigError: none of them has it; the error names those that there are.
        TrackingError: there is no such store.
    """
    names = {store: list_experiments(open_named(store)) for store in stores}
    if matches := [store for store in stores if experiment in names[store]]:
        return matches
    known = sorted({repr(name) for of_store in names.values() for name in of_store if name != "Default"})
    raise ConfigError(
        f"{', '.join(map(str, stores))} has no experiment {experiment!r}; "
        f"choose one with --experiment: {', '.join(known) or 'there is none'}"
    )
