"""The cost of the orchestrator: the time that it adds to a job, and its influence on measured figures.

    python -m benchmarks.overhead added        # seconds added to a 10 s job, for 1, 3 and 7 jobs; any machine
    python -m benchmarks.overhead scripts      # 7 scripts that log five metrics to MLflow, compared with a shell loop
    python -m benchmarks.overhead gap          # seconds between two groups of a sweep
    python -m benchmarks.overhead throughput --workload resnet26_cifar10 --degrees 7 --scenario naive mps   # GPU

The table is printed at the end. `throughput` compares with a bare loop in interleaved rounds, so that a drift of the
machine affects all sides equally.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from hydra import compose, initialize_config_dir

from benchmarks import bare_loop
from pipeline.base.domain import work_units
from pipeline.base.domain.workload import Workload
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import config_reader, config_schema
from pipeline.plan import plan_builder as planning
from pipeline.plan.inventory import take_inventory
from pipeline.record.store import results
from pipeline.study import plans

RUN = [sys.executable, str(PROJECT_DIR / "run.py")]
SLEEP_S = 10
EXPERIMENT = "overhead"


def run(*arguments: str, root: Path) -> float:
    """Run one command of the orchestrator; return its wall time in seconds."""
    begin = time.monotonic()
    done = subprocess.run(
        [*RUN, *arguments, f"tracking.root={root}", f"tracking.experiment={EXPERIMENT}"], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"{arguments} ended with status {done.returncode}: {done.stderr}")
    return time.monotonic() - begin


def run_scripts(folder: Path, runs: int) -> list[str]:
    """Measure the seconds from the command to its exit, minus the duration of the job."""
    script = folder / "sleep.py"
    script.write_text(f"import time; time.sleep({SLEEP_S})\n")
    root = folder / "mlruns"
    run("workload=script", f"workload.script={script}", "degree=1", root=root)  # this run creates the store
    lines = ["| jobs | orchestrator adds, s (median, min - max) | bare loop adds, s | start skew, ms | own CPU, % |"]
    lines.append("|---|---|---|---|---|")
    for jobs in (1, 3, 7):
        times = [
            run("workload=script", f"workload.script={script}", f"degree={jobs}", "baseline=never", root=root) - SLEEP_S
            for _ in range(runs)
        ]
        bare = bare_loop.median_wall_s(script, jobs, 1) - SLEEP_S
        rows = results.load_groups(root, EXPERIMENT)
        mine = rows[rows["params.degree"] == str(jobs)]
        skew, cpu = mine["metrics.start_skew_ms"].median(), mine["metrics.orchestrator_cpu_pct"].median()
        lines.append(f"| {jobs} | {_spread(times)} | {bare:.2f} | {skew:.1f} | {cpu:.2f} |")
    return lines


def scripts(folder: Path, options: argparse.Namespace) -> list[str]:
    """Time seven scripts that log to MLflow, started by the orchestrator and by a shell loop alternately.

    In the shell loop, the scripts log directly to one SQLite store.
    """
    script, lines_of = folder / "logs.py", folder / "lines"
    script.write_text(
        "import time; began = time.time()\n"
        f"out = open({str(lines_of)!r}, 'a'); out.write(f'{{began}}\\n'); out.flush()\n"
        "import mlflow\n"
        "for step in range(5):\n"
        f"    time.sleep(max(0, began + (step + 1) * {SLEEP_S} / 5 - time.time()))\n"
        "    mlflow.log_metric(f'metric{step}', step)\n"
        "out.write(f'{time.time()}\\n')\n"
    )
    root, store = folder / "mlruns", {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'loop.db'}"}
    overrides = [f"workload.script={script}", "degree=7", "baseline=never", *options.override]

    def orchestrated() -> None:
        run("workload=script", *overrides, root=root)

    def loop(jobs: int = 7) -> None:
        command = f"for job in {' '.join(map(str, range(jobs)))}; do '{sys.executable}' '{script}' & done; wait"
        subprocess.run(["sh", "-c", command], env=os.environ | store, capture_output=True, check=True, cwd=folder)

    sides = {"shell loop": loop, "orchestrator": orchestrated}
    figures: dict[str, list[tuple[float, ...]]] = {name: [] for name in sides}
    loop(1)  # this run creates the store, because MLflow may break a store that several processes create at once
    orchestrated()
    for _ in range(options.runs):
        for name, side in sides.items():
            lines_of.write_text("")
            start_s, spent_s = time.time(), cpu_s_of_children()
            side()
            end_s, cpu_s = time.time(), cpu_s_of_children() - spent_s
            times = [float(line) for line in lines_of.read_text().split()]
            figures[name].append((end_s - start_s - SLEEP_S, min(times) - start_s, end_s - max(times), cpu_s))
    lines = [
        "| side | adds, s (median, min - max) | before the first line, s | after the last line, s | CPU, s |",
        "|---|---|---|---|---|",
    ]
    for name, rows in figures.items():
        added_s, *others_s = zip(*rows, strict=True)
        others = (f"{statistics.median(seconds):.2f}" for seconds in others_s)
        lines.append(f"| {name} | {_spread(added_s)} | {' | '.join(others)} |")
    pairs = zip(figures["orchestrator"], figures["shell loop"], strict=True)
    ratios = [mine[0] / theirs[0] for mine, theirs in pairs]
    return [*lines, "", f"orchestrator / shell loop, in pairs: {_spread(ratios)}"]


def cpu_s_of_children() -> float:
    """Return the CPU time of all child processes that have ended; it does not include scripts of the orchestrator."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def gap(folder: Path, runs: int) -> list[str]:
    """Measure the seconds between the end of a group's jobs and the start of the next group's jobs."""
    script = folder / "sleep.py"
    script.write_text("import time; time.sleep(2)\n")
    root = folder / "mlruns"
    lines = ["| jobs a group | gap between two groups, s (median, max) |", "|---|---|"]
    for jobs in (1, 7):
        seeds = ",".join(str(seed) for seed in range(runs + 1))
        run(
            "-m",
            "workload=script",
            f"workload.script={script}",
            f"degree={jobs}",
            f"seed={seeds}",
            "baseline=never",
            root=root,
        )
        rows = results.load(root, EXPERIMENT)
        rows = rows[rows["group.params.degree"] == str(jobs)]
        rows = rows.assign(
            start=rows["tags.collocation.start_ns"].astype(float) / 1e9,
            end=rows["tags.collocation.end_ns"].astype(float) / 1e9,
        )
        spans = rows.groupby("group.run_id").agg(start=("start", "min"), end=("end", "max")).sort_values("start")
        gaps = (spans["start"].shift(-1) - spans["end"]).dropna()
        lines.append(f"| {jobs} | {gaps.median():.2f}, {gaps.max():.2f} |")
    return lines


