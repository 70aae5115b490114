"""MLflow's undocumented internals: only this package knows its modules, tables, files and pages.

Why `MlflowClient` is not enough, and what is lost without each:

- Modules (`database_tables.py`): it imports database modules at first use, and puts files of the experiment Default
  into the working directory. Without: the first group waits for the import, and those files appear.
- Tables (`database_tables.py`): it upgrades an old database by opening it, takes 37 s instead of 2 to read some tags of
  10,000 runs, and cannot move artifacts. Without: a store of another version is only detected by opening it, `status`
  is slower, `relocate` may leave old paths.
- Files (`file_store.py`): it refuses all runs of a script for one truncated line, which a killed job leaves. Without:
  what a script logs through another version may be incomplete.
- Pages (`pages.py`): columns of a study have no documented interface. Without: the UI shows its own.

All of it was tested with the versions in `TRIED`. With other versions, the project does without where possible, and
`warn_if_untried` reports in one line what a user loses.
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
    "its UI lacks the study's columns, status is slower, stores of other versions are not refused, "
    "relocate and what scripts log may be incomplete"
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
    """Report once what a user loses with an MLflow version that is not in `TRIED`."""
    if not is_tried():
        low, high = (".".join(map(str, bound)) for bound in TRIED)
        remedy = f"pip install 'mlflow>={low},<{high}' to have all"
        log.warning("MLflow %s was not tried: %s; %s", version(), _LOST, remedy)
