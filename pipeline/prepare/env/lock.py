"""Locks of environments: texts that name every installed package exactly, from which the environment can be rebuilt.

A lock is also a valid input file of the build tool: requirements with exact versions for a virtual environment, an
explicit list of packages for conda. Comments hold the facts that these formats cannot express.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from pipeline.base.domain.package_locks import normalize_name
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.secrets import strip_logins

EDITABLE = "a package installed from a folder can change and cannot be recorded; install a wheel of the package"
_FIRST_LINE = "# environment lock: "
_REQUESTED = "# requested: "
_ARCHIVE = re.compile(r" @ (file://\S+)#sha256=([0-9a-f]{64})$", flags=re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """Installed packages: the lines of the lock's text, and the packages' identity without their sources.

    The digest covers the identity only, so another mirror or folder does not change the digest.
    """

    lines: tuple[str, ...]
    identity: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Digest of the packages and of the platform that they were built for."""
        return hashlib.sha256("\n".join((name_platform(), *sorted(self.identity))).encode()).hexdigest()

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """An installed Python package.

    Attributes:
        direct_url: content of `direct_url.json` (PEP 610) if the package was installed from a URL or folder; for an
            editable package, `editable.py` adds the key `state`.
        place: path of its metadata.
    """

    name: str
    version: str
    direct_url: str | None = None
    place: str = ""

    @property
    def origin(self) -> dict[str, Any]:
        return dict(json.loads(self.direct_url)) if self.direct_url else {}

    def requirement(self) -> str:
        """Return a requirement that only this package fulfils; for an archive, include its digest."""
        origin = self.origin
        url = str(origin.get("url", ""))
        if "vcs_info" in origin:
            vcs = origin["vcs_info"]
            return f"{self.name} @ {vcs['vcs']}+{url}@{vcs['commit_id']}"
        hashes = origin.get("archive_info", {}).get("hashes", {})
        if state := origin.get("state"):
            return f"{self.name} @ {url}#{urlencode(state)}"
        if url:
            return f"{self.name} @ {url}" + (f"#sha256={hashes['sha256']}" if "sha256" in hashes else "")
        return f"{self.name}=={self.version}"

    def identity(self) -> str:
        """Return name, version and, if the package was installed from a URL or folder, its digest or commit."""
        if state := self.origin.get("state"):  # without the commit: a commit may leave the code unchanged
            return f"{self.name}=={self.version} content={state['content']}"
        _, _, fragment = self.requirement().partition("#")
        commit = self.origin.get("vcs_info", {}).get("commit_id", "")
        return " ".join(filter(None, (f"{self.name}=={self.version}", fragment, commit)))


def make_distribution(
    name: str, version: str, direct_url: str | None, installer: str | None, place: str
) -> Distribution:
    """Make a package from its metadata; the folder in which conda built it is left out, because it no longer exists."""
    is_by_conda = (installer or "").strip() == "conda"
    return Distribution(name=name, version=version, direct_url=None if is_by_conda else direct_url, place=place)


def select_imported(packages: Iterable[Distribution]) -> tuple[Distribution, ...]:
    """Select the packages that an interpreter imports: the first of each name, in the order of its module path.

    Further ones are in environments below it, such as the one whose site packages a virtual environment includes.
    """
    by_name: dict[str, Distribution] = {}
    for package in packages:
        by_name.setdefault(normalize_name(package.name), package)
    return tuple(by_name.values())


def pin(package: Distribution) -> Distribution:
    """Add the archive's current digest to a package from a local archive, because uv does not record the digest."""
    origin = package.origin
    url = str(origin.get("url", ""))
    if "dir_info" in origin:
        raise ConfigError(f"{package.name} comes from {url}: {EDITABLE}")
    path = _path(url)
    digest = _sha256(path) if url.startswith("file:") and "archive_info" in origin else None
    if digest is None:
        return package
    origin |= {"url": path.as_uri(), "archive_info": {"hashes": {"sha256": digest}}}
    return dataclasses.replace(package, direct_url=json.dumps(origin))


def find_changed_archive(text: str) -> Path | None:
    """Find a local archive that a lock names and that is missing or has changed."""
    for url, digest in _ARCHIVE.findall(text):
        if _sha256(path := _path(url)) != digest:
            return path
    return None


def _path(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))  # a URL quotes characters such as the `+` in `1.0+cu121`


def _sha256(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None


def make_header(kind: str, python: str) -> tuple[str, ...]:
    """Make the first lines of a lock."""
    return f"{_FIRST_LINE}{kind}", f"# python: {python}", f"# platform: {name_platform()}"


def lock_packages(kind: str, python: str, packages: Sequence[Distribution], options: Sequence[str] = ()) -> Lock:
    """Make the lock of Python packages; `options` are the lines of a requirements file that name package sources."""
    lines = sorted(strip_logins(package.requirement()) for package in packages)
    return Lock(
        lines=(*make_header(kind, python), *map(strip_logins, options), *lines),
        identity=(f"python=={python}", *(package.identity() for package in packages)),
    )


def add_request(lines: Sequence[str], requested: Iterable[str]) -> tuple[str, ...]:
    """Add the packages that an environment's file requests to its lock, as comments below the header."""
    comments = [_REQUESTED + line for line in map(strip_logins, requested)]
    size = len(make_header("", ""))
    return (*lines[:size], *comments, *lines[size:])


def read_request(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the requested packages that a lock lists in its comments."""
    return tuple(line.removeprefix(_REQUESTED) for line in lines if line.startswith(_REQUESTED))


def read_kind(text: str) -> str | None:
    """Read the kind of environment that a lock describes, such as `venv`; `None` if the text is not a lock."""
    match = re.match(rf"{_FIRST_LINE}(.*)", text)
    return match[1].strip() if match else None


def read_python_version(text: str) -> str | None:
    """Read the version of Python that a lock names."""
    match = re.search(r"^# python: (\S+)$", text, flags=re.MULTILINE) if read_kind(text) else None
    return match[1] if match else None


def name_platform() -> str:
    """Name the system and the architecture, such as `linux-x86_64`."""
    return f"{platform.system()}-{platform.machine()}".lower()
