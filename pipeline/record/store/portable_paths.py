"""Replacement of the paths, users and hosts of the measuring machine by names that mean the same on every machine.

The folders are found in the records of the groups, so a store and its bundle are masked alike: `$PROJECT` is the
clone of this project, `$ENVIRONMENT` the folder of an interpreter, `$HOME` a home, `$TMPDIR` is /tmp. Another folder is
`$FOLDER_` with the beginning of the digest of its path, and several folders of one kind have such a digest too: equal
paths stay equal, and different paths stay different. Folders that every Linux has, such as /usr, are not replaced. The
digests have a salt that stays in the store: without it, a list of names would tell which name has which digest.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote

from pipeline.base.domain.layout import DATABASE, SCRIPT_PREFIX, STORE_LOCK, UNCOMMITTED
from pipeline.base.system import locks
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.record.group_record import GroupRecord, map_texts
from pipeline.record.store.local_store import BUSY_TIMEOUT_S, find_foreign_root

PROJECT, ENVIRONMENT, WORKING_FOLDER = "$PROJECT", "$ENVIRONMENT", "$WORKING_FOLDER"
HOME, TMPDIR, FOLDER = "$HOME", "$TMPDIR", "$FOLDER"
_SYSTEM = frozenset(("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "usr", "var"))
_SITE = (
    *("afs", "data", "gpfs", "lustre", "media", "mnt", "net", "nfs"),
    *("projects", "scratch", "srv", "storage", "work", "workspace"),
)
"""Top folders of sites and users, which are replaced even if no record has them."""

_VERSION_OF_API = re.compile(r"v\d")
"""Begin of the path of a URL, as in /v1/completions, which is no folder."""

_NAME = r"[\w.+@%~-]+"
_BEFORE = r"(?:(?<![\w.~/$}>-])|(?<=://)|(?<=:///)|(?<=[\s'\"=,]-[A-Z])|(?<=^-[A-Z])|(?<=[\s\d&>]>)|(?<=^>))"
"""Paths begin after these characters: not within another path or a word, but within a URI, after `-I` and `2>`."""
_ENCODED = re.compile(rf"(?:%2F(?:(?!%2F){_NAME})?)+", re.IGNORECASE)
_PLACES = {
    "user": r"~|\b(?i:user|user_?name|logname|login|owner)\b[\"']?[ \t]*[:=][ \t]*[\"']?|[ \t](?:-l|--user)[ \t=]",
    "host": r"(?<=[\w-])@|\b(?i:host|host_?name|node|nodelist)\b[\"']?[ \t]*[:=][ \t]*[\"']?",
}
"""Texts before a user, and before a host that is also a word."""
_PATH = re.compile(rf"{_BEFORE}(/{_NAME}(?:/{_NAME})+)")


class PortablePaths:
    """The replacements for the runs of one experiment."""

    def __init__(self, groups: Iterable[GroupRecord], salt: str = "") -> None:
        """Find the folders, users and hosts in the records of groups."""
        self._salt = salt
        self._roots: dict[str, set[str]] = defaultdict(set)
        self._names: dict[str, dict[str, str]] = {"host": {}, "user": {}}  # spellings and complete names
        self._known: dict[str, str] = {}
        texts: dict[str, None] = {}

        def collect(text: str) -> str:
            if "/" in text:
                texts[text] = None
            return text

        for group in groups:
            for run in (group, *group.jobs):
                self._read_facts(group.facts | run.facts, run.params.get("script", ""))
            map_texts(group, collect)
        self.read_text("\n".join(texts))

    def _read_facts(self, facts: Mapping[str, str], script: str) -> None:
        is_ours = script.startswith("workloads/")
        for kind, folder in (
            (PROJECT, facts.get("program_repository", "") if is_ours else ""),
            (WORKING_FOLDER, facts.get("working_folder", "")),
            *(
                (ENVIRONMENT, str(PurePosixPath(python).parent.parent))
                for name, python in facts.items()
                if re.fullmatch(r"environment_\w+_python", name)
            ),
        ):
            if folder.startswith("/") and not _is_of_system(folder) and folder not in ("/", "/root", "/tmp"):  # noqa: S108
                self._roots[kind].add(folder)
        for kind, names in self._names.items():
            name = facts.get(kind, "")
            if name and not re.fullmatch(r"(user|host)-[0-9a-f]{6}", name):
                names |= {name.partition(".")[0] if kind == "host" else name: name, name: name}

    def read_text(self, text: str) -> None:
        """Find the folders of users and the top folders in a text whose paths all belong to the machine."""
        for path in set(_PATH.findall(text)):
            parts = path.split("/")
            if parts[1] in ("home", "Users"):
                self._roots[HOME].add("/".join(parts[:3]))
            elif parts[1] not in (*_SYSTEM, "root", "tmp") and not _VERSION_OF_API.fullmatch(parts[1]):
                users = [number for number, part in enumerate(parts) if part in self._names["user"] and number > 1]
                self._roots[FOLDER].add("/".join(parts[: users[0] + 1 if users else 2]))
        self.__dict__.pop("_pattern", None)

    @functools.cached_property
    def _pattern(self) -> re.Pattern[str]:
        self._known = {"/tmp": TMPDIR}  # noqa: S108  a name in texts
        self._roots[HOME] |= {"/root"} if "root" in self._names["user"] else set()
        for kind in (FOLDER, HOME, ENVIRONMENT, WORKING_FOLDER, PROJECT):  # the last name of a folder holds
            for root in self._roots[kind]:
                is_single = kind != FOLDER and len(self._roots[kind]) == 1
                self._known[root] = kind if is_single else f"{kind}_{self._digest(root)}"
        spellings = {spelling: name for root, name in self._known.items() for spelling in _spell(root)}
        self._known |= spellings
        roots = sorted(spellings, key=lambda root: (-len(root), root))
        unknown = [rf"/(?:home|Users)/{_NAME}", *(f"/{name}(?=/[a-zA-Z_.])" for name in _SITE), "/root(?=/[a-zA-Z_.])"]
        alternatives = "|".join([*map(re.escape, roots), *unknown])
        return re.compile(rf"{_BEFORE}(?P<root>{alternatives})(?![\w-]|\.\w)(?P<rest>(?:/{_NAME})*)")

    def mask(self, text: str) -> str:
        """Replace the paths and hosts in a text."""
        text = _ENCODED.sub(lambda match: quote(self.mask(unquote(match[0])), safe="$"), text) if "%2" in text else text
        text = self._pattern.sub(self._replace, text) if "/" in text else text
        for kind, names in self._names.items():
            for name in sorted(names, key=len, reverse=True):
                if name in text:
                    # A user or a short host may be a word, which is replaced only where it is a name.
                    is_word = kind == "user" or len(name) < 5 or name.isalpha()
                    place, at = (_PLACES[kind], "(?=@[A-Za-z])") if is_word else (r"(?<![\w.-])", "(?!)")
                    spelled = rf"(?P<before>{place}){re.escape(name)}(?![\w-])|(?<![\w.-]){re.escape(name)}{at}"
                    text = re.sub(spelled, rf"\g<before>{kind}-{self._digest(names[name])}", text)
        return text

    def mask_code(self, text: str) -> str:
        """Replace, in code, the folders that the records name; a path such as /tmp/x belongs to the program."""

        def replace(match: re.Match[str]) -> str:
            is_named = match["root"].count("/") > 1 and match["root"] in self._known
            return self._replace(match) if is_named else match[0]

        return self._pattern.sub(replace, text)

    def mask_artifact(self, name: str, text: str) -> str:
        """Replace the paths and hosts in an artifact of a run."""
        return self.mask_code(text) if name == UNCOMMITTED or name.startswith(SCRIPT_PREFIX) else self.mask(text)

    def mask_record(self, group: GroupRecord) -> GroupRecord:
        """Replace the paths, users and hosts in the record of a group."""
        masked = map_texts(group, self.mask)
        names = {}
        for kind in ("user", "host"):
            if (name := self._names[kind].get(group.facts.get(kind, ""))) is not None:
                names[kind] = f"{kind}-{self._digest(name)}"
        host = self._names["host"].get(group.host)
        return dataclasses.replace(
            masked,
            facts=masked.facts | names,
            uri=None,
            host=group.host if host is None else f"host-{self._digest(host)}",
            machine_id="",
        )

    def mask_user(self, user: str) -> str:
        """Replace the name of a user."""
        return f"user-{self._digest(user)}" if user in self._names["user"] else user

    def _replace(self, match: re.Match[str]) -> str:
        root, subpath = match["root"], match["rest"]
        name = (
            self._known.get(root)
            or f"{HOME if root.count('/') > 1 or root == '/root' else FOLDER}_{self._digest(root)}"
        )
        parts = [self.mask_user(part) if part != "root" else part for part in subpath.split("/")]
        return name + "/".join(parts)

    def _digest(self, text: str) -> str:
        return hashlib.sha256(f"{self._salt}{text}".encode("utf-8", "surrogateescape")).hexdigest()[:6]


def expand(text: str) -> str:
    """Replace the names of folders that every machine has by those of this machine."""
    places = {PROJECT: str(PROJECT_DIR), HOME: str(Path.home()), TMPDIR: os.environ.get("TMPDIR", "/tmp")}  # noqa: S108
    return re.sub(r"\$(?:PROJECT|HOME|TMPDIR)\b", lambda match: places[match[0]], text)


def _is_of_system(path: str) -> bool:
    return path.split("/")[1] in _SYSTEM


def _spell(root: str) -> set[str]:
    """Return a folder as it is written in text, JSON and URIs."""
    return {root, json.dumps(root)[1:-1], quote(root)}


_PATH_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("trace_tags", "value"),
    ("workspaces", "default_artifact_root"),
    ("workspaces", "trace_archival_location"),
)
"""Columns with absolute artifact paths, which MLflow does not change. Columns that a store lacks are skipped."""


def relocate(root: Path, old_root: Path | None = None) -> dict[str, int]:
    """Rewrite the artifact paths of a moved store; return the number of rewritten rows by `table.column`.

    By default, the former folder is read from the database.

    Raises:
        ConfigError: `root` contains no store.
        TrackingError: the database cannot be rewritten, or contains paths of several former folders.
    """
    root = root.absolute()
    database = root / DATABASE
    if not database.exists():
        raise ConfigError(
            f"{root} contains no tracking store: {DATABASE} is missing; specify the folder of a study with --root"
        )
    try:
        with (
            locks.hold_lock(root / STORE_LOCK),
            closing(sqlite3.connect(database, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as connection,
        ):
            connection.execute("BEGIN IMMEDIATE")
            old = old_root.absolute() if old_root else _find_old_root(connection, root)
            counts = {} if old is None or old == root else _move_paths(connection, old, root)
            other_roots = _find_old_roots(connection, root)
            connection.execute("COMMIT")
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(
            f"could not relocate the tracking store in {root}: {error}; check its permissions"
        ) from error
    if not counts and other_roots:
        raise TrackingError(
            f"no artifact path begins with {old}; choose another folder for --from: {', '.join(map(str, other_roots))}"
        )
    return counts


def _find_old_roots(connection: sqlite3.Connection, root: Path) -> list[Path]:
    rows = connection.execute("SELECT artifact_location FROM experiments")
    locations = [location for (location,) in rows if location]
    return sorted({old for location in locations if (old := find_foreign_root(location, root)) is not None})


def _find_old_root(connection: sqlite3.Connection, root: Path) -> Path | None:
    roots = _find_old_roots(connection, root)
    if len(roots) > 1:
        places = ", ".join(map(str, roots))
        raise TrackingError(
            f"the store in {root} contains paths of several former folders ({places}); run this command once for each "
            "folder, with --from=FOLDER"
        )
    return roots[0] if roots else None


def _move_paths(connection: sqlite3.Connection, old: Path, new: Path) -> dict[str, int]:
    """Move artifact paths from below one folder to below another; return the number of rows by `table.column`."""
    counts: dict[str, int] = {}
    for table, column in _PATH_COLUMNS:
        if column not in {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}:
            continue
        for before, after in ((f"{old.as_uri()}/", f"{new.as_uri()}/"), (f"{old}/", f"{new}/")):
            # Names come from the constant above; values are bound.
            statement = f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?"  # noqa: S608
            changed = connection.execute(statement, (after, len(before) + 1, len(before), before)).rowcount
            if changed:
                key = f"{table}.{column}"
                counts[key] = counts.get(key, 0) + changed
    return counts
