"""The option declaration of a workload: one dataclass, from which everything else is derived.

Its file imports neither torch nor any other slow module: the orchestrator loads it to check a study before anything
starts, and the program, maybe in another interpreter, to read its command line. A field is a key of the configuration,
a flag of the program (`batch_size` and `--batch-size`), a recorded param, and a row of `--help-keys`.
docs/your_own_workload.md shows an example.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from typing import Any

PLACE, CONTENT = "place", "content"
"""Kinds of paths: `PLACE` is a location on the machine, `CONTENT` determines what is computed."""


@dataclass(frozen=True)
class Device:
    """The device that options are checked for.

    Attributes:
        was_chosen: whether the user chose it; false if it was detected.
        compute_capability: of an NVIDIA GPU, if known.
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
        default: the default value; without one, the YAML or the user must give a value.
        help: its meaning, as Markdown.
        least: the smallest allowed value.
        choices: the allowed values, if its type is not an enumeration.
        path: `PLACE` or `CONTENT` if it names a file or folder; the program gets it as an absolute path.
        braces: a placeholder that the program fills in itself, such as `{port}`.
        is_flag: whether the program gets it; false if only the study uses it.
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
