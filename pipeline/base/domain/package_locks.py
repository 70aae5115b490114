"""Locks of environments: their packages, and the differences between two locks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

_MAX_PACKAGES = 8
_PYTHON = "# python: "
_FOLDER = "# from a local folder: "
_SECOND = "# second version, shadowed by the first: "
_COMPUTING = re.compile(
    "torch|nvidia|cuda|cupy|triton|jax|flax|optax|tensor|keras|paddle|onnx|numpy|scipy|numba|llvm|mkl|blas|opencv|pillow|"
    "dali|timm|transformers|token|diffusers|accelerate|peft|deepspeed|lightning|flash|xformers|bitsandbytes|apex|vllm|sglang"
)
"""Frameworks, libraries of the GPU and of linear algebra, and readers of images; no lock tells what a job imports."""
_LOCAL = re.compile(r"(?P<begin>(?:# pip )?(?P<name>[\w.-]+)) @ (?:\w+\+)?file:(?P<path>[^#\s]*?/?)(?P<rest>[@#]\S*)?")
_LOCAL_OPTION = re.compile(r"-.*(?:file:|[\s=]/)\S*")


def compare_locks(before: Iterable[str], after: Iterable[str]) -> str:
    """Return the packages that differ between two locks, as one line; empty if none differ."""
    return compare_packages(parse_lock(before), parse_lock(after))


def compare_packages(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Return the packages that differ between two maps by name, as one line; empty if none differ."""
    changes = []
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            changes.append(f"without {old[name]}")
        elif name not in old:
            changes.append(f"with {new[name]}")
        elif old[name] != new[name]:
            changes.append(f"{old[name]} now {new[name]}")
    num_unlisted = len(changes) - _MAX_PACKAGES
    words = "; ".join([*changes[:_MAX_PACKAGES], *([f"and {num_unlisted} more"] if num_unlisted > 0 else [])])
    return f"packages: {words}" if changes else ""


def select_computing(packages: Mapping[str, str]) -> dict[str, str]:
    """Return the packages, by name, that change the speed or the results of jobs, and Python without its patch."""
    computing = {name: line for name, line in packages.items() if _COMPUTING.search(name)}
    return computing | {"python": ".".join(packages.get("python", "").split(".")[:2])}


def parse_lock(lock: Iterable[str]) -> dict[str, str]:
    """Return Python and the packages of a lock by name, each as `name==version`, `name @ URL` or a conda file."""
    packages = {}
    # In the lock of a conda environment, packages installed by pip are in comments.
    lines = (_make_line_portable(line.strip()).removeprefix("# pip ").removeprefix(_FOLDER) for line in lock)
    for line in filter(None, lines):
        if line.startswith(_PYTHON):
            packages["python"] = f"Python {line.removeprefix(_PYTHON)}"
        elif line.startswith(("#", "@", "-")):
            continue
        elif "://" in line and " @ " not in line:
            text = line.rsplit("/", 1)[1].partition("#")[0]
            packages[text.rsplit("-", 2)[0]] = text
        else:
            packages.setdefault(_read_name(line), line)  # a lock may list a package that another one shadows
    return packages


def make_portable(lock: str) -> str:
    """Return a lock that can be installed elsewhere: packages from local files are named by their versions.

    Packages from folders, second versions of a package, and options that name local paths remain as comments. A comment
    lists the packages from local files.
    """
    lines, local, names, portable = lock.splitlines(), list[str](), set[str](), list[str]()
    for line in lines:
        new = _make_line_portable(line)
        is_requirement = "==" in new and not new.startswith(("#", "-", "@"))
        if is_requirement and new != line:
            local.append(_read_name(new))
        portable.append(f"{_SECOND}{new}" if is_requirement and _read_name(new) in names else new)
        names |= {_read_name(new)} if is_requirement else set()
    if lines == portable:
        return lock
    note = [f"# installed from local files when it was recorded: {', '.join(local)}"] if local else []
    header = 3 if lines[0].startswith("# environment lock") else 0
    return "\n".join([*portable[:header], *note, *portable[header:]]) + "\n"


def normalize_name(name: str) -> str:
    """Return the name by which installers know a package, however it is spelled (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _read_name(line: str) -> str:
    return normalize_name(line.replace(" @ ", "==").partition("==")[0])


def _make_line_portable(line: str) -> str:
    """Return a line of a lock without a local path: `name==version` for an archive, else a comment."""
    if _LOCAL_OPTION.fullmatch(line):
        return f"# left out, local: {line}"
    match = _LOCAL.fullmatch(line)
    if match is None:
        return line
    name = re.sub(r"[-_.]+", "[-_.]+", match["name"])
    file = unquote(match["path"]).rpartition("/")[2]
    if version := re.fullmatch(rf"{name}-([^-]+)(?:-.*)?\.(?:whl|zip|tar\.\w+)", file, re.IGNORECASE):
        return f"{match['begin']}=={version[1]}"
    return f"{_FOLDER}{match['name']} @ folder{match['rest'] or ''}"
