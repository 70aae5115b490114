"""Writer of experiment files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.base.system import entry_points, override_values
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.base.system.user_command import escape_interpolations

NAME = re.compile(r"[A-Za-z]\w*")
"""Pattern of valid names of experiments, and of programs in mixes."""

Value = int | float | str | tuple[str, ...] | tuple[int, ...] | tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program: a choice of `conf/workload` with overrides of its options; `name` is its preferred name in mixes."""

    workload: str
    values: tuple[tuple[str, Value], ...] = ()
    name: str = ""

    @property
    def label(self) -> str:
        """Name of the program in mixes, unless another program already has this name."""
        values = dict(self.values)
        stem = Path(str(values["script"])).stem if "script" in values else self.workload
        default = f"{stem}_bs{values['batch_size']}" if "batch_size" in values else stem
        return re.sub(r"\W", "_", self.name or default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """An experiment of another tool, converted to an experiment file.

    Attributes:
        text: text of the experiment file.
        num_read: number of jobs that were read.
        unit: name of a job's source: row or file.
        refused: jobs that could not be imported, with reasons.
        notes: settings that are not kept.
    """

    text: str
    num_read: int
    unit: str
    refused: Sequence[str]
    notes: Sequence[str]

    @property
    def num_groups(self) -> int:
        return len(yaml.safe_load(self.text)["blocks"])


def assign_name(program: Program, sizes: dict[Program, str]) -> str:
    """Return the unique name of a program in mixes, and add it to `sizes`."""
    if program not in sizes:
        label = program.label if NAME.fullmatch(program.label) else f"job_{program.label}"
        numbered = (f"{label}_{number}" for number in range(2, len(sizes) + 3))
        sizes[program] = next(name for name in (label, *numbered) if name not in sizes.values())
    return sizes[program]


def override_value(value: Value) -> int | float | str:
    """Write a value in Hydra's grammar, with text quoted where needed."""
    return value if isinstance(value, int | float) else override_values.format_override(value)


def format_file(
    blocks: Sequence[Mapping[str, Any]],
    sizes: Mapping[Program, str],
    *,
    head: str,
    defaults: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
) -> str:
    """Return the text of an experiment file; `head` is its first comment, `sizes` has the programs of mixes."""
    content: dict[str, Any] = {
        "defaults": [
            *({f"/workload@sizes.{size}": program.workload} for program, size in sizes.items()),
            *defaults,
            "_self_",
        ],
        "hydra": {"mode": "MULTIRUN"},
        "blocks": list(blocks),
        **settings,
    }
    if sizes:
        content["sizes"] = {size: {k: _yaml(v) for k, v in p.values} for p, size in sizes.items() if p.values}
    dumped = yaml.safe_dump(content, sort_keys=False, width=1000, allow_unicode=True)
    return f"# @package _global_\n# {head}\n{dumped}"


def write(text: str, name: str, folder: Path | None, *, replace: bool) -> str:
    """Write `FOLDER/experiment/NAME.yaml`; return the command that runs the experiment.

    The default folder is `conf` in the clone or, with the command `collocate`, in the working folder.

    Raises:
        ConfigError: the file already exists and `replace` is not set, or the file cannot be written.
    """
    if folder is None and entry_points.is_by_command():
        folder = Path("conf")
    path = (folder or PROJECT_DIR / "conf") / "experiment" / f"{name}.yaml"
    if path.exists() and not replace:
        raise ConfigError(f"{path} already exists; choose another --name, or replace it with --force")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error}; choose another folder with --out") from error
    option = ["--config-dir", str(folder.resolve())] if folder else []
    return f"run it: {entry_points.spell('run', *option, f'+experiment={name}')}"


def _yaml(value: Value) -> Any:
    if isinstance(value, tuple):
        return [_Quoted(escape_interpolations(element)) if isinstance(element, str) else element for element in value]
    return _Quoted(escape_interpolations(value)) if isinstance(value, str) else value


class _Quoted(str):
    """Text that is written in quotes, because OmegaConf reads an unquoted `1e-3` as a number, unlike PyYAML."""

    __slots__ = ()


def _represent_quoted(dumper: yaml.SafeDumper, text: _Quoted) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style='"')


yaml.SafeDumper.add_representer(_Quoted, _represent_quoted)
