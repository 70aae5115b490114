"""The declaration of a workload's options: one dataclass.

Each field is a key of the configuration, a flag of the program (`batch_size` and `--batch-size`), a recorded param, and
a row of `--help-keys`. The file with the class must not import torch or another slow module: the orchestrator loads
this file to check a study before it starts, and the program, possibly in another interpreter, loads it to parse the
command line. docs/your_own_workload.md shows an example.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from typing import Any

PLACE, CONTENT = "place", "content"
"""Kinds of paths: `PLACE` is only a location on the machine; the files of a `CONTENT` path affect the results."""


@dataclass(frozen=True)
class Device:
    """The device for which options are checked.

    Attributes:
        was_chosen: whether the user chose the device; false if it was detected.
        compute_capability: compute capability of an NVIDIA GPU; `None` if unknown.
    """

    name: str
    is_gpu: bool
    is_simulated: bool = False
    was_chosen: bool = True
    compute_capability: tuple[int, int] | None = None


def option(
    default: Any = MISSING,
    *,
    help: str,
    least: int | None = None,
    choices: tuple[object, ...] = (),
    path: str = "",
    braces: str = "",
    is_flag: bool = True,
) -> Any:
    """Return a field of an option class.

    Args:
        default: default value; without a default, the YAML file or the user must set the option.
        help: meaning of the option, as Markdown.
        least: smallest allowed value.
        choices: allowed values of an option whose type is not an enumeration.
        path: `PLACE` or `CONTENT` if the option is a file or folder; the program gets an absolute path.
        braces: placeholders that the program replaces itself, such as `{port}`, separated by blanks.
        is_flag: whether the option is a flag of the program; false if only the study uses the option.
    """
    metadata = {
        "help": help,
        "least": least,
        "choices": choices,
        "path": path,
        "braces": braces,
        "is_flag": is_flag,
    }
    if isinstance(default, dict | list):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def refuse_missing_gpu(device: Device, setting: str) -> None:
    """Raise `ValueError` if a setting, as `KEY=VALUE`, needs a GPU and the device is none or is simulated."""
    if device.is_simulated or not device.is_gpu:
        place, remedy = device.name, "gpu=simulated_h100_80gb dry_run=true"
        if device.is_simulated:
            place, remedy = f"a simulated {device.name}", "dry_run=true"
        raise ValueError(
            f"{setting} needs a GPU, but the job would run on {place}; use {remedy} to print the plan, or "
            "+rehearse=tiny to rehearse an experiment"
        )
