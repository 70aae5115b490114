"""Variables of an activated conda environment, captured once; jobs then run its interpreter directly.

Jobs do not run under `conda run`, because `conda run` does not pass on signals and buffers the output.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from pipeline.base.system import helper_program
from pipeline.base.system.errors import CommandError, ConfigError
from pipeline.prepare.env.builder import make_path_variables

_LIMIT_S = 120.0
# Sources the packages' activation scripts in the order of their names, like conda.
_SCRIPT = r"""
for script in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do
    if [ -e "$script" ]; then . "$script" 1>&2; fi
done
exec "$CONDA_PREFIX/bin/python" -I -c 'import json, os; print(json.dumps(dict(os.environ)))'
"""
_OF_THE_SHELL = {"_", "SHLVL", "PWD", "OLDPWD", "LC_CTYPE"}


def capture_variables(prefix: Path, title: str) -> tuple[tuple[str, str], ...]:
    """Return the variables that activating an environment changes, compared with the orchestrator's variables.

    `title` names the environment in messages.
    """
    begin = {
        **os.environ,
        **make_path_variables(prefix),
        "CONDA_PREFIX": str(prefix),
        "CONDA_DEFAULT_ENV": str(prefix),
        "CONDA_SHLVL": "1",
        **read_state(prefix),
    }
    # The scripts are written for bash, but most of them run in any shell.
    shell = shutil.which("bash") or "/bin/sh"
    try:
        printed = helper_program.run([shell, "-c", _SCRIPT], timeout_s=_LIMIT_S, environ=begin).stdout
    except CommandError as error:
        words = error.stderr.strip() or "no message"
        raise ConfigError(
            f"{title} cannot be activated, because an activation script failed: {words}; fix or remove the script in "
            f"{prefix}/etc/conda/activate.d"
        ) from error
    try:
        end: dict[str, str] = json.loads(printed)
    except ValueError as error:
        raise ConfigError(
            f"{title} cannot be activated, because an activation script ended the shell; remove `exit` or `exec` from "
            f"the scripts in {prefix}/etc/conda/activate.d"
        ) from error
    changed = {key: value for key, value in end.items() if os.environ.get(key) != value and key not in _OF_THE_SHELL}
    return tuple(sorted(changed.items()))


def read_state(prefix: Path) -> dict[str, str]:
    """Read the variables of an environment that `conda env config vars list` prints."""
    try:
        state = json.loads((prefix / "conda-meta" / "state").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in state.get("env_vars", {}).items()}
