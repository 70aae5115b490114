"""The devices that frameworks detect, and whether their results on these devices are correct."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import PROFILE
from pipeline.base.system.words import align_table
from pipeline.report.page.table_format import Table, format_value
from pipeline.report.read.study_records import JobRow, Row, Study

_SCRIPT = "workloads/framework.py"
_TITLES = {
    "torch": "PyTorch",
    "jax": "JAX",
    "cupy": "CuPy",
    "tensorflow": "TensorFlow",
    "paddle": "PaddlePaddle",
    "http": "HTTP server",
    "ray_serve": "Ray Serve",
    "triton_server": "Triton server",
}
_NOT_INSTALLED, _NO = "not installed", "no"
_NOTE = (
    "Each framework computes a known product on every device that it sees, while the other jobs of its group do the "
    "same. In part: the products are correct, but the framework sees fewer devices than its job has. With drivers up "
    "to R525, a CUDA process can use one MIG device; with R570 and later, several."
)


class Answer(NamedTuple):
    """The answer of one or more jobs; each job has `num_devices` devices."""

    framework: str
    version: str | None
    where: str | None
    num_devices: int | None
    sees: str | None
    works: str
    why: str | None


def framework_table(study: Study) -> Table:
    """Return a table of every answer with its number of jobs, in the order of frameworks."""
    counts = count_answers(study)
    columns = ("framework", "version", "where", "jobs", "devices given", "sees", "works", "why")
    rows = tuple((*answer[:3], number, *answer[3:]) for answer, number in counts.items())
    drivers = ", ".join(sorted({row.facts.get("driver_version", "") for row in study.rows} - {""}))
    driver = f" Driver here: {drivers}." if drivers else ""
    return Table("frameworks", "Devices that frameworks see and use", columns, rows, f"{_NOTE}{driver}")


def format_frameworks(study: Study) -> list[str]:
    """Return the lines of the table for a terminal, without the reasons of skipped groups, which `run.py` prints."""
    counts = count_answers(study)
    if not counts:
        return []
    cells = [
        ("framework", "version", "where", "given", "sees", "works"),
        *(map(format_value, row[:-1]) for row in counts),
    ]
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for answer in counts:
        if answer.why and answer.where:
            places[answer.framework, answer.why].append(answer.where)
    reasons = [f"{name}, {'; '.join(locations)}: {words}" for (name, words), locations in places.items()]
    return [*align_table([tuple(line) for line in cells], left_columns=range(6)), *reasons]


def count_answers(study: Study) -> Counter[Answer]:
    """Count the jobs with each answer."""
    probes = [
        (row, job)
        for row in study.rows
        for job in row.jobs
        if job.params.get("script") == _SCRIPT and job.params.get("framework") in _TITLES and _is_known(row, job)
    ]
    names = list(_TITLES)
    probes.sort(
        key=lambda probe: (names.index(probe[1].params["framework"]), bool(probe[0].profiles), probe[0].degree == 1)
    )
    return Counter(_answer(row, job) for row, job in probes)


def _is_known(row: Row, job: JobRow) -> bool:
    # A resumed study has no answers of groups that it did not run again.
    return row.result is not Result.OK or "job.works" in job.params


def _answer(row: Row, job: JobRow) -> Answer:
    name = _TITLES[job.params["framework"]]
    if row.result is Result.SKIPPED:
        return Answer(name, None, None, None, None, _NOT_INSTALLED, row.reason)
    version, seen, works, reason = (
        job.params.get(f"job.{key}") for key in ("framework_version", "seen", "works", "why")
    )
    reason = reason or (None if works else row.reason)  # without an answer, the reason is the end of the group
    num_devices = len(job.place.get("device", "").split(",")) if "device" in job.place else None
    return Answer(name, version, _where(job), num_devices, seen, works or _NO, reason)


def _where(job: JobRow) -> str:
    profile = job.place.get(PROFILE)
    if profile is None:
        return "the whole device"
    several = profile.split("+")
    return f"MIG {' + '.join(several)} at once" if "," in job.place.get("device", "") else f"MIG {profile}"
