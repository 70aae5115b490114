"""Compute instances, and the GPU instances that a list of requested compute instances needs.

The compute instances of a GPU instance share its memory: a `1c.3g.40gb` has one of the three compute slices of a
3g.40gb. In a list of requests, consecutive compute instances of one profile fill a GPU instance; the first one without
room begins the next GPU instance. This module touches no hardware, and `layouts` places the GPU instances.
Source of the widths: `mig_table.ci_profiles`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.base.domain import mig_table
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import format_count
from pipeline.prepare.mig import layouts
from pipeline.prepare.mig.layouts import Instance, Layout
from pipeline.prepare.mig.profiles import MigGpu, Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Share of one job: a GPU instance of a profile, or `slices` of its compute slices; `None` for all of them."""

    profile: Profile
    slices: int | None = None

    @property
    def name(self) -> str:
        return mig_table.name_device(self.profile.name, self.slices)


def list_widths(profile: Profile) -> tuple[int, ...]:
    """List the possible widths of a compute instance that is smaller than its GPU instance, in rising order."""
    return tuple(row.compute_slices for row in mig_table.ci_profiles(profile.compute_slices)[:-1])


def find_profile_id(profile: Profile, slices: int) -> int:
    """Find the profile id with which nvidia-smi creates a compute instance of a width."""
    return next(p.id for p in mig_table.ci_profiles(profile.compute_slices) if p.compute_slices == slices)


def order_for_creation(parts: Sequence[int]) -> list[int]:
    """Order the compute instances of a GPU instance for creation: even widths first, then wider ones first.

    The driver chooses their positions by an undocumented rule. In this order, all compute instances whose sum fits find
    room, whether the driver takes the first free slice or aligns a compute instance to its width.
    """
    return sorted(range(len(parts)), key=lambda position: (parts[position] % 2, -parts[position]))


def resolve(gpu: MigGpu, request: str) -> Share:
    """Resolve a profile of a GPU instance (`3g`, `3g.40gb`) or of a compute instance (`1c.3g`, `1c.3g.40gb`).

    Raises:
        ConfigError: the GPU has no such profile; the message lists the possible profiles.
    """
    of_instance, slices = mig_table.split_name(request.strip().lower())
    if slices is None:
        return Share(profile=layouts.resolve(gpu, request))
    try:
        profile = layouts.resolve(gpu, of_instance)
    except ConfigError as error:
        plain = layouts.list_plain_profiles(gpu)
        alike = [row for row in plain if of_instance.startswith(f"{row.compute_slices}g.")]
        near = ", ".join(mig_table.name_device(row.name, slices) for row in alike if slices in list_widths(row))
        raise ConfigError(f"{error}{f'; nearest to {request}: {near}' if near else ''}") from error
    if slices not in list_widths(profile):
        choices = ", ".join(
            [*(mig_table.name_device(profile.name, width) for width in list_widths(profile)), profile.name]
        )
        raise ConfigError(
            f"{gpu.name} has no compute instance '{request}': a {profile.name} has "
            f"{format_count(profile.compute_slices, 'compute slice')}; choose among {choices}"
        )
    return Share(profile=profile, slices=slices)


def choose(gpu: MigGpu, requests: Sequence[str | None]) -> tuple[Share, ...]:
    """Choose the share of each job for the requests of `layouts.list_requests`; ConfigError if none fits."""
    if None in requests:
        return (Share(profile=layouts.choose_auto_profile(gpu, len(requests))),) * len(requests)
    return tuple(resolve(gpu, str(request)) for request in requests)


def plan_layout(gpu: MigGpu, shares: Sequence[Share]) -> Layout:
    """Place the GPU instances for the shares, one share per job, on an empty GPU.

    The jobs use, in their order, the compute instances of the first GPU instance, then of the second, and so on.

    Raises:
        ConfigError: the GPU instances do not fit; the message gives the reason and the nearest layouts that fit.
    """
    divided = _fill_instances(shares)
    profiles = [profile for profile, _ in divided]
    if all(share.slices is None for share in shares):
        return layouts.plan_layout(gpu, profiles)
    layout = layouts.place(gpu, profiles)
    if layout is None:
        request = ",".join(share.name for share in shares)
        into = ", ".join(str(_make_instance(*pair)) for pair in divided)
        near = " or ".join(f"[{','.join(names)}]" for names in _find_nearest(gpu, divided))
        raise ConfigError(
            f"[{request}] needs the GPU instances {into}, which do not fit on {gpu.name}: "
            f"{layouts.explain_illegal(gpu, profiles)}; use {near}"
        )
    return Layout(
        instances=tuple(
            dataclasses.replace(instance, parts=parts)
            for instance, (_, parts) in zip(layout.instances, divided, strict=True)
        )
    )


def count_idle_slices(gpu: MigGpu, layout: Layout) -> int:
    """Count the compute slices of the GPU that no MIG device of a layout uses."""
    return gpu.compute_slices - sum(
        sum(instance.parts) or instance.profile.compute_slices for instance in layout.instances
    )


_Divided = tuple[Profile, tuple[int, ...]]
"""Profile of a GPU instance and widths of its compute instances; no widths for a single full compute instance."""


def _fill_instances(shares: Sequence[Share]) -> list[_Divided]:
    divided: list[_Divided] = []
    for share in shares:
        slices = () if share.slices is None else (share.slices,)
        last, parts = divided[-1] if divided else (None, ())
        if parts and slices and last == share.profile and sum(parts + slices) <= share.profile.compute_slices:
            divided[-1] = (share.profile, parts + slices)
        else:
            divided.append((share.profile, slices))
    return divided


def _make_instance(profile: Profile, parts: tuple[int, ...]) -> Instance:
    return Instance(job=0, profile=profile, start=0, parts=parts)


def _find_nearest(gpu: MigGpu, divided: Sequence[_Divided], limit: int = 3) -> list[tuple[str, ...]]:
    """Find legal layouts most similar to a request, as device names, nearest number of devices first."""
    legal = layouts.find_nearest_by_job(gpu, [profile for profile, _ in divided], limit=None)
    alike = dict.fromkeys(
        tuple(
            name
            for job, profile in sorted(layout.items())
            for name in _make_instance(profile, _shrink_to_fit(profile, divided[job][1])).device_names
        )
        for layout in legal
    )
    num_devices = sum(max(len(parts), 1) for _, parts in divided)
    return sorted(alike, key=lambda names: abs(len(names) - num_devices))[:limit]


def _shrink_to_fit(profile: Profile, parts: Sequence[int]) -> tuple[int, ...]:
    """Return the compute instances that fit into a GPU instance, narrowed if necessary; `()` for a full one."""
    if len(parts) == 1 and profile.compute_slices <= parts[0]:
        return ()
    fitted: list[int] = []
    for position, part in enumerate(parts):
        free = profile.compute_slices - sum(fitted)
        room = free - min(len(parts) - position - 1, max(free - 1, 0))  # reserves a slice for each later part
        fitted += [width for width in list_widths(profile) if width <= min(part, room)][-1:]
    return tuple(fitted)
