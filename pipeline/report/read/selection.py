"""The rows of an experiment that a report shows.

These are the rows that the user chose, either real or simulated; of these, the comparable ones: one plan for each part
of a study, and one machine state for each block.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from pipeline.base.domain import group_names
from pipeline.base.domain.group_names import list_program_params
from pipeline.base.domain.machine_state import MachineState, merge_same
from pipeline.base.domain.records import Result
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import format_count, group_by
from pipeline.report.read.study_records import Block, Row

STUDY, DEVICE = "--study", "--device"
"""Options of the report."""

_MOST_NAMED = 8
_UNKNOWN = "not recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The studies and devices that a user chose; an empty choice includes all rows.

    Attributes:
        studies: values of the tag `collocation.study`.
        devices: names of devices, or unique parts of names; `simulated NAME` for a simulated device.
    """

    studies: Sequence[str] = ()
    devices: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.studies or self.devices)

    @property
    def words(self) -> str:
        """The options of the report that make this choice."""
        return shlex.join([*_repeat(STUDY, self.studies), *_repeat(DEVICE, self.devices)])

    def check(self, rows: Sequence[Row]) -> Choice:
        """Return the choice with full device names.

        Raises:
            ConfigError: a study or device is unknown, or real and simulated devices are mixed.
        """
        starts = group_by(rows, lambda row: row.start).values()
        newest_first = sorted(starts, key=lambda members: -max(row.start_ms for row in members))
        for study in self.studies:
            if study not in {row.start for row in rows}:
                raise ConfigError(
                    f"{STUDY} {study}: no such study; choose one of: {_list_names(map(_describe_start, newest_first))}"
                )
        selected_rows = [row for row in rows if row.start in self.studies or not self.studies]
        devices = Counter(row.device_label for row in selected_rows)
        names = tuple(_find_device(device, devices) for device in self.devices)
        if len({row.is_simulated for row in selected_rows if row.device_label in names}) > 1:
            raise ConfigError(f"{self.words} mixes real and simulated devices; write one report for each kind")
        return dataclasses.replace(self, devices=names)

    def includes(self, row: Row) -> bool:
        """Return whether this choice, after `check`, includes the study and the device of a row."""
        is_of_study = not self.studies or row.start in self.studies
        return is_of_study and (not self.devices or row.device_label in self.devices)


def separate_simulated(rows: Sequence[Row]) -> tuple[list[Row], Mapping[str, int]]:
    """Return the rows of real devices, or all rows if none is real; and the number of simulated rows left out."""
    real = [row for row in rows if not row.is_simulated]
    devices = Counter(row.device_label for row in rows if row.is_simulated) if real else Counter[str]()
    left_out = {f"{name}; {shlex.join([DEVICE, name])} shows them": number for name, number in devices.items()}
    return real or list(rows), left_out


