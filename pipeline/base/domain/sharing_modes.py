"""Sharing modes: their names in plans and reports, and how they are drawn.

A mode that is not in the table needs no entry: it is called by its name in the configuration, every option that is
given tells its groups apart, and it is drawn in a colour that no other mode of the study has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Literal

PROFILE, PERCENTAGE, PARTITION = "mig_profile", "mps_active_thread_percentage", "mps_multiprocessors"
"""What the place of a job says of a MIG device, under a limit of MPS, and in a static partition of MPS."""

PlannedAs = Literal["mig", "mps", "naive"]
"""How a plan says that a GPU is shared."""


@dataclass(frozen=True, slots=True)
class SharingMode:
    """One way of sharing a device.

    Attributes:
        name: in the configuration.
        label: of its kind in figures and tables, whatever the options of a group are.
        word: how the label of a group begins; what the group got or was asked for follows.
        colour, dark_colour: of its bars and lines, on light and on dark ground.
        marker: of its lines, as matplotlib has it.
        placement_fact: fact of a placement that the label needs (`PROFILE`, `PERCENTAGE`, `PARTITION`), or none
        counts_instances: whether the label says how many instances there are.
        default_text: what the label says where neither places nor options do.
        label_option: an option of which the label says the value alone; empty for none.
        unnamed_options: options that tell no groups apart: the label says it already.
        planned_as: how a plan says that a GPU is shared; `None` for a mode of which no plan is made.
    """

    name: str
    label: str
    word: str
    colour: str
    dark_colour: str
    marker: str = "o"
    _: KW_ONLY
    placement_fact: str = ""
    counts_instances: bool = False
    default_text: str = ""
    label_option: str = ""
    unnamed_options: tuple[str, ...] = ()
    planned_as: PlannedAs | None = None

    @property
    def order(self) -> tuple[int, str]:
        """Its place in legends and tables: in the order of the table, those that are not in it last."""
        names = list(MODES)
        return (names.index(self.name) if self.name in MODES else len(names), self.name)

    def naming(self, options: Iterable[tuple[str, object]]) -> list[tuple[str, object]]:
        """Select the options that tell groups apart: neither places of programs, nor what the label says."""
        return [(key, value) for key, value in options if key not in self.unnamed_options and not is_program(key)]


def is_program(option: str) -> bool:
    """Tell whether an option names the place of a program, which is no fact of a group."""
    return option == "program" or option.endswith("_program")


# Paul Tol's "high-contrast" scheme and, for the rarer modes, the lighter colours of his "medium-contrast" and the teal
# of "muted".
SERIAL = SharingMode("serial", "serial", "serial", "#cfcfcb", "#6c6c70", planned_as="naive")
NAIVE = SharingMode("naive", "naive", "naive", "#ddaa33", "#e3b341", planned_as="naive")
TIMESLICE = SharingMode("timeslice", "time slice", "time slice", "#eecc66", "#f0d688", "<", label_option="timeslice")
MPS = SharingMode("mps", "MPS", "MPS", "#004488", "#4f8fd6", "s", planned_as="mps")
MPS_PERCENT = SharingMode(
    "mps_percent",
    "MPS %",
    "MPS",
    "#6699cc",
    "#9cc3ee",
    "D",
    placement_fact=PERCENTAGE,
    default_text="equal shares",
    planned_as="mps",
)
MPS_STATIC = SharingMode(
    "mps_static",
    "MPS static",
    "MPS static",
    "#44aa99",
    "#6fc7b9",
    "p",
    placement_fact=PARTITION,
    default_text="equal parts",
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
)
MIG_MPS = SharingMode(
    "mig_mps",
    "MIG+MPS",
    "MIG+MPS",
    "#ee99aa",
    "#f0aab8",
    "v",
    placement_fact=PROFILE,
    counts_instances=True,
    unnamed_options=("num_instances",),
    planned_as="mig",
)
MODES: Mapping[str, SharingMode] = {
    mode.name: mode for mode in (SERIAL, NAIVE, TIMESLICE, MPS, MPS_PERCENT, MPS_STATIC, MIG, MIG_MPS)
}
"""By name in the configuration; in the order of legends and tables."""

SPARE_COLOURS = (("#997700", "#c9a227"), ("#228833", "#5dc26e"), ("#aa3377", "#d671ad"))
"""Light and dark, for modes that are not in the table."""

_SPARE_MARKERS = ("P", "X", "*")


def mode_of(name: str) -> SharingMode:
    """Return the mode with that name in the configuration, whether the table has it or not."""
    return modes_of([name])[name]


def modes_of(names: Iterable[str]) -> dict[str, SharingMode]:
    """Return every mode of the table and every one named; the latter get spare colours."""
    unknown = sorted(set(names) - MODES.keys())
    spare = list(zip(SPARE_COLOURS, _SPARE_MARKERS, strict=True))
    modes = dict(MODES)
    for number, name in enumerate(unknown):
        colours, marker = spare[number % len(spare)]
        modes[name] = SharingMode(name, name, name, *colours, marker)
    return modes
