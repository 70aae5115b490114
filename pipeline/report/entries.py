"""Entries of the public table: a folder with `entry.yaml` and a bundle, which is evaluated in a process with limits."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from pipeline.base.system import helper_program
from pipeline.base.system.errors import CommandError, ConfigError
from pipeline.base.system.json_decoder import JsonValueError, decode
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.report.evaluate.entry import UNCHECKED, Evaluation

FOLDER, FILE = Path("community"), "entry.yaml"
OWN_RESULTS = Path("docs/results")
BUNDLES = ("study.tar.xz", "acceptance.tar.xz")
LICENCES = ("CC-BY-4.0", "CC0-1.0", "CC-BY-SA-4.0")
_LIMIT_S = 180.0
_MOST_BUNDLE_BYTES, _MOST_YAML_BYTES, _MOST_CHARACTERS = 20_000_000, 4096, 120
_OWN = re.compile(rf"{OWN_RESULTS.as_posix()}/\w+\.tar\.xz")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFile:
    """The content of `entry.yaml`.

    Attributes:
        bundle: one of `BUNDLES` in the folder, or a bundle of `docs/results`.
        driver, torch: versions; empty if no job uses a GPU, or torch.
        licence: licence of the data, one of `LICENCES`.
        contact: who can be asked; empty for nobody.
    """

    bundle: str
    gpu: str
    licence: str
    driver: str = ""
    torch: str = ""
    contact: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry, with the reasons to refuse it."""

    folder: Path
    file: EntryFile
    bundle: Path
    evaluation: Evaluation
    refusals: tuple[str, ...]


def list_folders(root: Path) -> list[Path]:
    """Return the folders of all entries."""
    return sorted(path.parent for path in (root / FOLDER).glob(f"**/{FILE}"))


def read(root: Path, folder: Path) -> Entry:
    """Read and evaluate an entry of a repository.

    Raises:
        ConfigError: the entry cannot be evaluated.
    """
    path = folder / FILE
    if path.is_symlink() or path.stat().st_size > _MOST_YAML_BYTES:
        raise ConfigError(f"{FILE} is a link, or larger than {_MOST_YAML_BYTES} bytes")
    try:
        file = _parse_file(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, JsonValueError, ValueError, RecursionError) as error:
        raise ConfigError(f"{FILE} is damaged: {' '.join(str(error).split())[:_MOST_CHARACTERS]}") from error
    is_own = _OWN.fullmatch(file.bundle) is not None
    if file.bundle not in BUNDLES and not is_own:
        raise ConfigError(f"bundle: {file.bundle[:_MOST_CHARACTERS]!r} is not {' or '.join(BUNDLES)}")
    bundle = root / file.bundle if is_own else folder / file.bundle
    if bundle.is_symlink() or not bundle.is_file():
        raise ConfigError(f"bundle: {file.bundle} does not exist")
    if bundle.stat().st_size > _MOST_BUNDLE_BYTES:
        raise ConfigError(f"{file.bundle} has more than {_MOST_BUNDLE_BYTES // 1_000_000} MB")
    evaluation = evaluate(bundle)
    names = {path.name for path in folder.iterdir()} - {FILE, file.bundle}
    # Results of the project itself are older than the times of slices in bundles.
    refusals = [text for text in evaluation.refusals if not (is_own and text.startswith(UNCHECKED))]
    problems = [*_check_file(file, evaluation), *refusals]
    if names:
        problems.append(f"the folder has other files: {', '.join(sorted(names))[:_MOST_CHARACTERS]}")
    if folder.relative_to(root) != (expected := choose_folder(evaluation, bundle)):
        problems.append(f"the folder is not {expected}")
    return Entry(folder=folder, file=file, bundle=bundle, evaluation=evaluation, refusals=tuple(problems))


def _parse_file(text: str) -> EntryFile:
    content = yaml.safe_load(text)
    if not isinstance(content, dict) or not all(isinstance(value, str) for pair in content.items() for value in pair):
        raise ValueError("a key has no text, or a list; write one text for each key")  # as `decode` raises
    return decode(EntryFile, content)


def _check_file(file: EntryFile, evaluation: Evaluation) -> Iterator[str]:
    for key, entered, measured in (
        ("gpu", file.gpu, evaluation.device),
        ("driver", file.driver, evaluation.driver),
        ("torch", file.torch, evaluation.torch),
    ):
        if entered != measured:
            yield f"{key}: {entered[:_MOST_CHARACTERS]!r}, but the bundle has {measured!r}"
    if file.licence not in LICENCES:
        yield f"licence: choose one of {', '.join(LICENCES)}"
    if not file.contact.isprintable() or len(file.contact) > _MOST_CHARACTERS:
        yield f"contact: write at most {_MOST_CHARACTERS} printable characters"


def choose_folder(evaluation: Evaluation, bundle: Path) -> Path:
    """Return the folder of an entry: `community/<gpu>/<date>-<digest>`."""
    name = re.sub(r"[^a-z0-9]+", "-", evaluation.device.lower()).strip("-")
    with bundle.open("rb") as source:
        digest = hashlib.file_digest(source, "sha256").hexdigest()
    return FOLDER / name / f"{evaluation.date}-{digest[:8]}"


def evaluate(bundle: Path) -> Evaluation:
    """Evaluate a bundle in a process without network, with limits of time, memory and file sizes.

    Raises:
        ConfigError: the bundle cannot be evaluated within the limits.
    """
    argv = [sys.executable, "-P", "-m", "pipeline.report.entries", str(bundle.absolute())]
    environ = os.environ | {"PYTHONPATH": str(PROJECT_DIR)}
    try:
        done = helper_program.run(argv, timeout_s=_LIMIT_S, environ=environ, check=False)
    except CommandError as error:
        raise ConfigError(f"the bundle was not evaluated within {_LIMIT_S:g} s") from error
    if done.status != 0:
        lines = done.stderr.strip().splitlines() or [f"the evaluation ended with status {done.status}"]
        raise ConfigError(lines[-1].removeprefix("error: ")[:400])
    return decode(Evaluation, json.loads(done.stdout))


def write_file(folder: Path, file: EntryFile) -> None:
    """Write `entry.yaml`."""
    text = yaml.safe_dump({key: value for key, value in dataclasses.asdict(file).items() if value}, sort_keys=False)
    (folder / FILE).write_text(text, encoding="utf-8")


def _list_experiments() -> list[str]:
    return sorted(path.stem for path in (PROJECT_DIR / "conf/experiment").glob("*.yaml"))


def _main(arguments: Sequence[str]) -> int:
    from pipeline.report import entry_limits
    from pipeline.report.evaluate.entry import evaluate as evaluate_here

    entry_limits.enter()
    evaluation = evaluate_here(Path(arguments[0]), _list_experiments())
    sys.stdout.write(json.dumps(dataclasses.asdict(evaluation)))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(_main(sys.argv[1:]))
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