def _repeat(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _find_device(name_or_part: str, devices: Mapping[str, int]) -> str:
    same = [name for name in devices if name.casefold() == name_or_part.casefold()]
    matches = same or [name for name in devices if name_or_part.casefold() in name.casefold()]
    if len(matches) != 1:
        problem = f"{len(matches)} devices match" if matches else "no such device"
        raise ConfigError(f"{DEVICE} {name_or_part}: {problem}; choose one of: {_list_names(matches or devices)}")
    return matches[0]


def _list_names(names: Iterable[str]) -> str:
    all_names = list(names)
    num_omitted = len(all_names) - _MOST_NAMED
    return ", ".join([*all_names[:_MOST_NAMED], *([f"and {num_omitted} more"] if num_omitted > 0 else [])]) or "none"


def _describe_start(rows: Sequence[Row]) -> str:
    """Describe one start of a study: `ID (17 groups on NVIDIA A100, 2026-11-25 17:49)`."""
    begin = datetime.fromtimestamp(min(row.start_ms for row in rows) / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    devices = " and ".join(dict.fromkeys(row.device_label for row in rows))
    return f"{rows[0].start} ({format_count(len(rows), 'group')} on {devices}, {begin})"


def choose(rows: Sequence[Row]) -> tuple[list[tuple[Block, list[Row]]], Mapping[str, int]]:
    """Choose the rows of the newest plan of each part: one row for each group and block.

    Returns:
        The blocks with their rows, and the number of rows left out, by reason.
    """
    left_out: Counter[str] = Counter()
    states = merge_same(row.machine_state for row in rows)
    # In a plan whose shards are cases, each case counts as a separate study.
    members: dict[tuple[int, str, int, str], list[Row]] = defaultdict(list)
    expected: dict[tuple[str, int, str], dict[object, set[_Run]]] = defaultdict(lambda: defaultdict(set))
    # A profiler changes the figures of the jobs that it observes.
    profilers = [row.facts["profiler"] for row in rows if row.facts.get("profiler")]
    left_out.update(f"ran under {profiler}, which changes the figures" for profiler in profilers)
    unprofiled = [row for row in rows if not row.facts.get("profiler")]
    for number, part in enumerate(parts(keep_newest_plans(unprofiled, left_out))):
        for row in reversed(part):
            device, case = row.settings[0][1], row.facts.get("case", "")
            members[row.block, device, number, case].append(row)
            expected[device, number, case][row.store].add(row.run_in_block)
    blocks: dict[tuple[int, str], dict[MachineState, _Piece]] = defaultdict(dict)
    for (block, device, number, case), part_rows in sorted(members.items()):
        in_stores = expected[device, number, case]  # stores may have different plans with some common cases
        expected_keys = set().union(*(in_stores[store] for store in {row.store for row in part_rows}))
        state, selected_rows = _choose_state(part_rows, states, expected_keys, left_out)
        # Parts in the same machine state share a block.
        piece = blocks[block, device].setdefault(state, _Piece([], set()))
        piece.rows.extend(selected_rows)
        piece.expected.update(expected_keys)
    return _number_blocks(blocks), left_out


_Settings = tuple[tuple[str, str], ...]
_Run = tuple[str, int]
"""The key of a group, and the number of its run in a block."""


class _Piece(NamedTuple):
    rows: list[Row]
    expected: set[_Run]


def _number_blocks(blocks: Mapping[tuple[int, str], Mapping[MachineState, _Piece]]) -> list[tuple[Block, list[Row]]]:
    """Make a block of each machine state of a block.

    The first machine state keeps the block's number; the others get new numbers.
    """
    pieces = [
        (place, number, device, state, piece)
        for (number, device), by_state in blocks.items()
        for place, (state, piece) in enumerate(by_state.items())
    ]
    last = max((number for number, _ in blocks), default=0)
    numbered = []
    for place, number, device, state, piece in sorted(pieces, key=lambda candidate: candidate[:3]):
        last += place > 0
        block = Block(
            number=last if place else number,
            device=device,
            machine_state=state,
            num_groups=len(piece.rows),
            num_expected=len(piece.expected),
            num_missing=len(piece.expected - {row.run_in_block for row in piece.rows if row.result.is_finding}),
        )
        numbered.append((block, [dataclasses.replace(row, block=block.number) for row in piece.rows]))
    return sorted(numbered, key=lambda candidate: (candidate[0].number, candidate[0].device))


def parts(rows: Sequence[Row]) -> list[list[Row]]:
    """Split rows into parts.

    Two rows are in the same part if they have the same plan, or the same program with equal settings. The oldest part
    comes first; the newest row of a part comes last.
    """
    groups: list[tuple[set[object], list[Row]]] = []
    for row in sorted(rows, key=lambda row: (row.start_ms, row.run_id)):
        its_own = {row.plan, *((_identity(job.params), row.settings) for job in row.jobs)}
        joined = [part for part in groups if part[0] & its_own] or [(set(), [])]
        groups = [*(part for part in groups if not part[0] & its_own), joined[0]]
        facts, members = joined[0]
        facts.update(its_own, *(other_facts for other_facts, _ in joined[1:]))
        members += [*(member for _, row_group in joined[1:] for member in row_group), row]
    return sorted((members for _, members in groups), key=lambda members: min(row.start_ms for row in members))


def keep_newest_plans(rows: Sequence[Row], left_out: Counter[str]) -> list[Row]:
    """Keep the rows of the newest plan of each set of programs, and their baselines.

    The plans of one study for several GPU models count as one plan.
    """
    newest_first = sorted(rows, key=lambda row: (row.start_ms, row.run_id), reverse=True)
    plans: dict[_Compared, str] = {}
    settings: dict[_Compared, set[_Settings]] = defaultdict(set)
    with_key = [(row, _comparison_key(row)) for row in newest_first]
    for row, key in with_key:
        if plans.setdefault(key, row.plan_of_any_gpu) == row.plan_of_any_gpu:
            settings[key].add(row.settings)
    current = [(row, key) for row, key in with_key if row.settings in settings[key]]
    compared = {(identity, row.plan, row.settings) for row, (identities, *_) in current for identity in identities}
    programs = _newest_programs(newest_first)
    current_rows = []
    for row, key in with_key:
        newest = settings[key]
        its_own = {(identity, row.plan, row.settings) for identity in key[0]}
        if row.settings not in newest and not (row.is_sequential and its_own <= compared):
            left_out[f"older plan: {_difference(row, newest)}"] += 1
        elif any(job.digest not in programs[_identity(job.params)] for job in row.jobs):
            left_out["older plan: a program, its options or its environment changed since"] += 1
        else:
            current_rows.append(row)
    return current_rows


_Compared = tuple[frozenset[object], str, str]


def _comparison_key(row: Row) -> _Compared:
    """Return the key by which plans are compared: programs, load on other GPUs, and co-runners.

    Of the rows with one key, `keep_newest_plans` keeps those with the settings of the newest plan.
    """
    return frozenset(_identity(job.params) for job in row.jobs), row.beside, row.co_runners


def _identity(params: Mapping[str, str]) -> tuple[object, ...]:
    return (params.get("workload"), *sorted(list_program_params(params).items()))


def _newest_programs(newest_first: Sequence[Row]) -> dict[tuple[object, ...], set[str]]:
    """Return the digests in the newest plan, by workload and options; several if the plan compares environments."""
    programs: dict[tuple[object, ...], set[str]] = {}
    plans: dict[tuple[object, ...], str] = {}
    for row in newest_first:
        for job in row.jobs:
            identity = _identity(job.params)
            if plans.setdefault(identity, row.plan) == row.plan:
                programs.setdefault(identity, set()).add(job.digest)
    return programs


def _difference(row: Row, newest: set[_Settings]) -> str:
    nearest = min(sorted(newest), key=lambda settings: len(set(row.settings) - set(settings)))
    newest_settings = dict(nearest)
    differing = [
        (key, value or _UNKNOWN, newest_settings[key] or _UNKNOWN)
        for key, value in row.settings
        if newest_settings[key] != value
    ]
    return "; ".join(f"{key} {value} instead of {new}" for key, value, new in differing)


def _choose_state(
    members: Sequence[Row], states: Mapping[MachineState, MachineState], expected: set[_Run], left_out: Counter[str]
) -> tuple[MachineState, list[Row]]:
    """Choose the machine state in which a block is complete, else the state with the most results; return its rows."""
    by_state: dict[MachineState, dict[_Run, Row]] = defaultdict(dict)
    counting = group_names.drop_superseded(members, lambda row: (row.run_in_block, row.result))
    if num_skipped := len(members) - len(counting):
        left_out["skipped at first, run later"] += num_skipped
    for row in counting:  # newest first
        rows_by_key = by_state[states[row.machine_state]]
        newer = rows_by_key.setdefault(row.run_in_block, row)
        if newer is row:
            continue
        dropped = row
        if row.result.is_finding and not newer.result.is_finding:
            dropped, rows_by_key[row.run_in_block] = newer, row
        # Repeating an interrupted group needs no remark.
        if dropped.result is not Result.INTERRUPTED:
            left_out["run again: the newest result counts"] += 1

    def rank(state: MachineState) -> tuple[bool, int, int]:
        rows = by_state[state].values()
        findings = {row.run_in_block for row in rows if row.result.is_finding}
        return (findings >= expected, len(findings), max(row.start_ms for row in rows))

    best = max(sorted(by_state), key=rank)
    for state, rows in by_state.items():
        if state != best:
            left_out[f"different {best.difference(state)} than the rest of its block"] += len(rows)
    return best, list(by_state[best].values())
