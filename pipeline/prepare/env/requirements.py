"""Requirements files: included files, sources of packages, and the version of Python."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import expand_path
from pipeline.prepare.env import lock

_EDITABLE = ("-e", "--editable")
# Targets of `-e`: a URL, with or without the package's name, and a repository in the notation of scp.
_ADDRESS = re.compile(r"(?:(?P<name>[\w.-]+(?:\[[\w.,-]*\])?)\s*@\s*)?(?P<url>(?!file:)[\w.+-]+://\S+)")
_AS_SCP = re.compile(r"git\+(?P<user>[\w.-]+@[\w.-]+):(?!//)(?P<path>\S+)")
_INCLUDES = ("-r", "--requirement", "-c", "--constraint")
_FOLDERS = ("-f", "--find-links")
_ARCHIVE = re.compile(r"\.(whl|zip|tgz|tar\.\w+)\b")
_SOURCES = ("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--no-index", "--pre", "--trusted-host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Content of a requirements file, or of the pip lines of a conda file.

    Attributes:
        content: digests of the file and of its included files, the folder of their relative paths, and the archives in
            folders that packages are installed from.
        options: lines that name package sources, with absolute paths.
        python: version of Python that a lock names.
        packages: lines that request a package.
        requested: for a lock, the lines of the file from which the lock was made.
    """

    content: tuple[str, ...]
    options: tuple[str, ...] = ()
    python: str | None = None
    packages: tuple[str, ...] = ()
    requested: tuple[str, ...] = ()


def read(file: Path) -> Requirements:
    """Read a requirements file and its included files; a TOML file is only hashed, because uv parses it."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"env.file={file} cannot be read: {error.strerror}; name a readable file") from error
    text = content.decode("utf-8", errors="replace")
    is_toml = file.suffix == ".toml" or file.name == "uv.lock"
    try:
        parsed = parse(() if is_toml else _iterate_lines(text), file)
    except RecursionError as error:
        raise ConfigError(f"{file} includes itself; remove that line") from error
    places = (str(file.parent.resolve()),) if is_toml else ()
    return Requirements(
        content=(hashlib.sha256(content).hexdigest(), *places, *parsed.content),
        options=parsed.options,
        python=lock.read_python_version(text),
        packages=parsed.packages,
        requested=lock.read_request(text.splitlines()),
    )


def parse(lines: Iterable[str], file: Path) -> Requirements:
    """Parse lines of a file, with relative paths that start at the file's folder.

    Raises:
        ConfigError: an included file cannot be read, or a line requests an editable package.
    """
    content, options, packages = list[str](), list[str](), list[str]()
    folder = file.parent
    for line in lines:
        word, place = _split(line)
        if word in _EDITABLE:  # packages from other folders are refused by `lock.pin`, after their installation
            raise ConfigError(f"{file}: `{line}`: {_explain_editable(place)}")
        if word in _INCLUDES:
            included = read((folder / place).resolve())
            content += included.content
            options += included.options
            packages += included.packages
        elif word in _SOURCES:
            options.append(make_place_absolute(line, folder))
            content += _list_archives(options[-1]) if word in _FOLDERS else ()
        else:
            if not word:
                packages.append(line)
            if "://" not in line and ("/" in line or _ARCHIVE.search(line)):
                content.append(str(folder.resolve()))
    return Requirements(content=tuple(content), options=tuple(dict.fromkeys(options)), packages=tuple(packages))


def _explain_editable(place: str) -> str:
    unquoted = place.strip("\"'")
    if (scp := _AS_SCP.match(unquoted)) is not None:
        unquoted = f"git+ssh://{scp['user']}/{scp['path']}"
    address = _ADDRESS.match(unquoted)
    if address is None:
        return lock.EDITABLE
    url, _, fragment = address["url"].partition("#")
    parts = dict(part.partition("=")[::2] for part in fragment.split("&") if part)
    name = address["name"] or unquote(parts.pop("egg", ""))
    url_fragment = f"#{'&'.join(f'{key}={value}' for key, value in parts.items())}" if parts else ""
    requirement = f"{name} @ {url}{url_fragment}" if name else f"{url}{url_fragment}"
    return f"an editable package can change and cannot be recorded; leave -e out: {requirement}"


def make_place_absolute(line: str, folder: Path) -> str:
    """Return the line with an absolute path, if the line has a path."""
    word, place = _split(line)
    if word in (*_INCLUDES, *_SOURCES):
        is_path = place and "://" not in place and word != "--trusted-host"
        return f"{word} {(folder / expand_path(word, place)).resolve() if is_path else place}".strip()
    if line.startswith((".", "/")):
        return str((folder / line).resolve())
    return line


def _list_archives(line: str) -> list[str]:
    try:
        files = [file for file in sorted(Path(_split(line)[1]).iterdir()) if _ARCHIVE.search(file.name)]
        return [f"{file.name} {(status := file.stat()).st_size} {status.st_mtime_ns}" for file in files]
    except OSError:  # a URL, or a missing folder, which uv reports
        return []


def _split(line: str) -> tuple[str, str]:
    match = re.match(r"(--[a-z-]+|-[a-z])[\s=]*(.*)", line)
    return (match.group(1), match.group(2).strip()) if match else ("", line)


def _iterate_lines(text: str) -> Iterator[str]:
    for line in re.sub(r"\\\n", " ", text).splitlines():
        stripped = re.sub(r"(^|\s)#.*$", "", line).strip()
        if stripped:
            yield stripped
