"""Links into MLflow's UI."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from pipeline.base.domain.layout import DATABASE
from pipeline.base.system.paths import shorten_path
from pipeline.base.system.secrets import strip_logins
from pipeline.record.store import pages

_UI = "http://127.0.0.1:5000"


def make_ui_link(base_url: str, experiment_id: str) -> str:
    """Return the URL of the page with an experiment's runs."""
    return pages.link_experiment(_strip_login(base_url), experiment_id)


def make_run_link(base_url: str | None, experiment_id: str, run_id: str) -> str:
    """Return the URL of a run's page, on a server or in the local UI that `describe_local_ui` starts."""
    server = base_url if base_url is not None and base_url.startswith("http") else _UI
    return pages.link_run(_strip_login(server), experiment_id, run_id)


def _strip_login(server: str) -> str:
    return strip_logins(server).rstrip("/")


def describe_local_ui(root: Path, experiment_id: str) -> str:
    """Return the command that starts the UI of a local store, and the page to open afterwards."""
    return _spell_command(f"sqlite:///{shorten_path((root / DATABASE).absolute())}", experiment_id)


def describe_ui(uri: str, experiment_id: str) -> str:
    """Return the link or the command that shows an experiment at a tracking URI."""
    scheme = uri.partition(":")[0]
    if scheme in ("http", "https"):
        return make_ui_link(uri, experiment_id)
    if scheme.startswith("databricks"):
        return f"experiment {experiment_id} in the workspace of {uri}"
    return _spell_command(strip_logins(uri), experiment_id)


def _spell_command(backend: str, experiment_id: str) -> str:
    program = "mlflow" if shutil.which("mlflow") else shorten_path(Path(sys.executable).parent / "mlflow")
    # The default of four workers takes minutes to start on a small or busy machine.
    command = shlex.join([str(program), "ui", "--backend-store-uri", backend, "--workers", "1"])
    return f"{command}   then open {make_ui_link(_UI, experiment_id)}"
