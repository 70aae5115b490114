"""Solves and installs conda packages with py-rattler, as a program of its own.

A process of its own, because the library's threads must not stay beside the measurement, and because a build ends with
its process. It reads its task as JSON from stdin: channels, specs, prefix and cache; instead of specs there may be
packages (`url`, `sha256`, `md5`), which are installed as they are. It is started by its path and imports nothing of
ours.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


def main() -> int:
    """Do the task; what cannot be done is said on stderr, in the library's words."""
    from rattler import exceptions

    task = json.load(sys.stdin)
    classes = [member for member in vars(exceptions).values() if isinstance(member, type)]
    known: tuple[type[Exception], ...] = (OSError, ValueError, *(c for c in classes if issubclass(c, Exception)))
    try:
        asyncio.run(_build(task))
    except known as error:
        sys.stderr.write(f"{str(error).strip()}\n")
        return 1
    return 0


async def _build(task: dict[str, Any]) -> None:
    from rattler import Channel, Gateway, MatchSpec, Subdir, VirtualPackage, VirtualPackageOverrides, install, solve

    cache = Path(task["cache"])
    packages = task["packages"]
    records = await solve(
        [Channel(channel) for channel in task["channels"]],
        [MatchSpec(spec) for spec in task["specs"] or [package["url"] for package in packages]],
        gateway=Gateway(cache_dir=cache / "repodata"),
        platforms=[str(Subdir.current()), "noarch"],
        virtual_packages=VirtualPackage.detect(VirtualPackageOverrides.from_env()),
    )
    digests = {package["url"]: package for package in packages}
    for record in records:
        if record.url in digests:
            _pin(record, digests[record.url])
    await install(records, task["prefix"], cache_dir=cache / "pkgs", show_progress=False)


def _pin(record: Any, package: dict[str, str]) -> None:
    for name in ("sha256", "md5"):
        if name not in package:
            continue
        setattr(record, name, bytes.fromhex(package[name]))
        # The library checks what it downloads, and does not look at the digest of a file on this machine.
        if record.url.startswith("file://"):
            digest = hashlib.new(name, Path(unquote(urlsplit(record.url).path)).read_bytes()).hexdigest()
            if digest != package[name]:
                raise ValueError(f"{record.url} has the {name} {digest}, not {package[name]} as recorded")


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # py-rattler 0.28 crashes in about one of thirty ordinary exits, when its work is done.
    os._exit(status)
