"""The command line options that choose stores and an experiment."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.base.system import paths
from pipeline.base.system.errors import ConfigError
from pipeline.record.store.local_store import explain_missing
from pipeline.record.store.results import list_experiments


def add_store_arguments(parser: argparse.ArgumentParser, among: argparse._MutuallyExclusiveGroup | None = None) -> None:
    """Add `--experiment` (to the group `among` of exclusive options, if there is one), `--root` and `--uri`."""
    default = f" (default: the only one, else {paths.DEFAULT_EXPERIMENT})" if among is None else ""
    about = f"tracking.experiment of the study{default}"
    (among or parser).add_argument("--experiment", metavar="NAME", help=about)
    parser.add_argument(
        "--root",
        type=Path,
        action="append",
        default=[],
        help=f"folder of a local store, or a bundle (default: {paths.DEFAULT_ROOT}); repeat the option to add one",
    )
    uri = "URI of a tracking server; repeat the option to add a server"
    parser.add_argument("--uri", action="append", default=[], help=uri)


def named_stores(arguments: argparse.Namespace) -> Sequence[Path | str]:
    """Return the named stores; set the experiment, if none is named, to the only one in these stores.

    Raises:
        ConfigError: a store does not have the experiment.
        TrackingError: a store does not exist.
    """
    stores = [*arguments.root, *arguments.uri] or [paths.DEFAULT_ROOT]
    if arguments.experiment is None:
        known = set().union(*_list_experiments(stores).values())
        arguments.experiment = known.pop() if len(known) == 1 else paths.DEFAULT_EXPERIMENT
    for store in stores:
        find_stores([store], arguments.experiment)
    return stores


def find_stores(stores: Sequence[Path | str], experiment: str) -> list[Path | str]:
    """Return the stores that have an experiment.

    Raises:
        ConfigError: no store has the experiment.
        TrackingError: a store does not exist.
    """
    names = _list_experiments(stores)
    if matches := [store for store in stores if experiment in names[store]]:
        return matches
    known = sorted({name for store_names in names.values() for name in store_names})
    remedy = "choose one with --experiment: "
    raise ConfigError(explain_missing(experiment, " and ".join(map(str, stores)), known, remedy))


def _list_experiments(stores: Sequence[Path | str]) -> dict[Path | str, list[str]]:
    """Return the names of the experiments in each store, without the one that MLflow creates in every store."""
    return {store: [name for name in list_experiments(store) if name != "Default"] for store in stores}
