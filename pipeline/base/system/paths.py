"""Paths: the project's folder, files named by users, and the folder of the store and the spool (`tracking.root`)."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.base.system.errors import ConfigError

PROJECT_DIR = Path(__file__).resolve().parents[3]
MAX_NAME_BYTES = 255  # Source: NAME_MAX and PATH_MAX of linux/limits.h
_MAX_PATH_BYTES = 4095


def config_folders(arguments: Sequence[str] | None = None) -> list[Path]:
    """Return the configuration folders: the project's, and `--config-dir` of the arguments (default: `sys.argv`)."""
    words = list(itertools.takewhile(lambda word: word != "--", sys.argv[1:] if arguments is None else arguments))
    folders = [after for word, after in itertools.pairwise(words) if word in ("--config-dir", "-cd")]
    folders += [word.partition("=")[2] for word in words if word.startswith(("--config-dir=", "-cd="))]
    return [PROJECT_DIR / "conf", *map(Path, folders)]


def expand_path(key: str, text: str) -> Path:
    """Return the path in the value of a configuration key, with `~` expanded.

    Raises:
        ConfigError: the user of `~` does not exist, or the path is too long.
    """
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        home = text.partition("/")[0]
        raise ConfigError(f"{key}={text} names the unknown user {home}; use an absolute path") from error
    if len(os.fsencode(path)) > _MAX_PATH_BYTES or any(len(os.fsencode(name)) > MAX_NAME_BYTES for name in path.parts):
        raise ConfigError(f"{key}={text} is too long for a path; shorten it")
    return path


def shorten_path(path: Path) -> Path:
    """Return the path relative to the working directory if it is below it; jobs may have removed that directory."""
    try:
        return path.relative_to(Path.cwd())
    except (OSError, ValueError):
        return path


def is_file(path: Path) -> bool:
    """Return whether a regular file exists; `Path.is_file` may raise an error for a name that is too long."""
    try:
        return path.is_file()
    except OSError:
        return False


def find_file(key: str, text: str, *more_folders: Path, is_ours: bool = False) -> Path:
    """Find the file named by a key: in the working directory, the project's folder, then other folders.

    Args:
        key: name of the key, for errors.
        text: path of the file.
        more_folders: further folders.
        is_ours: whether the file belongs to a workload of the project; the working directory is then searched last.

    Raises:
        ConfigError: the file is in none of the folders.
    """
    name = expand_path(key, text)
    folders = (PROJECT_DIR, *more_folders, Path.cwd()) if is_ours else (Path.cwd(), PROJECT_DIR, *more_folders)
    places = [name] if name.is_absolute() else [folder / name for folder in dict.fromkeys(folders)]
    for place in places:
        if is_file(path := place.resolve()):
            return path
    if text and (folders_there := [place for place in places if place.is_dir()]):
        raise ConfigError(f"{key}={text} is the folder {folders_there[0]}; set it to a file")
    searched_folders = "" if name.is_absolute() else f" in {' or '.join(str(place.parent) for place in places)}"
    raise ConfigError(f"{key}={text} does not exist{searched_folders}; check the name")


DEFAULT_ROOT = Path("mlruns")
DEFAULT_EXPERIMENT = "collocation"
"""Default of `tracking.experiment`."""
_IGNORE = "# Written by gpu-collocation when it created this folder; delete this file to commit the folder.\n*\n"


def make_root(root: Path) -> None:
    """Create the folder, if missing, with a `.gitignore` that excludes it from a surrounding repository.

    An existing folder gets no `.gitignore`, because its owner may commit files in it.

    Raises:
        OSError: the folder cannot be created.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    try:
        root.mkdir()
    except FileExistsError:
        if not root.is_dir():
            raise
        return
    with suppress(OSError):  # a full disk is reported by later writes
        (root / ".gitignore").write_text(_IGNORE, encoding="utf-8")
