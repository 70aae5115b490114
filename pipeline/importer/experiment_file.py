"""The writer of experiment files: groups as blocks of `blocks`, and the programs that mixes name."""

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
"""What an experiment, and a program in a mix, can be called."""

Value = int | float | str | tuple[str, ...] | tuple[int, ...] | tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program as a choice of `conf/workload` and what differs from it.

    Attributes:
        name: what mixes call it if nothing else has the name; made from the rest if empty.
    """

    workload: str
    values: tuple[tuple[str, Value], ...] = ()
    name: str = ""

    @property
    def label(self) -> str:
        """The name that a mix gives it, if nothing else has that name."""
        values = dict(self.values)
        stem = Path(str(values["script"])).stem if "script" in values else self.workload
        default = f"{stem}_bs{values['batch_size']}" if "batch_size" in values else stem
        return re.sub(r"\W", "_", self.name or default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The experiment of another tool as a file of this project.

    Attributes:
        text: of the experiment file.
        num_read: jobs that the tool's files have.
        unit: what each of them is there: a row, a file.
        refused: of the jobs that could not be taken, which it is and why.
        notes: what of the others is not kept.
    """

    text: str
    num_read: int
    unit: str
    refused: Sequence[str]
    notes: Sequence[str]

    @property
    def num_groups(self) -> int:
        return len(yaml.safe_load(self.text)["blocks"])


def size_of(program: Program, sizes: dict[Program, str]) -> str:
    """Return the name of a program in mixes, which no other program has; `sizes` holds the names."""
    if program not in sizes:
        label = program.label if NAME.fullmatch(program.label) else f"job_{program.label}"
        numbered = (f"{label}_{number}" for number in range(2, len(sizes) + 3))
        sizes[program] = next(name for name in (label, *numbered) if name not in sizes.values())
    return sizes[program]


def override_value(value: Value) -> int | float | str:
    """Write a value in Hydra's grammar so that it means exactly itself."""
    return value if isinstance(value, int | float) else override_values.format_override(value)


def text_of(
    blocks: Sequence[Mapping[str, Any]],
    sizes: Mapping[Program, str],
    *,
    head: str,
    defaults: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
) -> str:
    """Return the text of an experiment file.

    Args:
        blocks: of `blocks`.
        sizes: the programs that their mixes name.
        head: what the file says of itself, in one line.
        defaults: choices of other groups than workloads.
        settings: keys of the configuration with their values.
    """
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
    """Write `FOLDER/experiment/NAME.yaml`; return the command that runs it.

    Without a folder it goes to `conf` of the clone or, with `collocate`, of the working folder.

    Raises:
        ConfigError: it is there and is not to be replaced, or cannot be written.
    """
    if folder is None and entry_points.is_by_command():
        folder = Path("conf")
    path = (folder or PROJECT_DIR / "conf") / "experiment" / f"{name}.yaml"
    if path.exists() and not replace:
        raise ConfigError(f"{path} exists; give another --name, or --force to replace it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error
    option = ["--config-dir", str(folder.resolve())] if folder else []
    return f"run it: {entry_points.spell('run', *option, f'+experiment={name}')}"


def _yaml(value: Value) -> Any:
    if isinstance(value, tuple):
        return [_Quoted(escape_interpolations(element)) if isinstance(element, str) else element for element in value]
    return _Quoted(escape_interpolations(value)) if isinstance(value, str) else value


class _Quoted(str):
    """Text that is written in quotes: OmegaConf reads `1e-3` as a number, which PyYAML takes for text."""

    __slots__ = ()


def _represent_quoted(dumper: yaml.SafeDumper, text: _Quoted) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style='"')


yaml.SafeDumper.add_representer(_Quoted, _represent_quoted)
