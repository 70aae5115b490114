"""A small study as the runs of a bundle, with paths of the machine that measured; a bundle with many groups."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from pipeline.record.store import bundle_archive

EXPERIMENT = "study"
_DEVICE = "NVIDIA H100 80GB HBM3"
_RATES = {("serial", 1): 100.0, ("naive", 2): 70.0, ("mps", 2): 80.0}


def make_runs() -> list[dict[str, Any]]:
    """Return the runs of three groups with their jobs in each of three blocks."""
    runs = []
    for number, (block, (scenario, degree)) in enumerate((b, case) for b in (1, 2, 3) for case in _RATES):
        rate = _RATES[scenario, degree] + block
        group_id = f"{number:024x}{0:08x}"
        settings = {"device": _DEVICE, "window": "steady, 5 s after 1 s", "seed": "0", "pinned CPUs": "false"}
        common = {
            "collocation.study": "20261121-100000-aaaaaa",
            "collocation.block": str(block),
            "collocation.gpu_uuid": "GPU-1",
            "collocation.boot_id": "boot-1",
            "collocation.device": _DEVICE,
            "collocation.planned": json.dumps({"settings": settings, "options": {"--data": "/fast/alice/images"}}),
            "collocation.command_line": "run.py tracking.root=/tmp/study -- train.py --data /fast/alice/images",
            "collocation.working_folder": "/home/alice/study",
            "collocation.user": "alice",
            "collocation.host": "node-17",
            "collocation.environment_0_python": "/opt/envs/torch/bin/python",
            "collocation.result": "ok",
        }
        params = {"window": "steady", "window_seconds": "5", "window_settle_s": "1", "seed": "0", "pin_cpus": "false"}
        total = {"throughput_total_samples_per_s": [[degree * rate, 5, 0]]}
        group = {"collocation.role": "group", "collocation.digest": f"{number}"}
        params |= {"scenario": scenario, "degree": str(degree)}
        runs.append(_make_run(group_id, f"{scenario}-{degree}x-tiny", number, common | group, params, total))
        for index in range(degree):
            job = {
                "collocation.role": "job",
                "collocation.workload_digest": "digest",
                "collocation.index": str(index),
                "mlflow.parentRunId": group_id,
            }
            params = {"workload": "tiny", "batch_size": "32", "seed": "0", "--data": "/fast/alice/images"}
            one = {"throughput_samples_per_s": [[rate, 5, 0]]}
            runs.append(_make_run(f"{number:024x}{index + 1:08x}", f"{index}-tiny", number, common | job, params, one))
    return runs


def _make_run(
    run_id: str, name: str, number: int, tags: dict[str, str], params: dict[str, str], metrics: dict[str, Any]
) -> dict[str, Any]:
    start_ms = 1_700_000_000_000 + 10_000 * number
    ending = {"status": "FINISHED", "start_ms": start_ms, "end_ms": start_ms + 9000, "user": "alice"}
    return {"run_id": run_id, "name": name, **ending, "tags": tags, "params": params, "metrics": metrics}


def copy_groups(source: Path, target: Path, num_groups: int, blocks: int = 5) -> None:
    """Write a bundle with copies of a bundle's groups: other programs with equal figures, in a number of blocks."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        experiment = bundle_archive.extract(source, folder)
        runs = [json.loads(line) for line in (folder / bundle_archive.RUNS).read_text().split("\n") if line]
        series = [json.dumps(run.pop("metrics")) for run in runs]
        num_copies = -(-num_groups // sum(run["tags"]["collocation.role"] == "group" for run in runs))
        files: dict[str, Path | bytes] = {bundle_archive.RUNS: folder / "copies.jsonl"}
        with (folder / "copies.jsonl").open("w") as output:
            for number in range(num_copies):
                for run, text in zip(runs, series, strict=True):
                    copy = json.dumps(_copy_run(run, number, *divmod(number, blocks)))
                    output.write(f'{copy[:-1]}, "metrics": {text}}}\n')
                    for artifact in (folder / "artifacts" / run["run_id"]).glob("*"):
                        files[f"artifacts/{_copy_id(run['run_id'], number)}/{artifact.name}"] = artifact
        bundle_archive.write(target, experiment, files)


def _copy_run(run: dict[str, Any], number: int, program: int, block: int) -> dict[str, Any]:
    tags, params = dict(run["tags"]), dict(run["params"])
    if "mlflow.parentRunId" in tags:
        tags["mlflow.parentRunId"] = _copy_id(tags["mlflow.parentRunId"], number)
        params["workload"] = f"workload{program}"
    digests = [f"mlflow.collocation.{name}" for name in ("digest", "key", "program_digest", "workload_digest")]
    tags |= {key: _copy_id(tags[key], program) for key in digests if key in tags}
    tags["collocation.block"] = str(block + 1)
    times = {key: run[key] + 1_000_000 * block + 100 * number for key in ("start_ms", "end_ms")}
    return {**run, **times, "run_id": _copy_id(run["run_id"], number), "tags": tags, "params": params}


def _copy_id(text: str, number: int) -> str:
    return hashlib.sha256(f"{text} {number}".encode()).hexdigest()[:32]
