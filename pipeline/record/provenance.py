"""Provenance of a row: the machine, software, source and command line that are needed to run it again."""

from __future__ import annotations

import difflib
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain.records import Interpreter
from pipeline.base.domain.workload import Workload
from pipeline.base.system import git, host_info
from pipeline.base.system.errors import CommandError
from pipeline.base.system.factory import Spec
from pipeline.base.system.host_info import boot_id
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.base.system.secrets import mask_diff
from pipeline.base.system.words import escape_to_utf8
from pipeline.record.invocation import Invocation

_MOST_BYTES = 1 << 20  # limit of an artifact that is stored with every group


def collect(interpreters: Mapping[Spec, Interpreter], invocation: Invocation) -> dict[str, str]:
    """Collect the facts that are the same for all groups of a study, by name; unknown facts are absent."""
    facts = {
        "command_line": invocation.masked_command,
        "user": host_info.user_name(),
        "working_folder": str(Path.cwd()),
        "host": platform.node(),
        "slurm_task": invocation.slurm_task,
        "kernel": platform.release(),
        "cpus": str(len(os.sched_getaffinity(0))),
        **host_info.describe_machine(),
        "boot_id": boot_id(),
        "python": platform.python_version(),
        **_read_git(),
    }
    for number, interpreter in enumerate(interpreters.values()):
        facts[f"environment_{number}_digest"] = interpreter.lock_digest
        facts[f"environment_{number}_python"] = str(interpreter.python)
    return {key: value for key, value in facts.items() if value}


def _read_git() -> dict[str, str]:
    """Return the commit of this project's clone, and whether files differ from the commit."""
    is_clone = (PROJECT_DIR / "pyproject.toml").is_file()  # an installed package may be inside a user's repository
    repository = git.read(PROJECT_DIR) if is_clone else None
    if repository is None:
        return {}
    return {"git_commit": repository.commit, "git_changed": str(repository.is_changed).lower()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Origin of a program's code.

    Attributes:
        repository: repository of the script; `None` if the script is in no repository.
        uncommitted: diffs of code that is in no commit: changes of the repository, and untracked files of the program.
    """

    repository: git.Repository | None
    uncommitted: tuple[str, ...]

    @property
    def facts(self) -> dict[str, str]:
        """The facts of the record: commit and folder of the repository, and whether the commit lacks code."""
        if self.repository is None:
            return {}
        return {
            "program_commit": self.repository.commit,
            "program_repository": str(self.repository.root),
            "program_changed": str(bool(self.uncommitted)).lower(),
        }


def find_origin(workload: Workload) -> Origin:
    """Find the origin of a program's code.

    Without a repository, `uncommitted` contains the program's modules but not its script, which is an artifact.
    """
    script = Path(workload.script)
    repository = git.read(script)
    root = script.parent if repository is None else repository.root
    # A link may point to private files elsewhere.
    paths = map(Path, sorted({source.path for source in workload.sources}))
    files = [path for path in paths if path.resolve().is_relative_to(root.resolve())]
    if repository is None:
        return Origin(
            repository=None,
            uncommitted=tuple(mask_diff(_format_new_file(path, root)) for path in files if path != script),
        )
    try:
        parts = [_format_new_file(path, root) for path in git.list_untracked(repository, files)]
        if repository.is_changed:
            changes = git.read_difference(repository)
            replaced = "# bytes that are not UTF-8 are replaced by \ufffd\n" if "\ufffd" in changes else ""
            parts.insert(0, f"# {root} at {repository.commit}\n{replaced}{changes}")
    except CommandError as error:
        parts = [f"# the changes of {root} cannot be read: {error}\n"]
    return Origin(repository=repository, uncommitted=tuple(map(mask_diff, parts)))


def join_uncommitted(origins: Iterable[Origin]) -> str:
    """Join the uncommitted code of several programs in the format of `git apply`; cut it, with a note, if too long."""
    text = escape_to_utf8("".join(dict.fromkeys(part for origin in origins for part in origin.uncommitted)))
    if (size := len(text.encode())) <= _MOST_BYTES:
        return text
    beginning = text.encode()[:_MOST_BYTES].decode(errors="ignore")
    return f"{beginning}\n# cut: the first {_MOST_BYTES} of {size} bytes\n"


def _format_new_file(path: Path, root: Path) -> str:
    name = path.relative_to(root)
    begin = f"diff --git a/{name} b/{name}\nnew file mode 100644\n"
    try:
        *lines, last_line = path.read_bytes().decode().split("\n")  # git recognises no other line ending
    except (OSError, UnicodeDecodeError):
        return f"{begin}Binary files /dev/null and b/{name} differ\n"
    lines = [f"{line}\n" for line in lines]
    if last_line:
        lines.append(f"{last_line}\n\\ No newline at end of file\n")
    return begin + "".join(difflib.unified_diff([], lines, "/dev/null", f"b/{name}"))
