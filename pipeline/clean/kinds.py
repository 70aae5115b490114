"""Kinds of undo steps and their functions. A journal contains the name of a kind, never of a program."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pipeline.base.domain.driver_programs import Programs

# Packages whose functions undo kinds; imported only if a journal contains a kind that no loaded module undoes.
_PACKAGES = (
    *(f"pipeline.prepare.{name}" for name in ("device", "mig", "mps", "sharing")),
    "pipeline.launch.profilers",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKind:
    """A kind of step; `undoes` explains the attributes."""

    undo: Callable[..., None]
    words: str
    ends_processes: bool

    def takes(self, arguments: dict[str, Any]) -> bool:
        """Return whether the function accepts these arguments; another version may have written other arguments."""
        try:
            inspect.signature(self.undo).bind(Programs(), **arguments)
        except TypeError:
            return False
        return True


_KINDS: dict[str, StepKind] = {}
_F = TypeVar("_F", bound=Callable[..., None])


def undoes(kind: str, words: str, *, ends_processes: bool = False) -> Callable[[_F], _F]:
    """Register a function that undoes the steps of a kind.

    The function is called with the device's programs, and with the step's arguments by name, without `boot`, and not
    after another boot. Repeated calls must be safe, and an object that no longer exists is no error. The function
    raises a CollocationError if something is left.

    Args:
        kind: name of the kind in journals; it must never change, because later versions must undo existing steps.
        words: description of the function's effect, with arguments in braces.
        ends_processes: whether the function only ends processes, which may exist after the device is gone.
    """

    def take(function: _F) -> _F:
        assert kind not in _KINDS, f"two functions undo {kind}"
        _KINDS[kind] = StepKind(undo=function, words=words, ends_processes=ends_processes)
        return function

    return take


def find_kind(kind: str) -> StepKind | None:
    """Find the kind with this name; `None` if this version does not have it."""
    if kind not in _KINDS:
        for package in map(importlib.import_module, _PACKAGES):
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                importlib.import_module(module.name)
    return _KINDS.get(kind)
