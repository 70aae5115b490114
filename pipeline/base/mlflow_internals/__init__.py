"""MLflow's undocumented internals: only this package knows its modules, tables, files and pages.

Why `MlflowClient` does not suffice:

- Modules (`database_tables.py`): it imports database modules at its first use, while the first group waits, and puts
  files of the experiment Default into the working directory.
- Tables (`database_tables.py`): it upgrades an old database by opening it, reads some tags of 10,000 runs in 37 s
  instead of 2, and does not change artifact paths when a store is moved.
- Files (`file_store.py`): it refuses all runs of a script because of one truncated line, which a killed job leaves.
- Pages (`pages.py`): it has no interface for the columns of MLflow's table of runs.

The versions in `TRIED` are tested. With other versions the project does not use the internals, and `warn_if_untried`
prints the consequences.
"""

from __future__ import annotations

import functools
import logging
import re
from contextlib import suppress
from importlib import metadata

TRIED = ((3, 17), (3, 18))
"""The tested versions of MLflow: from the first, below the second."""

_LOST = (
    "its UI lacks the study's columns, `tracking status` is slower, stores of other versions are not refused, "
    "`tracking relocate` and the MLflow calls of scripts may be recorded incompletely"
)

log = logging.getLogger(__name__)


def version() -> str:
    """Return the version of the installed MLflow; empty if there is none."""
    for name in ("mlflow", "mlflow-skinny"):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def is_tried() -> bool:
    """Return whether the installed MLflow is one of the versions in `TRIED`."""
    numbers = re.match(r"(\d+)\.(\d+)", version())
    return numbers is not None and TRIED[0] <= (int(numbers[1]), int(numbers[2])) < TRIED[1]


@functools.cache
def warn_if_untried() -> None:
    """Print once the consequences of an MLflow version that is not in `TRIED`."""
    if not is_tried():
        low, high = (".".join(map(str, bound)) for bound in TRIED)
        log.warning("MLflow %s is untested: %s; run pip install 'mlflow>=%s,<%s'", version(), _LOST, low, high)
