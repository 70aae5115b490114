"""The time that a warm start saves, and its effect on measured figures: the same groups start cold and warm in turn.

    python -m benchmarks.warm_start --workload tiny --degrees 1 3 --pairs 5                       # any machine
    python -m benchmarks.warm_start --workload resnet26_cifar10 --degrees 1 7 --pairs 5 --override gpu.admin=null

The tables are printed at the end: the phases of a group (medians), and the ratio of warm to cold throughput in pairs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.record.store import results

if TYPE_CHECKING:
    import pandas as pd

PHASES = ("setup", "launch", "window", "end", "cleanup")
STARTUP = ("process", "import", "build", "warmup")


def run(root: Path, side: str, options: argparse.Namespace) -> None:
    """Run every degree once, in one study."""
    arguments = [
        f"workload={options.workload}",
        f"scenario={options.scenario}",
        f"degree={','.join(map(str, options.degrees))}",
        "data.source=synthetic_device",
        f"window.seconds={options.seconds:g}",
        f"window.settle_s={options.settle:g}",
        f"warm_start={'true' if side == 'warm' else 'false'}",
        "baseline=never",
        "order=listed",
        f"tracking.root={root}",
        f"tracking.experiment={side}",
        *options.override,
    ]
    done = subprocess.run([sys.executable, PROJECT_DIR / "run.py", "-m", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{arguments} ended with status {done.returncode}: {done.stdout}{done.stderr}")


def median(table: pd.DataFrame, metric: str) -> str:
    """Format the median of a metric."""
    column = f"metrics.{metric}"
    return f"{table[column].median():.2f}" if column in table and table[column].notna().any() else "-"


def tables(root: Path) -> list[str]:
    """Compare the phases and the throughput of warm and cold starts."""
    groups = {side: results.load_groups(root, side) for side in ("cold", "warm")}
    jobs = {side: results.load(root, side) for side in ("cold", "warm")}
    names = list(dict.fromkeys(groups["cold"]["name"]))
    lines = ["| group | start | " + " | ".join(f"{phase}, s" for phase in PHASES) + " | a job: "]
    lines[0] += " | ".join(f"{phase}, s" for phase in STARTUP) + " |"
    lines.append("|---" * (2 + len(PHASES) + len(STARTUP)) + "|")
    ratios = [
        "| group | pairs | cold, samples/s (median) | warm | warm / cold (median, min - max) |",
        "|---|---|---|---|---|",
    ]
    for name in names:
        for side in ("cold", "warm"):
            mine = groups[side][groups[side]["name"] == name]
            of_jobs = jobs[side][jobs[side]["group.name"] == name]
            cells = [median(mine, f"time_{phase}_s") for phase in PHASES]
            cells += [median(of_jobs, f"startup_{phase}_s") for phase in STARTUP]
            lines.append(f"| {name} | {side} | " + " | ".join(cells) + " |")
        rates = [
            groups[side][groups[side]["name"] == name]["metrics.throughput_total_samples_per_s"].tolist()
            for side in ("cold", "warm")
        ]
        pairs = [warm / cold for cold, warm in zip(*rates, strict=True)]
        ratios.append(
            f"| {name} | {len(pairs)} | {statistics.median(rates[0]):.0f} | {statistics.median(rates[1]):.0f} | "
            f"{statistics.median(pairs):.3f} ({min(pairs):.3f} - {max(pairs):.3f}) |"
        )
    return [*lines, "", *ratios]


def main() -> None:
    """Run the measurement and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="tiny")
    parser.add_argument("--scenario", default="naive")
    parser.add_argument("--degrees", nargs="+", type=int, default=[1, 3])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--settle", type=float, default=0.5)
    parser.add_argument("--override", nargs="*", default=[], help="further overrides for both sides")
    options = parser.parse_args()
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    with tempfile.TemporaryDirectory(prefix="warm-start-") as name:
        for pair in range(options.pairs):
            for side in ("cold", "warm") if pair % 2 == 0 else ("warm", "cold"):
                run(Path(name), side, options)
                print(f"pair {pair + 1}: {side}", flush=True)
        print("\n".join(tables(Path(name))))


if __name__ == "__main__":
    main()
