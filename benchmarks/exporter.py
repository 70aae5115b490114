"""The cost of live metrics: a study whose exporter is scraped alternates with a study without an exporter.

    python -m benchmarks.exporter                      # 7 jobs on instances of a simulated GPU; any machine
    python -m benchmarks.exporter --every-s 0.05       # frequent scrapes, to measure the cost of a scrape
    python -m benchmarks.exporter --rounds 10 --gpu nvidia --override scenario=mps workload=resnet26_cifar10

CPU time is that of the orchestrator and its helpers in the measured window. Memory is the peak resident memory of the
orchestrator without its helpers.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan.config_reader import name_rehearsal
from pipeline.record.store import results

EXPERIMENT = "exporter"
SIDES = ("none", "prometheus")
PORT = 9477


def experiment_of(exporter: str, overrides: Sequence[str]) -> str:
    """Return the experiment of the studies with one exporter."""
    name = f"{EXPERIMENT}-{exporter}"
    return name_rehearsal(name) if any(word.startswith("gpu=simulated_") for word in overrides) else name


def run(root: Path, exporter: str, overrides: Sequence[str], every_s: float) -> dict[str, float]:
    """Run one study; return its orchestrator's peak memory, and number, size and median duration of the scrapes."""
    argv = [sys.executable, str(PROJECT_DIR / "run.py"), *overrides, f"exporter={exporter}", "baseline=never"]
    argv += [f"tracking.root={root}", f"tracking.experiment={experiment_of(exporter, overrides)}"]
    argv += [f"exporter.port={PORT}"] if exporter == "prometheus" else []
    peak_kib, scrape_ms, num_series = 0, [], 0
    with (root.parent / "log").open("w") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak_kib = max([peak_kib, *(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)])
            if exporter == "prometheus":
                began = time.perf_counter()
                if num_scraped := scrape():
                    scrape_ms.append((time.perf_counter() - began) * 1e3)
                    num_series = max(num_series, num_scraped)
            time.sleep(every_s)
    if process.returncode != 0:
        raise RuntimeError((root.parent / "log").read_text())
    median_ms = statistics.median(scrape_ms) if scrape_ms else 0.0
    return {"peak MiB": peak_kib / 1024, "series": num_series, "scrapes": len(scrape_ms), "scrape, ms": median_ms}


def scrape() -> int:
    """Return the number of series that the study exports; 0 between groups, and if the exporter does not run."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10) as answer:
            return sum(not line.startswith(b"#") for line in answer)
    except OSError:
        return 0


def table(root: Path, rounds: int, overrides: Sequence[str], every_s: float) -> list[str]:
    """Measure both sides alternately; return medians with minimum and maximum, and the ratios of paired throughputs."""
    figures_by_side: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side in SIDES if number % 2 else reversed(SIDES):
            figures = run(root, side, overrides, every_s)
            figures_by_side[side].append(figures)
            sys.stderr.write(f"round {number + 1}, {side}: {figures}\n")
    lines = ["| exporter | own CPU, % of a core | peak memory, MiB | samples/s |", "|---|---|---|---|"]
    rates = {}
    for side in SIDES:
        rows = results.load_groups(root, experiment_of(side, overrides)).sort_values("start_time")
        rates[side] = list(rows["metrics.throughput_total_samples_per_s"])
        columns = (
            list(rows["metrics.orchestrator_cpu_pct"]),
            [figures["peak MiB"] for figures in figures_by_side[side]],
            rates[side],
        )
        lines.append(f"| {side} | {' | '.join(map(spread, columns))} |")
    ratios = [mine / without for without, mine in zip(*rates.values(), strict=True)]
    scraped = figures_by_side["prometheus"]
    lines += ["", f"throughput with / without, in pairs: {spread(ratios)}"]
    lines.append(
        f"series: {scraped[-1]['series']:.0f}; scrape, ms: {spread([figures['scrape, ms'] for figures in scraped])}"
    )
    return lines


def spread(values: Sequence[float]) -> str:
    """Format median, minimum and maximum."""
    return f"{statistics.median(values):.4g} ({min(values):.4g} - {max(values):.4g})"


def main() -> None:
    """Return the requested measurements as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gpu", default="simulated_h100_80gb")
    parser.add_argument("--override", nargs="*", default=["scenario=mig"])
    parser.add_argument("--every-s", type=float, default=1.0, help="seconds between two scrapes")
    options = parser.parse_args()
    overrides = ["degree=7", "window.seconds=20", f"gpu={options.gpu}", *options.override]
    with tempfile.TemporaryDirectory(prefix="colloc-benchmark-") as folder:
        print("\n".join(table(Path(folder) / "mlruns", options.rounds, overrides, options.every_s)))


if __name__ == "__main__":
    main()
