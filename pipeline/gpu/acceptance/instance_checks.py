"""Checks of MIG mode, profiles, GPU instances and compute instances, which need no job.

Each check reads and changes a board, notes what does not hold, and returns its readings: JSON data that is equal on
every GPU of a model with the same driver.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from pipeline.base.system.errors import SharingError
from pipeline.gpu.acceptance.mig_board import MigBoard, name_layout
from pipeline.prepare.mig import assignment, compute, division, layouts
from pipeline.prepare.mig.layouts import Placed
from pipeline.prepare.mig.mig_state import MigDevice
from pipeline.prepare.mig.profiles import MigGpu, Profile

_MEMORY_SHARE = 0.02
"""Share by which the memory of an instance may differ from that of its profile."""
_NO_PROFILE = 120
"""A number that is the id of no profile."""


def check_mode(board: MigBoard) -> dict[str, Any]:
    """Switch MIG mode off and on again, unless it was on before the acceptance."""
    state = board.control.read()
    board.expect(state.is_on and state.is_settled, "MIG mode is not on after the switch")
    board.expect(not state.instances and not state.devices, "a GPU that was switched to MIG mode has instances")
    readings: dict[str, Any] = {"found": "on" if board.was_on else "off", "on": _describe_mode(board)}
    if not board.was_on:
        readings["printed_off"] = board.switch_mode(is_on=False).status
        readings["off"] = _describe_mode(board)
        board.expect(readings["off"] == {"now": False, "pending": False}, "MIG mode cannot be switched off")
        first = board.gpu.profiles[0]
        readings["created_without_mode"] = board.attempt(first.profile_id, first.starts[0])
        readings["printed_on"] = board.switch_mode(is_on=True).status
        readings["on_again"] = _describe_mode(board)
        board.expect(readings["on_again"] == {"now": True, "pending": True}, "MIG mode cannot be switched on again")
    return readings


def _describe_mode(board: MigBoard) -> dict[str, bool]:
    state = board.control.read()
    return {"now": state.is_on, "pending": state.is_pending_on}


def check_profiles(board: MigBoard) -> dict[str, Any]:
    """Read every profile, and check that its placements and counts are possible."""
    gpu = board.gpu
    for profile in gpu.profiles:
        ends = [start + profile.memory_slices for start in profile.starts]
        board.expect(bool(ends) and max(ends) <= gpu.memory_slices, f"{profile.name} has impossible placements")
        fits = layouts.place(gpu, [profile] * profile.max_instances)
        board.expect(fits is not None, f"{profile.max_instances} instances of {profile.name} do not fit")
        board.expect(layouts.resolve(gpu, profile.name) == profile, f"{profile.name} is the name of two profiles")
    return {
        "gpu": {"compute_slices": gpu.compute_slices, "memory_slices": gpu.memory_slices, "sms": gpu.multiprocessors},
        **{
            profile.name: {
                "id": profile.profile_id,
                "compute_slices": profile.compute_slices,
                "memory_slices": profile.memory_slices,
                "starts": list(profile.starts),
                "max_instances": profile.max_instances,
                "multiprocessors": profile.multiprocessors,
                "memory_mib": profile.memory_mib,
            }
            for profile in gpu.profiles
        },
    }


def check_placements(board: MigBoard) -> dict[str, Any]:
    """Create every profile at every placement, and compare the instance with the profile."""
    readings = {}
    for profile in board.gpu.profiles:
        for start in profile.starts:
            name = f"{profile.name}@{start}"
            with board.case(name), board.make(((profile, start),)) as (device,):
                readings[name] = _read_instance(board, name, profile, device)
    return readings


def _read_instance(board: MigBoard, name: str, profile: Profile, device: MigDevice) -> dict[str, Any]:
    """Read a GPU instance that has one full compute instance, and compare it with its profile."""
    readings = board.read_devices(device.gi_id)
    board.expect(len(readings) == 1, f"{name} has {len(readings)} MIG devices")
    reading = readings[0]
    for key, planned in (
        ("profile", profile.name),
        ("compute_slices", profile.compute_slices),
        ("multiprocessors", profile.multiprocessors),
    ):
        if planned is not None and reading[key] is not None:
            board.expect(reading[key] == planned, f"{name} has {key} {reading[key]}, not {planned}")
    if profile.memory_mib:
        change = abs(reading["memory_mib"] / profile.memory_mib - 1)
        text = f"{name} has {reading['memory_mib']} MiB, not {profile.memory_mib}"
        board.expect(change <= _MEMORY_SHARE, text)
    return reading


def check_layouts(board: MigBoard) -> dict[str, Any]:
    """Create every maximal layout, and check that no further instance fits."""
    readings = {}
    for placed in layouts.list_maximal_layouts(board.gpu):
        name = name_layout(placed)
        with board.case(name), board.make(placed) as devices:
            uuids = {device.uuid for device in devices}
            board.expect(len(uuids) == len(placed), f"{name} has {len(uuids)} MIG devices with separate UUIDs")
            readings[name] = {
                "gi_ids": [device.gi_id for device in devices],
                "further": board.attempt(*_choose_further(board.gpu, placed)),
            }
    return readings


def _choose_further(gpu: MigGpu, placed: Placed) -> tuple[int, int]:
    """Choose the smallest profile and a start that is free, or else one that is taken."""
    smallest = layouts.list_slice_profiles(gpu)[0]
    taken = {slice_ for profile, start in placed for slice_ in range(start, start + profile.memory_slices)}
    free = [start for start in smallest.starts if start not in taken]
    return smallest.profile_id, (free or smallest.starts)[0]


def check_compute_instances(board: MigBoard) -> dict[str, Any]:
    """Divide a GPU instance of every size into all full sets of compute instances."""
    readings = {}
    for profile in layouts.list_slice_profiles(board.gpu):
        for parts in list_divisions(profile):
            name = f"{profile.name}({'+'.join(f'{part}c' for part in parts)})"
            with board.case(name), board.make(((profile, profile.starts[0]),), {0: parts}) as devices:
                inside = board.read_devices()
                readings[name] = inside
                widths = tuple(device.compute_slices for device in devices)
                board.expect(widths == parts, f"{name} has compute instances of the widths {widths}")
                memories = {reading["memory_mib"] for reading in inside}
                board.expect(len(memories) == 1, f"compute instances of {name} do not share its memory: {memories}")
                board.expect(len({device.uuid for device in devices}) == len(parts), f"{name} has equal UUIDs")
                board.expect(len({device.gi_id for device in devices}) == 1, f"{name} is in several GPU instances")
    return readings


def list_divisions(profile: Profile) -> Iterator[tuple[int, ...]]:
    """Yield each set of widths, wider ones first, that uses all compute slices of a GPU instance."""
    widths = compute.list_widths(profile)
    for length in range(2, profile.compute_slices + 1):
        for parts in itertools.combinations_with_replacement(sorted(widths, reverse=True), length):
            if sum(parts) == profile.compute_slices:
                yield parts


def check_placement_around(board: MigBoard) -> dict[str, Any]:
    """Keep one instance at each placement, and fill the GPU around it, largest instances first."""
    readings = {}
    pool = layouts.list_slice_profiles(board.gpu)
    for profile in pool:
        for start in profile.starts:
            name = f"{profile.name}@{start}"
            with board.case(name), board.make(((profile, start),)) as (resident,):
                readings[name] = _fill_around(board, name, resident, ((profile, start),))
    return readings


def _fill_around(board: MigBoard, name: str, resident: MigDevice, around: Placed) -> list[str]:
    """Add the largest instance that fits, then fill what is left around both; return the instances and their ids."""
    pool = layouts.list_slice_profiles(board.gpu)
    fitting = ((profile, layouts.place(board.gpu, [profile], around)) for profile in reversed(pool))
    chosen = next(((profile, layout) for profile, layout in fitting if layout is not None), None)
    board.expect(resident in board.control.read().devices, f"{name} changed while instances were created beside it")
    if chosen is None:
        return []
    profile, layout = chosen
    start = layout.instances[0].start
    with board.make_beside(profile, start) as created:
        filled = _fill_around(board, name, resident, (*around, (profile, start)))
        return [f"{profile.name}@{start} is GI {created.gi_id}", *filled]


def check_existing_layout(board: MigBoard) -> dict[str, Any]:
    """Use existing instances as `scenario.layout=existing` does, and check that a study refuses to change them."""
    placed = choose_mixed_layout(board.gpu)
    requests, uuids = [profile.name for profile, _ in placed], set[str]()
    readings: dict[str, Any] = {"layout": name_layout(placed)}
    with board.case("using instances"), board.make(placed) as devices:
        before = board.control.read()
        assigned = assignment.assign(board.divided_device, requests)
        board.expect([assignment.read_profile(d) for d in assigned] == requests, "jobs get devices of other profiles")
        board.expect(len({d.uuid for d in assigned}) == len(requests), "two jobs get the same MIG device")
        try:
            division.refuse_unready(board.device, before)
        except SharingError:
            pass
        else:
            board.expect(False, "a study would divide a GPU that has instances")
        board.expect(board.control.read() == before, "existing instances changed")
        uuids = {device.uuid for device in devices}
    with board.case("creating the same instances again"), board.make(placed) as devices:
        readings["has_same_uuids_again"] = {device.uuid for device in devices} == uuids
    return readings


def choose_mixed_layout(gpu: MigGpu) -> Placed:
    """Choose the maximal layout with the most different profiles, then with the most instances."""
    return max(layouts.list_maximal_layouts(gpu), key=lambda placed: (len({p for p, _ in placed}), len(placed)))


def check_refusals(board: MigBoard) -> dict[str, Any]:
    """Run commands that the driver has to refuse, and check that nothing changes."""
    readings: dict[str, Any] = {}
    control, gpu, pool = board.control, board.gpu, layouts.list_slice_profiles(board.gpu)
    smallest, largest = pool[0], pool[-2]
    readings["start outside"] = board.attempt(smallest.profile_id, gpu.memory_slices)
    readings["unknown profile"] = board.attempt(_NO_PROFILE, 0)
    unaligned = next((s for s in range(gpu.memory_slices) if s not in largest.starts), None)
    if unaligned is not None:
        readings[f"{largest.name} at {unaligned}"] = board.attempt(largest.profile_id, unaligned)
    readings["no such instance"] = board.run_refused(control.destruction_command(_NO_PROFILE))
    with board.case(f"refusals beside {largest.name}"), board.make(((largest, largest.starts[0]),)) as (device,):
        readings["start taken"] = board.attempt(smallest.profile_id, largest.starts[0])
        readings["compute instance in a full GPU instance"] = board.run_refused(
            control.part_creation_command(device.gi_id, compute.find_profile_id(largest, largest.compute_slices))
        )
        readings["no such compute instance"] = board.run_refused(control.destruction_command(device.gi_id, 7))
        # Last, because a driver that destroys it would change what the other commands need.
        readings["destroy with compute instance"] = board.run_refused(control.destruction_command(device.gi_id))
    for profile in (*pool, *(p for p in gpu.profiles if p.suffix == "+me")):
        layout = layouts.plan_layout(gpu, [profile] * profile.max_instances)
        placed = tuple((instance.profile, instance.start) for instance in layout.instances)
        starts = [start for _, start in placed]
        elsewhere = [start for start in profile.starts if start not in starts] or starts
        with board.case(f"one more {profile.name}"), board.make(placed):
            readings[f"one more {profile.name}"] = board.attempt(profile.profile_id, elsewhere[0])
    return readings
