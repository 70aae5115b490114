"""The archive of a bundle: written once per content, and extracted only as its manifest lists it.

The first file, `manifest.json`, has the version, the experiment, and the size and SHA-256 digest of every other file;
the records of the groups follow it. A group's folder has the layout of the spool, with tables in place of raw files:
`groups/RUN_ID/record.json`, `artifacts/` and `jobs/INDEX/`. A file with the content of an earlier one is a hard link to
it. An archive may come from a stranger: names, kinds of entries, sizes and digests are checked, and neither memory nor
disk is used beyond the sizes in the manifest.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import re
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from pipeline.base.domain import layout
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import format_count
from pipeline.record.group_record import make_refusal

VERSION = 2
GROUPS = "groups"
_KIND, _MANIFEST = "collocation bundle", "manifest.json"
_MOST_FILES, _MOST_BYTES, _MOST_MANIFEST_BYTES, _MOST_MEMORY = 200_000, 1 << 32, 1 << 26, 1 << 27
_HEADER_BYTES = 1 << 18
"""Most bytes of the headers of one entry, with those that tarfile reads ahead."""
_FILE = re.compile(rf"{GROUPS}/[0-9a-f]{{32}}/({layout.RECORD}|{layout.ARTIFACTS}/.+|{layout.JOBS}/[0-9]+/.+)")
_RECORD = re.compile(rf"{GROUPS}/[0-9a-f]{{32}}/{layout.RECORD}")
_MOST_CHARACTERS = 250


class _XzStream:
    """A decompressed file that is read once, with limited memory; `allowance` is the number of bytes to read at most.

    tarfile would read an extended header of any size into memory.
    """

    def __init__(self, source: BinaryIO) -> None:
        self.allowance = _HEADER_BYTES
        self._source = source
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_MEMORY)

    def read(self, size: int) -> bytes:
        parts, num_missing = [], size
        while num_missing > 0 and not self._decoder.eof:
            compressed = self._source.read(1 << 16) if self._decoder.needs_input else b""
            if self._decoder.needs_input and not compressed:
                raise EOFError("its end is missing")
            parts.append(self._decoder.decompress(compressed, num_missing))
            num_missing -= len(parts[-1])
        self.allowance -= size - num_missing
        if self.allowance < 0:
            raise tarfile.TarError("an entry is larger than its header or the manifest tells")
        return b"".join(parts)


def write(file: Path, experiment: str, files: Mapping[str, Path | bytes]) -> None:
    """Write an archive that depends on the content of the files only, in place of an old one once it is complete.

    The records are the first files.

    Raises:
        OSError: a file cannot be read or written.
    """
    described = {name: _describe(content) for name, content in files.items()}
    head = {"kind": _KIND, "version": VERSION, "experiment": experiment, "files": described}
    manifest = json.dumps(head, indent=1).encode()
    part = file.with_name(f".{file.name}.part")
    first: dict[object, str] = {}
    try:
        with tarfile.open(part, "w:xz", preset=6, format=tarfile.PAX_FORMAT) as archive:
            for name, content in {_MANIFEST: manifest, **files}.items():
                entry = tarfile.TarInfo(name)
                earlier = first.setdefault(described[name]["sha256"], name) if name in described else name
                if earlier != name:
                    entry.type, entry.linkname = tarfile.LNKTYPE, earlier
                    archive.addfile(entry)
                    continue
                entry.size = _measure_size(content)
                with _open_content(content) as source:
                    archive.addfile(entry, source)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def extract(file: Path, folder: Path, *, only_records: bool = False) -> str:
    """Extract an archive, or only its records, to an empty folder, and check it; return the experiment.

    Raises:
        ConfigError: the file is not a complete bundle of this version.
    """
    try:
        with file.open("rb") as source:
            stream = _XzStream(source)
            with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
                first = archive.next()
                if first is None or first.name != _MANIFEST or first.size > _MOST_MANIFEST_BYTES:
                    raise ConfigError(
                        f"{file} is not a bundle: it does not begin with {_MANIFEST}; export the study again"
                    )
                stream.allowance = _HEADER_BYTES + first.size
                head = _check_manifest(file, json.load(_open_entry(archive, first)), folder)
                missing = {name: facts for name, facts in head["files"].items() if _is_record(name) or not only_records}
                stream.allowance = _HEADER_BYTES
                while (missing or not only_records) and (entry := archive.next()) is not None:
                    expected = _check_entry(file, entry, missing, head["files"])
                    stream.allowance = _HEADER_BYTES + entry.size
                    _extract_file(file, archive, entry, expected, folder)
                    stream.allowance = _HEADER_BYTES
    except (OSError, EOFError, tarfile.TarError, lzma.LZMAError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{file} is not a complete bundle: {error}; copy the file again, or export the study again"
        ) from error
    if missing:
        raise ConfigError(
            f"{file} lacks {format_count(len(missing), 'file')}, such as {next(iter(missing))}; copy the bundle again"
        )
    return str(head["experiment"])


def _describe(content: Path | bytes) -> dict[str, object]:
    with _open_content(content) as source:
        return {"bytes": _measure_size(content), "sha256": hashlib.file_digest(source, "sha256").hexdigest()}


def _open_content(content: Path | bytes) -> io.BytesIO | io.BufferedReader:
    return io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")


def _measure_size(content: Path | bytes) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _check_manifest(file: Path, head: Any, folder: Path) -> dict[str, Any]:
    if not isinstance(head, dict) or head.get("kind") != _KIND:
        raise ConfigError(f"{file} is not a bundle of this project; export a study with: report export")
    if head.get("version") == 1:
        raise ConfigError(str(make_refusal(file)))
    if head.get("version") != VERSION:
        raise ConfigError(
            f"{file} has format version {head.get('version')!r}, but this version of the project reads format version "
            f"{VERSION}; use the version that wrote the file"
        )
    files, experiment = head.get("files"), head.get("experiment")
    is_name = isinstance(experiment, str) and experiment.isprintable() and 0 < len(experiment) <= _MOST_CHARACTERS
    if not isinstance(files, dict) or not is_name:
        raise ConfigError(f"{file} has an incomplete {_MANIFEST}; export the study again")
    sizes = [size for entry in files.values() if isinstance(entry, dict) and type(size := entry.get("bytes")) is int]
    if len(files) > _MOST_FILES or len(sizes) < len(files) or min(sizes) < 0:
        raise ConfigError(f"{file} has an impossible list of files in {_MANIFEST}; export the study again")
    if foreign := next((name for name in files if not _is_allowed(name)), None):
        raise ConfigError(f"{file} lists {foreign[:200]!r}, which is no file of a group; do not use this file")
    if (total := sum(sizes)) > _MOST_BYTES:
        raise ConfigError(
            f"{file} would unpack to {total / 2**30:.3g} GiB, more than the limit of {_MOST_BYTES / 2**30:g} GiB; "
            "export an experiment with fewer groups"
        )
    contents = {str(entry.get("sha256")): entry["bytes"] for entry in files.values()}
    if (total_bytes := sum(contents.values())) > (free := shutil.disk_usage(folder).free):
        raise ConfigError(
            f"{file} needs {total_bytes / 2**30:.3g} GiB in {folder.parent}, which has {free / 2**30:.3g} GiB; "
            "set TMPDIR to another folder"
        )
    return head


def _is_allowed(name: str) -> bool:
    """Return whether a name is that of a file of a group, in the only spelling of its path."""
    path = PurePosixPath(name)
    is_plain = name.isprintable() and path.as_posix() == name and ".." not in path.parts
    return is_plain and _FILE.fullmatch(name) is not None


def _is_record(name: str) -> bool:
    return _RECORD.fullmatch(name) is not None


def _check_entry(
    file: Path, entry: tarfile.TarInfo, missing: dict[str, Any], files: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Take an entry from the missing files, and return its size and digest in the manifest."""
    expected: Mapping[str, Any] | None = missing.pop(entry.name, None)
    is_link = (
        entry.type == tarfile.LNKTYPE
        and entry.linkname not in missing
        and expected is not None
        and files.get(entry.linkname) == expected
    )
    is_file = entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not entry.issparse()
    if expected is None or not (is_file or is_link):
        raise ConfigError(
            f"{file} contains {entry.name[:200]!r}, which its manifest does not list as this; do not use this file"
        )
    if not is_link and entry.size != expected["bytes"]:
        raise ConfigError(
            f"{file}: {entry.name} has {entry.size} bytes instead of {expected['bytes']}; copy the bundle again"
        )
    return expected


def _extract_file(
    file: Path, archive: tarfile.TarFile, entry: tarfile.TarInfo, expected: Mapping[str, Any], folder: Path
) -> None:
    """Write one file of an archive to a folder, and compare its digest; or link it to an earlier one."""
    target, digest = folder / entry.name, hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    if entry.type == tarfile.LNKTYPE:
        target.hardlink_to(folder / entry.linkname)
        return
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as output:
        source = _open_entry(archive, entry)
        while block := source.read(1 << 20):
            digest.update(block)
            output.write(block)
    if digest.hexdigest() != expected.get("sha256"):
        raise ConfigError(f"{file}: {entry.name} does not match its digest; copy the bundle again")


def _open_entry(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> BinaryIO:
    source = archive.extractfile(entry)
    if source is None:
        raise tarfile.TarError(f"{entry.name[:200]!r} is not a file")
    return source  # type: ignore[return-value]
