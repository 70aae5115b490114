"""The runs of a workload alone in its other step modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.base.domain.sharing_modes import SERIAL
from pipeline.report.evaluate.cells import Case, Cell
from pipeline.report.evaluate.quantities import merge_steady_windows
from pipeline.report.read import labels


class SoloMode(NamedTuple):
    """A step mode in words, and the cell of one job alone in it."""

    step_mode: str
    cell: Cell


def find_serial(case: Case, cells: Sequence[Cell]) -> Cell | None:
    """Return the cell of one job of a case alone; `None` if it did not run."""
    return next((cell for cell in cells if (cell.case, cell.degree, cell.sharing) == (case, 1, SERIAL)), None)


def list_other_modes(case: Case, cells: Sequence[Cell]) -> list[SoloMode]:
    """Return the runs alone of the workload of a case in other step modes, with equal settings or in a steady window.

    If a step mode was measured in several windows, that of the case is chosen.
    """
    serial = find_serial(case, cells)
    if serial is None or labels.STEP_MODE not in case.params[0]:
        return []
    program, settings = labels.identify_program(case.params[0]), merge_steady_windows(serial.settings, serial.window)
    by_step_mode: dict[str, Cell] = {}
    for cell in cells:
        if (cell.degree, cell.sharing) != (1, SERIAL):
            continue
        step_mode, is_same = cell.case.params[0].get(labels.STEP_MODE, ""), cell.settings == serial.settings
        is_alike = labels.identify_program(cell.case.params[0]) == program
        is_alike = is_alike and merge_steady_windows(cell.settings, cell.window) == settings
        is_other = step_mode != case.params[0][labels.STEP_MODE]
        if is_alike and is_other and (is_same or step_mode not in by_step_mode):
            by_step_mode[step_mode] = cell
    return [SoloMode(labels.value_in_words(labels.STEP_MODE, mode), cell) for mode, cell in by_step_mode.items()]
