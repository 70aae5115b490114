"""Files that describe a conda environment: environment.yml, and explicit package lists, such as recorded locks."""

from __future__ import annotations

import graphlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from pipeline.base.system import secrets
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import expand_path
from pipeline.prepare.env import lock, requirements
from pipeline.prepare.env.lock import Lock

_KEYS = {"name", "prefix", "channels", "dependencies", "variables"}
_DEFAULTS = ("https://repo.anaconda.com/pkgs/main", "https://repo.anaconda.com/pkgs/r")
_EXPLICIT, _PIP, _VARIABLES, _DIGEST = "@EXPLICIT", "# pip ", "# variables ", "# sha256 "


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaFile:
    """Content of a conda file: either `specs` to be solved, or `packages` to be installed without a solve.

    Attributes:
        channels: URLs and names of channels, highest priority first.
        specs: requested packages in conda's notation.
        packages: packages of an explicit list, each with its `url` and, if listed, its `sha256` and `md5`.
        pip: lines of a requirements file.
        variables: variables that activating the environment sets.
        content: text of the file and digests of its included files.
        requested: for a lock, the packages requested by the file from which the lock was made.
    """

    channels: tuple[str, ...] = ()
    specs: tuple[str, ...] = ()
    packages: tuple[dict[str, str], ...] = ()
    pip: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    content: tuple[str, ...] = ()
    requested: tuple[str, ...] = ()


