"""The command line options that choose stores and an experiment."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.base.system import tracking_root
from pipeline.base.system.errors import ConfigError
from pipeline.record.store.local_store import explain_missing
from pipeline.record.store.results import list_experiments
from pipeline.record.store.store_access import open_named


def add_store_arguments(parser: argparse.ArgumentParser, among: argparse._MutuallyExclusiveGroup | None = None) -> None:
    """Add `--experiment` (to the group `among` of exclusive options, if there is one), `--root` and `--uri`."""
    default = tracking_root.EXPERIMENT if among is None else None
    about = f"tracking.experiment of the study (default: {default})" if default else "tracking.experiment of a study"
    (among or parser).add_argument("--experiment", default=default, metavar="NAME", help=about)
    parser.add_argument(
        "--root",
        type=Path,
        action="append",
        default=[],
        help=f"folder of a local store, or a bundle (default: {tracking_root.DEFAULT}); repeat the option to add one",
    )
    uri = "URI of a tracking server; repeat the option to add a server"
    parser.add_argument("--uri", action="append", default=[], help=uri)


def named_stores(arguments: argparse.Namespace) -> Sequence[Path | str]:
    """Return the named stores.

    Raises:
        ConfigError: a store does not have the experiment.
        TrackingError: a store does not exist.
    """
    stores = [*arguments.root, *arguments.uri] or [tracking_root.DEFAULT]
    for store in stores:
        find_stores([store], arguments.experiment)
    return stores


def find_stores(stores: Sequence[Path | str], experiment: str) -> list[Path | str]:
    """Return the stores that have an experiment.

    Raises:
        ConfigError: no store has the experiment.
        TrackingError: a store does not exist.
    """
    names = {store: list_experiments(open_named(store)) for store in stores}
    if matches := [store for store in stores if experiment in names[store]]:
        return matches
    known = sorted({name for store_names in names.values() for name in store_names})
    remedy = "choose one with --experiment: "
    raise ConfigError(explain_missing(experiment, " and ".join(map(str, stores)), known, remedy))
