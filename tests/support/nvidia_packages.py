"""Real programs of NVIDIA's driver, unpacked from packages of Debian and Ubuntu; nothing is installed.

apt-get runs with sources, lists and packages in a temporary folder, so that the machine's own stay as they are. The
programs are kept in the user's cache folder (`$XDG_CACHE_HOME/gpu-collocation/nvidia`); delete it to get newer ones.
`python -m tests.support.nvidia_packages` downloads them, because tests use no network; without them, tests are skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DATA
from tests.support.programs import write_script

CONTROL, SERVER = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"
_LIMIT_S = 30
_DEBIAN_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_UBUNTU_KEY = DATA / "mps_control/ubuntu_archive_key_2018.asc"
_STAND_IN = Path(__file__).with_name("idle_libcuda.c")
_NEEDS_LIBCUDA = 580
# apt-get reads no other file than this one: those of the machine may have programs that run after an update.
_CONFIGURATION = """
Dir::Etc::Main "/dev/null"; Dir::Etc::Parts "/dev/null"; Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null"; Dir::Etc::PreferencesParts "/dev/null";
Dir::Etc::SourceList "{folder}/sources.list"; Dir::State "{folder}"; Dir::State::Status "{folder}/status";
Dir::Cache "{folder}"; Dir::Log "{folder}"; APT::Sandbox::User ""; APT::Update::Error-Mode "any";
Acquire::Languages "none"; Acquire::Retries "0"; Acquire::http::Timeout "3"; Acquire::https::Timeout "3";
"""


class MissingProgramError(Exception):
    """The programs of a branch cannot be had on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """Suites of a distribution: the mirror of this machine, or else the public one."""

    origin: str
    mirror: str
    suites: tuple[str, ...]
    components: str
    key: Path

    def sources(self) -> str:
        mirror = _list_mirrors().get((self.origin, self.mirror.rpartition("/")[2]), self.mirror)
        return "".join(f"deb [signed-by={self.key}] {mirror} {suite} {self.components}\n" for suite in self.suites)


def _debian(name: str, *suites: str) -> Repository:
    mirror = f"http://deb.debian.org/{name}"
    return Repository(origin="Debian", mirror=mirror, suites=suites, components="non-free", key=_DEBIAN_KEYS)


_UBUNTU = Repository(
    origin="Ubuntu",
    mirror="http://archive.ubuntu.com/ubuntu",
    suites=("noble-updates",),
    components="restricted multiverse",
    key=_UBUNTU_KEY,
)
_OF_DEBIAN = ("nvidia-cuda-mps", "nvidia-smi", "libnvidia-ml1")
PACKAGES = {
    "535": (_OF_DEBIAN, (_debian("debian", "bookworm"), _debian("debian-security", "bookworm-security"))),
    "550": (_OF_DEBIAN, (_debian("debian", "trixie"),)),
    "580": (("nvidia-compute-utils-580",), (_UBUNTU,)),
    "595": (("nvidia-compute-utils-595",), (_UBUNTU,)),
    "615": (("nvidia-compute-utils-615",), (_UBUNTU,)),
}
"""Packages and repositories by branch of the driver; those of Debian also have nvidia-smi and NVML."""


def find_or_skip(branch: str) -> Path:
    """Return the folder with the programs of this branch, or skip the test."""
    folder = _cache_folder() / branch
    if not folder.exists():
        pytest.skip(f"no programs of R{branch}; download them with: python -m tests.support.nvidia_packages")
    return folder


def download_programs(branch: str) -> Path:
    """Download the programs of this branch unless the cache folder has them.

    Raises:
        MissingProgramError: apt-get, a key, the network or a compiler is missing.
    """
    folder = _cache_folder() / branch
    if not folder.exists():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as work:
                complete = _unpack(branch, Path(work))
                with suppress(OSError):  # another process was faster
                    complete.rename(folder)
        except (OSError, subprocess.SubprocessError) as error:
            lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            reason = next((line for line in lines if line.startswith("E:")), lines[-1])
            raise MissingProgramError(f"the programs of R{branch} cannot be downloaded: {reason}") from error
    return folder


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-collocation/nvidia"


def write_server(folder: Path) -> None:
    """Write the program of `mps_server`, which a control program finds through `PATH`, as its server."""
    write_script(folder / SERVER, f'exec {sys.executable} -S "{Path(__file__).with_name("mps_server.py")}"')


def environ_of(branch: str, programs: Path, *, server_in: Path | None = None) -> dict[str, str]:
    """Return the variables with which a control program finds its server, and a libcuda if it needs one.

    The server is that of the package or, if there is `server_in`, the one that `write_server` wrote to this folder.
    """
    libcuda = {"LD_LIBRARY_PATH": str(programs)} if int(branch) >= _NEEDS_LIBCUDA else {}
    zeros = "2" if branch == "595" else "1"  # as many as its control program waits for
    return {"PATH": f"{server_in or programs}:{os.environ['PATH']}", "MPS_SERVER_ZEROS": zeros, **libcuda}


def _unpack(branch: str, work: Path) -> Path:
    """Download the packages into this folder; return the subfolder with the programs alone."""
    names, repositories = PACKAGES[branch]
    (work / "sources.list").write_text("".join(repository.sources() for repository in repositories))
    (work / "status").touch()
    (work / "apt.conf").write_text(f"{_list_proxies()}{_CONFIGURATION.format(folder=work)}")
    environ = os.environ | {"APT_CONFIG": str(work / "apt.conf"), "LC_ALL": "C"}
    _run(["apt-get", "-qq", "update"], env=environ, cwd=work)
    _run(["apt-get", "-qq", "download", *names], env=environ, cwd=work)
    for package in work.glob("*.deb"):
        _run(["dpkg-deb", "--extract", str(package), str(work / "files")])
    complete = work / "complete"
    complete.mkdir()
    for path in (path for path in work.glob("files/**/*") if path.is_file() and not path.is_symlink()):
        if path.name in (CONTROL, SERVER, "nvidia-smi") and os.access(path, os.X_OK):
            shutil.copy(path, complete)
        elif path.name.startswith("libnvidia-ml.so."):
            shutil.copy(path, complete / "libnvidia-ml.so.1")
    if int(branch) >= _NEEDS_LIBCUDA:
        _run(["cc", "-shared", "-fPIC", "-o", str(complete / "libcuda.so.1"), str(_STAND_IN)])
    return complete


def _run(words: list[str], **options: Any) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=_LIMIT_S, **options)
    return done.stdout


@cache
def _list_mirrors() -> dict[tuple[str, str], str]:
    """Return the mirrors in the machine's own sources, by distribution and name of the archive."""
    lines = _run(["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)", "Created-By: Packages"]).splitlines()
    rows = (line.split() for line in lines)
    return {(row[0], row[1].rstrip("/").rpartition("/")[2]): row[1] for row in rows if len(row) == 2}


@cache
def _list_proxies() -> str:
    lines = _run(["apt-config", "dump"]).splitlines(keepends=True)
    return "".join(line for line in lines if re.match(r"Acquire::https?::.*Proxy", line, re.IGNORECASE))


def _main() -> None:
    for branch in PACKAGES:
        try:
            print(f"R{branch}: {download_programs(branch)}")
        except MissingProgramError as error:
            print(error)


if __name__ == "__main__":
    _main()
