"""A simulated GPU for a test: its machine, and what the machine is to fail at."""

from __future__ import annotations

import dataclasses

from pipeline.simulation.state import Fault, StateFile


def set_faults(file: StateFile, *faults: Fault, of_mps: tuple[str, ...] = ()) -> None:
    """From now on these calls of the driver fail, MPS in these ways (`State.mps_faults`), and nothing else."""
    with file.changing() as cell:
        cell.state = dataclasses.replace(cell.state, faults=faults, mps_faults=of_mps)
