"""Kinds of undo steps and their functions: a journal names a kind, never a program. Knows no GPU."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pipeline.base.domain.driver_programs import Programs

# Where functions take kinds; imported only when a journal holds a kind that nothing loaded has taken.
_PACKAGES = (
    *(f"pipeline.prepare.{name}" for name in ("device", "mig", "mps", "sharing")),
    "pipeline.launch.profilers",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKind:
    """A kind of step; see `undoes`."""

    undo: Callable[..., None]
    words: str
    ends_processes: bool

    def takes(self, arguments: dict[str, Any]) -> bool:
        """Return whether the function has these arguments; another version may have written others."""
        try:
            inspect.signature(self.undo).bind(Programs(), **arguments)
        except TypeError:
            return False
        return True


_KINDS: dict[str, StepKind] = {}
_F = TypeVar("_F", bound=Callable[..., None])


def undoes(kind: str, words: str, *, ends_processes: bool = False) -> Callable[[_F], _F]:
    """Let a function undo the steps of a kind.

    It is called with the device's programs, and by name with the arguments of the step. It is safe to repeat, is
    content with what is gone already, and raises a CollocationError when something is left.

    Args:
        kind: the word for it in journals, for ever: later versions must undo what this one left.
        words: what it does; arguments stand in braces.
        ends_processes: whether it only ends processes, which are there also when the device is not any more.
    """

    def take(function: _F) -> _F:
        assert kind not in _KINDS, f"two functions undo {kind}"
        _KINDS[kind] = StepKind(undo=function, words=words, ends_processes=ends_processes)
        return function

    return take


def find_kind(kind: str) -> StepKind | None:
    """Find the kind of this name; `None` if this version does not know it."""
    if kind not in _KINDS:
        for package in map(importlib.import_module, _PACKAGES):
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                importlib.import_module(module.name)
    return _KINDS.get(kind)
