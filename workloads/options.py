"""How a workload states its options: once, as a dataclass, from which everything else follows.

The class stands in a file that imports neither torch nor anything else that is slow: the orchestrator loads it to check
a study before anything starts, and the program, maybe in another interpreter, to read its command line. A field is a
key of the configuration and a flag of the program (`batch_size` and `--batch-size`), a recorded param, and a row of
`--help-keys`. docs/your_own_workload.md goes through an example.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from typing import Any

PLACE, CONTENT = "place", "content"
"""Kinds of paths: one says where things lie on a machine, the other decides what is computed."""


@dataclass(frozen=True)
class Device:
    """The device that options are checked for.

    Attributes:
        was_chosen: the user named it; false where it is what happens to be there.
        compute_capability: of an NVIDIA GPU, where it is known.
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
        default: its value if not given; without one, the YAML or the user must give it.
        help: its meaning, as Markdown.
        least: the smallest value that it takes.
        choices: the values that it takes, where its type is no enumeration.
        path: `PLACE` or `CONTENT` if it names a file or folder; the program gets it as an absolute path.
        braces: a word in braces that the program fills in itself, such as `{port}`.
        is_flag: the program gets it; false if it is for the study alone.
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
