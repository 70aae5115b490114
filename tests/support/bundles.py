"""A small study as the records of a bundle, with paths of the machine that measured; a bundle with many groups."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.base.domain.records import Result
from pipeline.base.domain.window import Window, WindowKind
from pipeline.record import group_record
from pipeline.record.group_record import Clock, GroupRecord, JobRecord
from pipeline.record.store import bundle_archive, bundle_reader

EXPERIMENT = "study"
_DEVICE = "NVIDIA H100 80GB HBM3"
_RATES = {("serial", 1): 100.0, ("naive", 2): 70.0, ("mps", 2): 80.0}
_CLOCK = Clock(wall_ns=1_700_000_000_000_000_000, monotonic_ns=0)
_FACTS = {
    "boot_id": "boot-1",
    "command_line": "run.py tracking.root=/tmp/study -- train.py --data /fast/alice/images",
    "working_folder": "/home/alice/study",
    "user": "alice",
    "host": "node-17",
    "environment_0_python": "/opt/envs/torch/bin/python",
}


def make_groups() -> list[GroupRecord]:
    """Return three groups with their jobs in each of three blocks."""
    cases = ((block, case) for block in (1, 2, 3) for case in _RATES)
    return [_make_group(number, block, *case) for number, (block, case) in enumerate(cases)]


def _make_group(number: int, block: int, scenario: str, degree: int) -> GroupRecord:
    rate, begin_ns = _RATES[scenario, degree] + block, 10_000_000_000 * number
    times: dict[str, Any] = {"start_ns": begin_ns, "end_ns": begin_ns + 9_000_000_000, "result": Result.OK}
    jobs = tuple(
        JobRecord(
            name=f"{index}-tiny",
            run_id=f"{number:024x}{index + 1:08x}",
            params={"workload": "tiny", "batch_size": "32", "seed": "0", "--data": "/fast/alice/images"},
            metrics={"throughput_samples_per_s": rate},
            index=index,
            digest="digest",
            **times,
        )
        for index in range(degree)
    )
    return GroupRecord(
        name=f"{scenario}-{degree}x-tiny",
        run_id=f"{number:024x}{0:08x}",
        params={"scenario": scenario, "degree": str(degree), "jobs": "tiny", "window": "steady", "seed": "0"},
        facts=_FACTS,
        metrics={"throughput_total_samples_per_s": degree * rate},
        spool_id=f"spool-{number}",
        experiment=EXPERIMENT,
        clock=_CLOCK,
        jobs=jobs,
        study="20261121-100000-aaaaaa",
        scenario=scenario,
        device=_DEVICE,
        gpu_uuid="GPU-1",
        block=block,
        digest=f"{number}",
        key=f"{scenario}-{degree}",
        settings={"device": _DEVICE, "window": "steady, 5 s after 1 s", "seed": "0", "pinned CPUs": "false"},
        options={"--data": "/fast/alice/images"},
        window=Window(kind=WindowKind.STEADY, seconds=5, settle_s=1),
        host="node-17",
        **times,
    )


def list_files(groups: Iterable[GroupRecord]) -> dict[str, Path | bytes]:
    """Return the records of groups as the files of a bundle."""
    return {
        f"{bundle_archive.GROUPS}/{group.run_id}/record.json": group_record.encode(group).encode() for group in groups
    }


def write_bundle(file: Path, change: Callable[[dict[str, Any]], object] = lambda _: None) -> None:
    """Write the small study as a bundle, with the records as a stranger changed them."""
    files: dict[str, Path | bytes] = {}
    for name, content in list_files(make_groups()).items():
        assert isinstance(content, bytes)
        change(raw := json.loads(content))
        files[name] = json.dumps(raw).encode()
    bundle_archive.write(file, EXPERIMENT, files)


def copy_groups(source: Path, target: Path, num_groups: int, blocks: int = 5) -> None:
    """Write a bundle with copies of a bundle's groups: other programs with equal figures, in a number of blocks."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        experiment = bundle_archive.extract(source, folder)
        groups = bundle_reader.read_folder(source, folder)
        records: dict[str, Path | bytes] = {}
        artifacts: dict[str, Path | bytes] = {}
        for number in range(-(-num_groups // len(groups))):
            for group in groups:
                copy = _copy_group(group, number, *divmod(number, blocks))
                records |= list_files([copy])
                original = folder / bundle_archive.GROUPS / group.run_id
                for path in original.rglob("*"):
                    if path.is_file() and path.name != "record.json":
                        place = path.relative_to(original).as_posix()
                        artifacts[f"{bundle_archive.GROUPS}/{copy.run_id}/{place}"] = path
        bundle_archive.write(target, experiment, records | artifacts)


def _copy_group(group: GroupRecord, number: int, program: int, block: int) -> GroupRecord:
    jobs = tuple(
        replace(
            job,
            run_id=_copy_id(job.run_id, number),
            digest=_copy_id(job.digest, program),
            program_digest=_copy_id(job.program_digest, program),
            params=job.params | {"workload": f"workload{program}"},
        )
        for job in group.jobs
    )
    digests = {name: _copy_id(getattr(group, name), program) for name in ("digest", "key", "program_digest")}
    later_ns = (1_000_000 * block + 100 * number) * 1_000_000
    clock = replace(group.clock, wall_ns=group.clock.wall_ns + later_ns)
    run_id, spool_id = _copy_id(group.run_id, number), _copy_id(group.spool_id, number)
    return replace(group, run_id=run_id, spool_id=spool_id, clock=clock, block=block + 1, jobs=jobs, **digests)


def _copy_id(text: str, number: int) -> str:
    return hashlib.sha256(f"{text} {number}".encode()).hexdigest()[:32]
