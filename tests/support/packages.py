"""Generated packages, with which tests build environments without a network: a conda channel and Python wheels.

The channel's package `python` contains a link to the interpreter that runs the tests, and a `pyvenv.cfg`. The result is
a real prefix with separate packages and the standard library of that interpreter.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # builds of packages import this module where the project is not
    from pipeline.base.domain.records import Interpreter

VERSION = "{}.{}.{}".format(*sys.version_info[:3])
SHORT = "{}.{}".format(*sys.version_info[:2])
SUBDIR = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}[platform.machine()]
# All files have the same time, so that the bytes of a package do not depend on the time of its creation.
_MTIME = 1_700_000_000


class Link(str):
    """The target of a symbolic link."""


class Channel:
    """A conda channel in a folder; its index is rewritten whenever a package is added."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._index: dict[str, dict[str, dict[str, object]]] = {"noarch": {}, SUBDIR: {}}
        base = Path(sys.executable).resolve()
        config = f"home = {base.parent}\ninclude-system-site-packages = false\nversion = {VERSION}\n"
        files = {
            "bin/python": Link(base),
            "bin/python3": Link("python"),
            f"bin/python{SHORT}": Link("python"),
            "pyvenv.cfg": config,
        }
        self.add("python", VERSION, files, subdir=SUBDIR)

    @property
    def url(self) -> str:
        return self.root.as_uri()

    def add_module(self, name: str, version: str, depends: Iterable[str] = ()) -> None:
        """Add a Python package with one module, whose `VERSION` is the package's version."""
        files = {
            f"site-packages/{name}.py": f"VERSION = {version!r}\n",
            f"site-packages/{name}-{version}.dist-info/METADATA": _metadata(name, version),
        }
        self.add(name, version, files, noarch="python", depends=["python", *depends])

    def add(
        self,
        name: str,
        version: str,
        files: Mapping[str, str | Link],
        *,
        subdir: str = "noarch",
        noarch: str | None = None,
        depends: Iterable[str] = (),
    ) -> Path:
        facts: dict[str, object] = {
            "name": name,
            "version": version,
            "build": "0",
            "build_number": 0,
            "depends": list(depends),
            "subdir": subdir,
            "timestamp": _MTIME * 1000,
        }
        if subdir == "noarch":
            facts["noarch"] = noarch or "generic"
        else:
            facts |= {"arch": platform.machine(), "platform": "linux"}
        content = {"info/index.json": json.dumps(facts), "info/about.json": "{}", **files}
        content["info/files"] = "".join(f"{path}\n" for path in files)
        content["info/paths.json"] = json.dumps({"paths_version": 1, "paths": [_path(p, b) for p, b in files.items()]})
        if noarch == "python":
            content["info/link.json"] = json.dumps({"noarch": {"type": "python"}, "package_metadata_version": 1})
        archive = self.root / subdir / f"{name}-{version}-0.tar.bz2"
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive, "w:bz2") as tar:
            for path, body in content.items():
                member = tarfile.TarInfo(path)
                member.mtime = _MTIME
                if isinstance(body, Link):
                    member.type, member.linkname = tarfile.SYMTYPE, str(body)
                    tar.addfile(member)
                else:
                    member.size, member.mode = len(body.encode()), 0o755 if path.startswith("bin/") else 0o644
                    tar.addfile(member, io.BytesIO(body.encode()))
        data = archive.read_bytes()
        self._index[subdir][archive.name] = facts | {
            "size": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "md5": hashlib.md5(data).hexdigest(),
        }
        for channel, packages in self._index.items():
            (self.root / channel).mkdir(exist_ok=True)
            repodata = {"info": {"subdir": channel}, "packages": packages, "packages.conda": {}, "repodata_version": 1}
            (self.root / channel / "repodata.json").write_text(json.dumps(repodata))
        return archive

    def environment_yml(self, file: Path, *specs: str, pip: Iterable[str] = (), extra: str = "") -> Path:
        lines = ["channels:", f"  - {self.url}", "dependencies:", *(f"  - {spec}" for spec in ("python", *specs))]
        if pip:
            lines += ["  - pip:", *(f"    - {line}" for line in pip)]
        file.write_text("\n".join(lines) + "\n" + extra)
        return file


def wheel(folder: Path, name: str, version: str, requires: Iterable[str] = ()) -> Path:
    """Create a wheel with one module, whose `VERSION` is the wheel's version."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": _metadata(name, version)
        + "".join(f"Requires-Dist: {requirement}\n" for requirement in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{path},sha256={_url_digest(body)},{len(body)}" for path, body in files.items()]
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name_, body in {**files, f"{info}/RECORD": "\n".join([*record, f"{info}/RECORD,,"]) + "\n"}.items():
            archive.writestr(zipfile.ZipInfo(name_), body)
    return path


def project(folder: Path, name: str) -> Path:
    """Create a folder that can be installed without further packages for the build."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "{name}"\nversion = "1.0"\nrequires-python = ">=3.8"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (folder / "backend.py").write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom pathlib import Path\n"
        "from packages import wheel\n"
        f"def build_wheel(folder, *_):\n    return wheel(Path(folder), {name!r}, '1.0').name\n"
        "build_editable = build_wheel\n"
    )
    return folder


def run_python(interpreter: Interpreter, program: str, **environ: str) -> str:
    """Return what a program prints in an environment, with the variables that a job would get."""
    variables = os.environ | environ | dict(interpreter.environ)
    argv = [interpreter.python, "-c", program]
    done = subprocess.run(argv, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _metadata(name: str, version: str) -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


def _path(path: str, body: str) -> dict[str, object]:
    kind, data = ("softlink", b"") if isinstance(body, Link) else ("hardlink", body.encode())
    digest = hashlib.sha256(data).hexdigest()
    return {"_path": path, "path_type": kind, "sha256": digest, "size_in_bytes": len(data)}


def _url_digest(body: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(body.encode()).digest()).rstrip(b"=").decode()
