"""The table of GPU instances: how busy each profile was, and how full its memory."""

from __future__ import annotations

import statistics
from collections import defaultdict

from pipeline.base.domain import mig_names
from pipeline.base.domain.modes import PROFILE
from pipeline.base.domain.normalise import independent
from pipeline.report.evaluate.cells import Case, cases_of
from pipeline.report.evaluate.metrics import ACTIVITY, INSTANCE_MEMORY, METRICS, Scale
from pipeline.report.evaluate.statistics import estimate
from pipeline.report.page.table_format import Table, Values, with_interval
from pipeline.report.read.records import Study

_Place = tuple[Case, int, str, str]
"""Case, degree, mode and profile."""


def instance_table(study: Study) -> Table:
    """Figures of the instances of each profile: the mean of a group's instances, of their memory the highest."""
    cases = cases_of(study)
    read: dict[_Place, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    gpus: dict[_Place, dict[int, str]] = defaultdict(dict)
    for row in (row for row in study.rows if row.is_valid):
        by_profile: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
        for job in row.jobs:  # jobs that share an instance say the same of it, those on compute instances as well
            for name in (*ACTIVITY, INSTANCE_MEMORY):
                if "gi_id" in job.place and PROFILE in job.place and name in job.metrics:
                    profile, _ = mig_names.split(job.place[PROFILE])
                    by_profile[profile][name][job.place["gi_id"]] = job.metrics[name]
        for profile, figures in by_profile.items():
            place = (cases[row.run_id], row.degree, row.mode, profile)
            gpus[place][row.block] = row.gpu_uuid
            for name, values in figures.items():
                together = max if name == INSTANCE_MEMORY else statistics.fmean
                read[place][name][row.block] = together(values.values())
    names = [name for name in (*ACTIVITY, INSTANCE_MEMORY) if any(name in figures for figures in read.values())]
    rows: list[Values] = []
    for place, by_name in sorted(read.items()):
        found = [_shown(name, by_name[name], gpus[place]) if name in by_name else None for name in names]
        rows.append((place[0].label, *place[1:], *found))
    titles = ["peak memory of an instance (MiB)" if name == INSTANCE_MEMORY else METRICS[name].title for name in names]
    note = (
        "Mean over the instances of a profile, of memory the highest; then the median over the blocks. Shares are of "
        "the instance, whatever its size."
    )
    columns = ("case", "jobs", "mode", "profile", *titles)
    return Table("instances", "GPU instances by profile", columns, tuple(rows), note)


def _shown(name: str, by_block: dict[int, float], gpus: dict[int, str]) -> str:
    if name == INSTANCE_MEMORY:
        return with_interval(estimate(list(by_block.values()), Scale.PEAK))
    return with_interval(estimate(independent(by_block, gpus), Scale.SHARE))
