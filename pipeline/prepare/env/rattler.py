"""Program that solves and installs conda packages with py-rattler in a separate process.

A separate process is needed because the library's threads must not run during a measurement, and because a build must
end if its process is killed. The task is read as JSON from stdin: channels, specs, prefix and cache. Instead of specs,
the task may have packages (`url`, `sha256`, `md5`), which are installed without a solve. The program is started by its
path and imports no other module of this project.
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
    """Run the task; print an error of the library on stderr."""
    from rattler import exceptions

    task = json.load(sys.stdin)
    classes = [member for member in vars(exceptions).values() if isinstance(member, type)]
    expected_errors: tuple[type[Exception], ...] = (
        OSError,
        ValueError,
        *(c for c in classes if issubclass(c, Exception)),
    )
    try:
        asyncio.run(_build(task))
    except expected_errors as error:
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
        # The library checks the digests of downloads, but not of local files.
        if record.url.startswith("file://"):
            digest = hashlib.new(name, Path(unquote(urlsplit(record.url).path)).read_bytes()).hexdigest()
            if digest != package[name]:
                raise ValueError(f"{record.url} has the {name} {digest}, but the lock records {package[name]}")


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # `os._exit` avoids a crash of py-rattler 0.28, which happens in about one of thirty ordinary exits.
    os._exit(status)
