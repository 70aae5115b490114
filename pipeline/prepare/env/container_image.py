"""Images of containers, in which jobs run: their packages are listed, and they are never changed."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain.records import Interpreter
from pipeline.base.domain.workload import BINDS, CWD, FOLDER, IMAGE, Container
from pipeline.base.system import study_cache
from pipeline.base.system.errors import CommandError, ConfigError
from pipeline.base.system.option_fields import option
from pipeline.base.system.paths import expand_path
from pipeline.prepare.env import lock
from pipeline.prepare.env.lock import Lock
from pipeline.prepare.env.probe import ask

# The host's packages are not those of the image.
_ENVIRON = (("PYTHONPATH", ""), ("PYTHONHOME", ""), ("PYTHONNOUSERSITE", "1"), ("VIRTUAL_ENV", ""))


@dataclass
class ContainerEnv:
    """Image file, in which a program such as Apptainer starts the jobs."""

    command: list[str] = option(
        "words before the interpreter: `{image}`, the working directory `{cwd}`, and `{binds}` for all folders to bind"
    )
    bind: list[str] = option("words for each folder")
    image: str | None = option("image file in which the jobs run", None, values="path")
    python: str = option("name or path of the interpreter in the image", "python3")

    def __post_init__(self) -> None:
        command, bind, image = self.command, self.bind, self.image
        if image is None:
            raise ConfigError("this env names no image; set env.image=FILE.sif")
        if "://" in image:
            raise ConfigError(f"env.image={image} is an address; make a file with: apptainer build FILE {image}")
        _refuse_words(command, bind)
        if shutil.which(command[0]) is None:
            raise ConfigError(f"env.command: {command[0]} is not on PATH; install the program, or load its module")
        self._image = expand_path("env.image", image).absolute()
        if not self._image.is_file():
            raise ConfigError(f"env.image={self._image} is not a file; make one with: apptainer build FILE SOURCE")
        words = tuple(word.replace(IMAGE, str(self._image)) for word in command)
        self._container = Container(command=words, bind=tuple(bind))

    def preview(self) -> Interpreter:
        return _describe(self._container, self.python, self._image)

    resolve = preview


def _refuse_words(command: Sequence[str], bind: Sequence[str]) -> None:
    """Refuse words that would start another program than intended, before an image is blamed for it."""
    if not command:
        raise ConfigError("env.command is empty; leave it out for apptainer")
    if not any(IMAGE in word for word in command):
        raise ConfigError(f"env.command has no '{IMAGE}'; add this word, which stands for env.image")
    for word in command:
        if BINDS in word and word != BINDS:
            raise ConfigError(f"env.command: '{word}' contains {BINDS}; make '{BINDS}' a word of its own")
        if re.fullmatch(r"\{\w+\}", word) and word not in (BINDS, CWD, IMAGE):
            raise ConfigError(f"env.command: '{word}' is unknown; use '{IMAGE}', '{CWD}' or '{BINDS}'")
    if bind and not any(FOLDER in word for word in bind):
        raise ConfigError(f"env.bind has no '{FOLDER}'; add this word, which stands for each folder")


@study_cache.cache_for_study  # images do not change while a study runs
def _describe(container: Container, python: str, image: Path) -> Interpreter:
    try:
        probed = ask(Path(python), container.spell([], Path.cwd()))
        with image.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (CommandError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"env.image={image}: {python} cannot run jobs in it: {reason}; "
            "check that env.command can start this image, and that it has Python 3.8 or newer"
        ) from error
    packages = lock.lock_packages("container", probed.python, probed.packages)
    size = len(lock.make_header("", ""))
    name = f"# image: {image.name} sha256:{digest}"
    recorded = Lock(
        lines=(*packages.lines[:size], name, *packages.lines[size:]), identity=(*packages.identity, f"image={digest}")
    )
    return Interpreter(
        python=Path(python),
        container=container,
        environ=_ENVIRON,
        lock=recorded.lines,
        lock_digest=recorded.digest,
    )
