"""`repeats=auto`: the number of blocks, the groups whose speed-ups decide on it, and the precision goal. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.base.domain.precision_goal import PrecisionGoal
from pipeline.base.domain.records import Group
from pipeline.base.system.errors import ConfigError
from pipeline.plan.config_schema import AUTO_REPEATS, Config


def count_blocks(config: Config) -> int:
    """Return the number of blocks of a configuration; with `repeats=auto`, the largest number."""
    return config.repeats_max if config.repeats == AUTO_REPEATS else int(config.repeats)


def make_goal(configs: Sequence[Config], groups: Sequence[Group]) -> PrecisionGoal | None:
    """Return the precision goal of a study; `None` if its number of blocks is fixed.

    Raises:
        ConfigError: only some configurations have `repeats=auto`, or no group has a speed-up.
    """
    fixed = [config.repeats for config in configs if config.repeats != AUTO_REPEATS]
    if len(fixed) == len(configs):
        return None
    if fixed:
        raise ConfigError(f"repeats={fixed[0]} conflicts with repeats=auto in the same study; set repeats to one value")
    if not select_compared(groups):
        raise ConfigError(
            "repeats=auto needs a group with a speed-up, but every group is serial, has no baseline, has co-runners "
            "or a set rate, or is skipped; set repeats=NUMBER"
        )
    return PrecisionGoal(pct=configs[0].precision_goal_pct, max_blocks=configs[0].repeats_max)


def select_compared(groups: Sequence[Group]) -> list[Group]:
    """Select the groups of the first block that can have a speed-up over their serial baseline."""
    first = [group for group in groups if group.block == 1 and group.skip_reason is None]
    baselines = {key for group in first if group.sequential for key in _list_keys(group)}
    return [
        group
        for group in first
        if not group.sequential
        and not group.has_co_runners
        and not any(job.workload.is_rate_given for job in group.jobs)
        and baselines.issuperset(_list_keys(group))
    ]


def _list_keys(group: Group) -> list[tuple[object, ...]]:
    """Return the key that each job shares with its runs alone."""
    settings = tuple(sorted(group.shared_settings.items()))
    return [(job.workload.digest, settings, group.profiler) for job in group.measured]
