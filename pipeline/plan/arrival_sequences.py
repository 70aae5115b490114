"""Numbers of the arrival sequences of services, so that a service is compared with itself under the same arrivals."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from pipeline.base.domain.records import Job


def number_sequences(jobs: Sequence[Job], block: int) -> tuple[Job, ...]:
    """Give each copy of a workload another arrival sequence.

    A job alone has sequence 0. Of several copies, another one has sequence 0 in each block, so that over the blocks
    every copy is compared with the run alone. Co-runners follow the measured copies.
    """
    measured = Counter(job.workload.digest for job in jobs if not job.is_co_runner)
    before = Counter[str]()
    numbered = []
    for job in jobs:
        digest = job.workload.digest
        copies = measured[digest]
        number = before[digest] if job.is_co_runner else (before[digest] + block - 1) % copies
        numbered.append(dataclasses.replace(job, arrivals=number))
        before[digest] += 1
    return tuple(numbered)
