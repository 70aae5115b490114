"""Sharing modes: their names in plans and reports, and their style in figures.

A user's own mode needs no entry in the table. It is shown under its name in the configuration, with all its options, in
one of three spare colours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Literal

PROFILE, PERCENTAGE, PARTITION = "mig_profile", "mps_active_thread_percentage", "mps_multiprocessors"
"""Facts of a placement: MIG device, active thread percentage, MPS static partition."""

PlannedAs = Literal["mig", "mps", "naive"]
"""The names of sharing modes in a deployment plan."""


@dataclass(frozen=True, slots=True)
class SharingMode:
    """One sharing mode.

    Attributes:
        name: name of the mode in the configuration.
        label: name of the mode in figures and tables, regardless of a group's options.
        word: first word of a group's label, which is followed by the group's shares or options.
        colour, dark_colour: colours of the mode's bars and lines, on a light and on a dark background.
        marker, hatch: marker of the mode's lines and hatch of its bars, as in matplotlib, which distinguish modes in
            grey print.
        description: what the mode does, for reports; empty if a report leaves it out.
        placement_fact: fact of a placement that the label shows (`PROFILE`, `PERCENTAGE`, `PARTITION`); empty for none.
        counts_instances: whether the label has the number of instances.
        default_text: text of the label if it shows neither a placement nor an option.
        label_option: an option whose value the label shows without its name; empty for none.
        unnamed_options: options that the label already shows, and that therefore do not distinguish groups.
        planned_as: name of the mode in a deployment plan; `None` for a mode that the planner does not use.
        gives_up: isolation of the jobs that every other mode has, and why this mode lacks it; empty if it has it.
    """

    name: str
    label: str
    word: str
    colour: str
    dark_colour: str
    marker: str = "o"
    _: KW_ONLY
    hatch: str = ""
    description: str = ""
    placement_fact: str = ""
    counts_instances: bool = False
    default_text: str = ""
    label_option: str = ""
    unnamed_options: tuple[str, ...] = ()
    planned_as: PlannedAs | None = None
    gives_up: str = ""

    @property
    def adds_memory(self) -> bool:
        """Check that jobs need the sum of their memory alone: not on parts of a GPU, nor with one context for all."""
        return self.placement_fact != PROFILE and not self.gives_up

    @property
    def order(self) -> tuple[int, str]:
        """Sort key for legends and tables: in the order of `MODES`, other modes last."""
        names = list(MODES)
        return (names.index(self.name) if self.name in MODES else len(names), self.name)

    def naming(self, options: Iterable[tuple[str, object]]) -> list[tuple[str, object]]:
        """Return the options that distinguish groups: all but program paths and the options shown in the label."""
        return [(key, value) for key, value in options if key not in self.unnamed_options and not is_program(key)]


def is_program(option: str) -> bool:
    """Return whether an option is a program path; such paths do not distinguish groups."""
    return option == "program" or option.endswith("_program")


# Paul Tol's "high-contrast" scheme; for rarer modes, lighter "medium-contrast" colours and the teal of "muted".
SERIAL = SharingMode(
    "serial",
    "serial",
    "serial",
    "#cfcfcb",
    "#6c6c70",
    ">",
    planned_as="naive",
    description="one job after another, alone on the GPU",
)
NAIVE = SharingMode(
    "naive",
    "naive",
    "naive",
    "#ddaa33",
    "#e3b341",
    planned_as="naive",
    description="each job is a process, and the driver lets one of them compute at a time (time slices)",
)
TIMESLICE = SharingMode(
    "timeslice",
    "time slice",
    "time slice",
    "#eecc66",
    "#f0d688",
    "<",
    hatch="||||",
    label_option="timeslice",
    description="naive, with a chosen length of the time slices",
)
MPS = SharingMode(
    "mps",
    "MPS",
    "MPS",
    "#004488",
    "#4f8fd6",
    "s",
    planned_as="mps",
    description="each job is a process, and NVIDIA's Multi-Process Service (MPS) lets them compute at the same time",
)
MPS_PERCENT = SharingMode(
    "mps_percent",
    "MPS %",
    "MPS",
    "#6699cc",
    "#9cc3ee",
    "D",
    hatch="\\\\\\\\",
    placement_fact=PERCENTAGE,
    default_text="equal shares",
    planned_as="mps",
    description="MPS with a limit for each job, in per cent of the multiprocessors (active thread percentage)",
)
MPS_STATIC = SharingMode(
    "mps_static",
    "MPS static",
    "MPS static",
    "#44aa99",
    "#6fc7b9",
    "p",
    hatch="----",
    placement_fact=PARTITION,
    default_text="equal parts",
    description="MPS with multiprocessors of its own for each job, in chunks (static partitions)",
)
MIG = SharingMode(
    "mig",
    "MIG",
    "MIG",
    "#bb5566",
    "#d4707f",
    "^",
    placement_fact=PROFILE,
    unnamed_options=("size_profile",),
    planned_as="mig",
    description="each job on a GPU instance with multiprocessors and memory of its own (Multi-Instance GPU)",
)
MIG_MPS = SharingMode(
    "mig_mps",
    "MIG+MPS",
    "MIG+MPS",
    "#ee99aa",
    "#f0aab8",
    "v",
    hatch="xxxx",
    placement_fact=PROFILE,
    counts_instances=True,
    unnamed_options=("num_instances",),
    planned_as="mig",
    description="MIG, with several jobs on an instance under MPS",
)
_ONE_PROCESS = "isolation of memory and faults, because all jobs run in one process of one user"
STREAMS = SharingMode(
    "streams",
    "streams",
    "streams",
    "#332288",
    "#9d8ff0",
    "h",
    hatch="....",
    gives_up=_ONE_PROCESS,
    description="all jobs in one process, each with a CUDA stream",
)
GREEN = SharingMode(
    "green",
    "green contexts",
    "green",
    "#117733",
    "#58c77e",
    "8",
    hatch="**",
    gives_up=_ONE_PROCESS,
    description="all jobs in one process, each with multiprocessors of its own (CUDA green contexts)",
)
MODES: Mapping[str, SharingMode] = {
    mode.name: mode for mode in (SERIAL, NAIVE, TIMESLICE, MPS, MPS_PERCENT, MPS_STATIC, MIG, MIG_MPS, STREAMS, GREEN)
}
"""The modes by name in the configuration, in the order of legends and tables."""

SPARE_COLOURS = (("#997700", "#c9a227"), ("#228833", "#5dc26e"), ("#aa3377", "#d671ad"))
"""Light and dark colours for modes that are not in the table."""

PROFILE_COLOURS: Mapping[int, tuple[str, str]] = {
    1: ("#f2a0a5", "#97506e"),
    2: ("#e06478", "#c05f86"),
    3: ("#b93a72", "#de7f9f"),
    4: ("#7a1f6e", "#f1a9b1"),
    7: ("#3b0f4c", "#ffd8d2"),
}
"""Light and dark colours of lines on MIG instances, by compute slices: in grey, more slices have more contrast."""

_SPARE_MARKERS = ("P", "X", "*")
_SPARE_HATCHES = ("++++", "oooo", "****")


def mode_of(name: str) -> SharingMode:
    """Return the mode with this name in the configuration, even if the table does not have it."""
    return modes_of([name])[name]


def modes_of(names: Iterable[str]) -> dict[str, SharingMode]:
    """Return all modes of the table and the modes with these names; modes outside the table get spare colours."""
    unknown = sorted(set(names) - MODES.keys())
    spare = list(zip(SPARE_COLOURS, _SPARE_MARKERS, _SPARE_HATCHES, strict=True))
    modes = dict(MODES)
    for number, name in enumerate(unknown):
        colours, marker, hatch = spare[number % len(spare)]
        modes[name] = SharingMode(name, name, name, *colours, marker, hatch=hatch)
    return modes
