"""The command `collocate share`: turns a study into an entry of the public table, checked as in its CI."""

from __future__ import annotations

import argparse
import getpass
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.base.system import entry_points, startup
from pipeline.base.system.command_parser import CommandParser
from pipeline.base.system.errors import CollocationError, ConfigError
from pipeline.base.system.words import format_count
from pipeline.clean import temporary_folder
from pipeline.record.store import bundle, bundle_archive, bundle_reader
from pipeline.record.store.store_access import open_named
from pipeline.report import entries
from pipeline.report.entries import EntryFile
from pipeline.report.read.rows import add_source_arguments

COMMAND = "share"
_LEAST_NAME, _COMMON_NAMES = 4, frozenset({"root", "user", "ubuntu", "localhost", "home"})


def main(argv: Sequence[str] | None = None) -> int:
    """Write an entry; return the exit status."""
    options = make_parser().parse_args(argv)
    try:
        return _share(options)
    except CollocationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _share(options: argparse.Namespace) -> int:
    with temporary_folder.hold_scratch() as scratch:
        file = _make_bundle(options, scratch)
        evaluation = entries.evaluate(file)
        is_acceptance = file.name == entries.BUNDLES[1]
        named = [] if is_acceptance else list(_find_own_names(file))
        if problems := [*evaluation.refusals, *named]:
            raise ConfigError(f"the study cannot be shared: {'; '.join(problems)}")
        folder = options.out or entries.choose_folder(evaluation, file)
        if folder.exists():
            raise ConfigError(f"{folder} exists; remove it, or choose another folder with --out")
        entry = EntryFile(
            bundle=file.name,
            gpu=evaluation.device,
            driver=evaluation.driver,
            torch=evaluation.torch,
            licence=options.licence,
            contact=options.contact,
        )
        folder.mkdir(parents=True)
        shutil.copyfile(file, folder / file.name)
        entries.write_file(folder, entry)
        files = "" if is_acceptance else f" ({_describe_files(file)})"
    sys.stdout.write(f"{evaluation.experiment} on {evaluation.device}: {evaluation.num_groups} groups{files}\n")
    sys.stdout.write("".join(f"{note}\n" for note in evaluation.notes))
    sys.stdout.write(f"entry: {folder}\nTo add it to the table, in a clone of the project that has this folder:\n")
    name = folder.name
    sys.stdout.write(f"    git switch --create {name} && git add {folder}\n")
    sys.stdout.write(f"    git commit --message 'Add {evaluation.experiment} on {evaluation.device}'\n")
    sys.stdout.write(f"    git push --set-upstream origin {name}    # then open a pull request\n")
    return 0


def _make_bundle(options: argparse.Namespace, scratch: Path) -> Path:
    source = options.uri or options.root
    if bundle_reader.is_bundle(source):
        is_acceptance = Path(source).name == entries.BUNDLES[1]
        return Path(shutil.copyfile(source, scratch / entries.BUNDLES[is_acceptance]))
    file = scratch / entries.BUNDLES[0]
    bundle.export(open_named(source), options.experiment, file)
    return file


def _find_own_names(file: Path) -> Iterator[str]:
    """Yield where a bundle names this user, host or home folder, as outputs of jobs may."""
    folder = bundle_reader.extract(file)
    candidates = {getpass.getuser(), socket.gethostname(), Path.home().name, str(Path.home())}
    names = [name.encode() for name in candidates if len(name) >= _LEAST_NAME and name.strip("/") not in _COMMON_NAMES]
    for name in names:
        holders = [path for path in _list_files(folder) if name in path.read_bytes()]
        if holders:
            place = "/".join(holders[0].parts[-3:])
            yield f"{format_count(len(holders), 'file')} named {name.decode()!r}, such as {place}"


def _describe_files(file: Path) -> str:
    kinds = Counter(path.name for path in _list_files(bundle_reader.extract(file)))
    return ", ".join(f"{number} {name}" for name, number in sorted(kinds.items()))


def _list_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / bundle_archive.GROUPS).rglob("*") if path.is_file())


def make_parser(*_: str) -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = CommandParser(
        prog=entry_points.spell(COMMAND),
        description="Write a study as an entry of the public table: its bundle, checked and evaluated, and entry.yaml.",
    )
    add_source_arguments(parser, "folder of a store, a bundle, or acceptance.tar.xz")
    parser.add_argument("--licence", choices=entries.LICENCES, default=entries.LICENCES[0], help="of the data")
    parser.add_argument("--contact", default="", help="who can be asked; public")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"default: {entries.FOLDER}/<gpu>/<date>-<digest>")
    return parser


if __name__ == "__main__":
    startup.run(main)