def throughput(folder: Path, options: argparse.Namespace) -> list[str]:
    """Compare the total rate under the orchestrator, and that of a second bare loop, with a bare loop in each round.

    The second bare loop shows how much two equal measurements differ on this machine. The memory peak is the largest
    peak that torch counted in a job.
    """
    lines = [
        "| workload | jobs | sharing mode | bare loop, work/s (median) | orchestrator / bare loop (median, min - max) "
        "| bare loop / bare loop | peak memory of a job, over a bare loop's | start skew, ms | own CPU, % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case in itertools.product(options.workload, options.degrees, options.scenario):
        lines.append(_paired(folder / "mlruns", *case, options))
        print(lines[-1], flush=True)
    return lines


def _paired(root: Path, workload: str, degree: int, scenario: str, options: argparse.Namespace) -> str:
    overrides = [
        f"workload={workload}",
        "data.source=synthetic_device",
        f"scenario={scenario}",
        f"degree={degree}",
        f"window.seconds={options.seconds:g}",
        f"window.settle_s={options.settle:g}",
        f"tracking.experiment={EXPERIMENT}",
        *options.override,
    ]
    job = plan_job(overrides)
    window = {"settle_s": options.settle, "seconds": options.seconds}
    rates: dict[str, list[float]] = {"bare": [], "orchestrator": [], "bare again": []}
    peaks: dict[str, list[float | None]] = {side: [] for side in rates}
    rows = []
    for turn in range(options.pairs):
        sides = list(rates)
        for side in sides[turn % 3 :] + sides[: turn % 3]:
            if side == "orchestrator":
                run(*overrides, "baseline=never", root=root)
                rows.append(results.load_groups(root, EXPERIMENT).sort_values("start_time").iloc[-1])
                rates[side].append(float(rows[-1][f"metrics.{work_units.total_of(job.work_unit)}"]))
                peaks[side].append(_peak_mib(root, rows[-1]["run_id"]))
            else:
                with bare_loop.mps() if scenario == "mps" else nullcontext(os.environ) as environ:
                    measured = bare_loop.throughput(job.argv, degree, environ, **window)
                rates[side].append(measured.rate)
                peaks[side].append(measured.peak_mib)
        print(f"{workload} x{degree} {scenario}: {', '.join(f'{s} {r[-1]:.0f}' for s, r in rates.items())}", flush=True)
    bare = rates.pop("bare")
    ratios = " | ".join(_ratios(side, bare) for side in rates.values())
    memory = _ratios(peaks["orchestrator"], peaks["bare"])
    skew, cpu = (
        statistics.median(float(row[f"metrics.{name}"]) for row in rows)
        for name in ("start_skew_ms", "orchestrator_cpu_pct")
    )
    case = f"{workload} | {degree} | {scenario} | {statistics.median(bare):.0f}"
    return f"| {case} | {ratios} | {memory} | {skew:.1f} | {cpu:.2f} |"


def _peak_mib(root: Path, group: str) -> float | None:
    jobs = results.load(root, EXPERIMENT)
    column = f"metrics.{bare_loop.PEAK_MEMORY}"
    return float(jobs.loc[jobs["group.run_id"] == group, column].max()) if column in jobs else None


def _ratios(values: Sequence[float | None], over: Sequence[float | None]) -> str:
    ratios = [one / base for one, base in zip(values, over, strict=True) if one is not None and base is not None]
    return _spread(ratios) if ratios else "-"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} - {max(values):.3f})"