def read(file: Path) -> CondaFile:
    """Read an environment.yml or an explicit package list; an unknown key or line is a ConfigError."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"env.file={file} cannot be read: {error}; name a readable text file") from error
    if file.suffix in (".yml", ".yaml"):
        content = _read_yaml(file, text)
    elif re.search(f"^{_EXPLICIT}$", text, flags=re.MULTILINE):
        content = _read_explicit(file, text)
    else:
        raise ConfigError(
            f"env.file={file} is not a file for env=conda; set it to an environment.yml or a package list with a line "
            f"{_EXPLICIT}, or use env=venv"
        )
    return replace(content, content=(text, *requirements.parse(content.pip, file).content))


def make_explicit_lock(
    python: str, records: Sequence[Mapping[str, Any]], file: CondaFile, pip: Sequence[lock.Distribution]
) -> Lock:
    """Make the lock: an explicit list that conda, mamba and micromamba also accept, with further facts in comments.

    Args:
        python: version of Python in the environment.
        records: records of `conda-meta`, in the order of installation.
        file: file from which the environment was built.
        pip: packages that pip or uv installed.
    """
    # After the installation of an explicit list, a record may lack digests that the list contains.
    listed = {package["url"]: package for package in file.packages}
    records = [{**listed.get(record["url"], {}), **record} for record in records]
    lines = [*lock.make_header("conda", python)]
    if file.variables:
        lines.append(_VARIABLES + json.dumps(file.variables))
    options = [line for line in file.pip if line.startswith("-")]
    lines += [_PIP + line for line in (*options, *sorted(package.requirement() for package in pip))]
    lines.append(_EXPLICIT)
    for record in records:
        lines.append(f"# {record['name']} {record['version']} {record['build']}")
        if record.get("sha256"):
            lines.append(f"{_DIGEST}{record['sha256']}")
        lines.append(record["url"] + (f"#{record['md5']}" if record.get("md5") else ""))
    identity = [
        " ".join((record["name"], record["version"], record["build"], record.get("sha256") or record.get("md5") or ""))
        for record in records
    ]
    return Lock(
        lines=tuple(secrets.strip_logins(line) for line in lines),
        identity=(
            *identity,
            *(f"pip {package.identity()}" for package in pip),
            *(f"variable {name}={value}" for name, value in file.variables.items()),
        ),
    )


def _read_yaml(file: Path, text: str) -> CondaFile:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"env.file={file} is not valid YAML: {' '.join(str(error).split())}; fix this line"
        ) from error
    if not isinstance(content, dict) or set(content) - _KEYS:
        unknown = ", ".join(sorted(map(str, set(content) - _KEYS))) if isinstance(content, dict) else ""
        keys = f"the unknown keys {unknown}" if unknown else "no keys"
        raise ConfigError(f"env.file={file} has {keys}; use only the keys {', '.join(sorted(_KEYS))}")
    dependencies, channels = content.get("dependencies") or [], content.get("channels") or []
    variables = content.get("variables") or {}
    if not isinstance(dependencies, list) or not isinstance(channels, list) or not isinstance(variables, dict):
        raise ConfigError(
            f"env.file={file} has an invalid entry; write channels and dependencies as lists, variables as `KEY: VALUE`"
        )
    specs, pip = list[str](), list[str]()
    for dependency in dependencies:
        if isinstance(dependency, str) and dependency.startswith("-"):
            raise ConfigError(f"env.file={file}: `{dependency}` is a pip option; put it below `- pip:` in dependencies")
        if isinstance(dependency, str):
            specs.append(dependency)
        elif isinstance(dependency, dict) and set(dependency) == {"pip"} and isinstance(dependency["pip"], list):
            pip += [requirements.make_place_absolute(str(line).strip(), file.parent) for line in dependency["pip"]]
        else:
            raise ConfigError(
                f"env.file={file}: dependency {dependency} is neither a package nor a list `pip:`; write packages as "
                "text, as in `- numpy=2`"
            )
    named = [address for channel in channels for address in _list_addresses(str(channel), file.parent)]
    if not specs or not named:
        missing = "dependencies" if not specs else "channels"
        raise ConfigError(
            f"env.file={file} has no {missing}; add at least one, as in "
            "`channels: [conda-forge]` and `dependencies: [python=3.12, numpy]`"
        )
    return CondaFile(
        channels=tuple(named),
        specs=tuple(specs),
        pip=tuple(pip),
        variables={str(key): str(value) for key, value in variables.items()},
    )


def _read_explicit(file: Path, text: str) -> CondaFile:
    packages, pip = list[dict[str, str]](), list[str]()
    variables: dict[str, str] = {}
    sha256 = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith(_PIP):
            pip.append(line.removeprefix(_PIP))
        elif line.startswith(_VARIABLES):
            variables = _parse_variables(file, line.removeprefix(_VARIABLES))
        elif line.startswith(_DIGEST):
            sha256 = line.removeprefix(_DIGEST)
        elif line and not line.startswith(("#", _EXPLICIT)):
            url, _, digest = line.partition("#")
            digest = digest.removeprefix("sha256:")
            package = {"url": url, "sha256": digest if len(digest) == 64 else sha256, "md5": digest[:32]}
            packages.append({key: v for key, v in package.items() if v and not (key == "md5" and len(digest) != 32)})
            sha256 = ""
    invalid_urls = [package["url"] for package in packages if "://" not in package["url"]]
    if invalid_urls or not packages:
        raise ConfigError(
            f"env.file={file} has lines after {_EXPLICIT} that are not package URLs: {invalid_urls[:3]}; "
            "list one URL per line"
            if invalid_urls
            else f"env.file={file} lists no package; add one package URL per line after {_EXPLICIT}"
        )
    requested = lock.read_request(text.splitlines())
    return CondaFile(packages=tuple(packages), pip=tuple(pip), variables=variables, requested=requested)


def _parse_variables(file: Path, text: str) -> dict[str, str]:
    try:
        return {str(key): str(value) for key, value in dict(json.loads(text)).items()}
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"env.file={file}: `{_VARIABLES.strip()}` is followed by {text}; write a JSON object there"
        ) from error


def _list_addresses(channel: str, folder: Path) -> tuple[str, ...]:
    if channel == "nodefaults":
        return ()
    if channel == "defaults":
        return _DEFAULTS
    if channel.startswith((".", "/", "~")):
        return ((folder / expand_path("channel", channel)).resolve().as_uri(),)
    return (channel,)


def read_records(prefix: Path) -> list[dict[str, Any]]:
    """Read the installed packages, dependencies first, because some tools install a list in its order."""
    by_name: dict[str, dict[str, Any]] = {}
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        by_name[record["name"]] = record
    needs = {name: [spec.split()[0] for spec in record.get("depends", ())] for name, record in by_name.items()}
    graph = {
        name: [dependency for dependency in sorted(needs[name]) if dependency in by_name] for name in sorted(by_name)
    }
    try:
        ordered = list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError:  # for example, pip and python may depend on each other
        ordered = sorted(by_name, key=lambda name: (name != "python", name))
    return [by_name[name] for name in ordered]