def plan_job(overrides: list[str]) -> Workload:
    """Return the command of each job of a configuration."""
    config_schema.register()
    with initialize_config_dir(str(PROJECT_DIR / "conf"), version_base="1.3"):
        typed = config_reader.read([compose("config", overrides)])
    plan = planning.build_plan(typed, take_inventory(typed, plans.find_device), is_sweep=False)
    return plan.groups[0].jobs[0].workload


def main() -> None:
    """Run the requested measurement and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["added", "scripts", "gap", "throughput"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--workload", nargs="+", default=["resnet26_cifar10", "resnet50_imagenet64"])
    parser.add_argument("--degrees", nargs="+", type=int, default=[1, 2, 3, 7])
    parser.add_argument("--scenario", nargs="+", default=["naive"], choices=["naive", "mps"])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--settle", type=float, default=1.0)
    parser.add_argument("--override", nargs="*", default=[], help="further overrides")
    options = parser.parse_args()
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # Without bytecode files, each start would compile modules that an installed program has in compiled form.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="overhead-") as name:
        folder = Path(name)
        if options.what == "throughput":
            lines = throughput(folder, options)
        elif options.what == "scripts":
            lines = scripts(folder, options)
        else:
            lines = {"added": run_scripts, "gap": gap}[options.what](folder, options.runs)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
