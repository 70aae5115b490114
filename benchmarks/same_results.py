"""Check that two checkouts of the project have the same results: run the same studies in both and compare the stores.

    python -m benchmarks.same_results run --checkout BEFORE --out FOLDER/before
    python -m benchmarks.same_results run --checkout .      --out FOLDER/after
    python -m benchmarks.same_results compare FOLDER/before FOLDER/after --renamed launcher=profiler --without faults

Times differ from run to run, so most figures are compared only by name; figures that depend only on the work are also
compared by value. Each study has a folder with `out.txt`, the store and its report. Stores are read only through
MLflow, so that the comparison does not depend on the code of a checkout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHORT = ["window.seconds=1", "window.settle_s=0.1", "workload.warmup_steps=2"]
GPU = "gpu=simulated_a100_40gb"
EXPERIMENT = "same-rehearsal"
LIMIT_S = 1800
SCRIPT = """
import mlflow

with mlflow.start_run():
    mlflow.log_param("rate", 0.5)
    for step in range(5):
        mlflow.log_metric("score", step * 2.0, step=step)
print("done")
"""
# Facts that depend on the boot of the machine, or on the version of the source; they are not compared.
VOLATILE = re.compile(
    r"(git_|boot|spool_id|study|plan$|digest|settings|mlflow\.(parentRunId|source|user|log-model)|pid|_ns$|command_line|"
    r"working_folder|environment_|host$|reproduces|first_losses|gpu_uuid|place\.device|collocation\.flag)"
)
# Figures that do not depend on time; their values are compared.
EXACT = frozenset({"samples_per_epoch", "epochs", "degree", "num_jobs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The checkout and the folder of one study."""

    checkout: Path
    folder: Path

    @property
    def root(self) -> Path:
        """Folder of the store."""
        return self.folder / "store"

    def start(self, *arguments: str, module: str | None = None) -> subprocess.Popen[str]:
        """Start `run.py` or a module of the checkout."""
        # Rehearsals do not rename this experiment, so it has the same name in all checkouts.
        program = ["-m", module] if module else ["run.py", f"tracking.experiment={EXPERIMENT}"]
        environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MLFLOW_TRACKING_URI")}
        with (self.folder / "out.txt").open("a", encoding="utf-8") as out:
            return subprocess.Popen(
                [sys.executable, *program, *arguments],
                cwd=self.checkout,
                env=environ,
                stdout=out,
                stderr=out,
                text=True,
            )

    def run(self, *arguments: str, module: str | None = None) -> int:
        """Run the command until it exits; return the exit status."""
        return self.start(*arguments, module=module).wait(LIMIT_S)

    def study(self, *arguments: str) -> int:
        """Run a study until it ends; return the exit status."""
        return self.run(*arguments, f"tracking.root={self.root}", f"gpu.lock_dir={self.folder}")

    def writes(self, text: str, pattern: str = "out.txt", limit_s: float = 300) -> None:
        """Wait until a file below the folder contains this text."""
        deadline = time.monotonic() + limit_s
        while not any(text in file.read_text(encoding="utf-8") for file in self.folder.glob(pattern)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{text!r} did not appear in {self.folder / pattern}")
            time.sleep(0.01)


def run_committed_experiment(place: Place) -> list[int]:
    """Rehearse a committed experiment."""
    instead = ["scenario=naive,mps,mig", "repeats=1"]
    return [place.study("+experiment=robroek_quick", "+rehearse=tiny", *instead)]


def run_simulated_mig(place: Place) -> list[int]:
    """Run every sharing mode, and a mix that does not fit on any MIG layout, on a simulated GPU."""
    common = [GPU, "workload=tiny", *SHORT]
    sweep = place.study("-m", "scenario=serial,naive,mps,mps_percent,mig,mig_mps", "degree=2,3", *common)
    sizes = [f"workload@sizes.{size}=tiny" for size in "SML"] + ["sizes.M.batch_size=16", "sizes.L.batch_size=8"]
    mix = place.study("-m", "scenario=naive,mig", "mix=[M,S],[L,M,M,S,S]", *sizes, *common[:1], *SHORT[:2])
    return [sweep, mix]


def script(place: Place) -> list[int]:
    """Run a user's script that logs to MLflow: two copies side by side, and the serial baseline."""
    file = place.folder / "script.py"
    file.write_text(SCRIPT, encoding="utf-8")
    script_options = ["workload=script", f"workload.script={file}", "gpu=cpu"]
    return [place.study("-m", "scenario=serial,naive", "degree=2", *script_options)]


def server_away(place: Place) -> list[int]:
    """Stop a tracking server in the middle of a study; `flush` sends the waiting groups."""
    port = _free_port()
    uri = f"http://127.0.0.1:{port}"
    study = ["-m", "degree=1,2,3", "workload=tiny", "gpu=cpu", *SHORT, "tracking=server", f"tracking.uri={uri}"]
    with _server(place, port):
        running = place.start(*study, f"tracking.root={place.folder / 'spool_root'}", f"gpu.lock_dir={place.folder}")
        place.writes("[2/")
    statuses = [running.wait(LIMIT_S)]
    with _server(place, port):
        statuses.append(place.run("flush", "--root", str(place.folder / "spool_root"), module="pipeline.tracking"))
    return statuses


def kill_and_clean(place: Place) -> list[int]:
    """Kill an orchestrator inside a MIG group; `clean` restores the GPU and `resume` runs the rest."""
    machine = place.folder / "machine.json"
    kept = [GPU, f"gpu.machine={machine}"]
    study = ["-m", "scenario=mig", "degree=2,3", "workload=tiny", *kept, *SHORT]
    running = place.start(*study, f"tracking.root={place.root}", f"gpu.lock_dir={place.folder}")
    place.writes("mig_instance", "collocation-journals-*/*.journal")
    running.send_signal(signal.SIGKILL)
    statuses = [running.wait(LIMIT_S)]
    cleaned = ["clean", "--machine", str(machine), "--lock-dir", str(place.folder), "--json"]
    statuses.append(place.run(*cleaned, module="pipeline.gpu"))
    statuses.append(place.study(*study, "resume=true"))
    return statuses


STUDIES: dict[str, Callable[[Place], list[int]]] = {
    study.__name__: study
    for study in (run_committed_experiment, run_simulated_mig, script, server_away, kill_and_clean)
}


def run(checkout: Path, out: Path, names: list[str]) -> None:
    """Run the studies in a checkout, each with its report in a separate folder."""
    for name in names:
        place = Place(checkout=checkout.resolve(), folder=(out / name).resolve())
        place.folder.mkdir(parents=True)
        begin_s = time.monotonic()
        statuses = STUDIES[name](place)
        report = place.run(
            *("--root", str(place.root), "--experiment", EXPERIMENT),
            *("--out", str(place.folder / "report"), "--no-log"),
            module="pipeline.report",
        )
        (place.folder / "statuses.json").write_text(json.dumps([*statuses, report]), encoding="utf-8")
        print(f"{name}: exit statuses {statuses}, report {report}, {time.monotonic() - begin_s:.0f} s", flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Allowed differences: changed names, and names that only one of the two stores has."""

    renamed: dict[str, str]
    without: frozenset[str]

    def name(self, name: str) -> str | None:
        """Return the name in the later checkout; `None` if the name is not compared."""
        head, dot, last = name.rpartition(".")
        if VOLATILE.search(name) or last in self.without:
            return None
        return head + dot + self.renamed.get(last, last)


def describe(folder: Path, rules: Rules) -> dict[str, Any]:
    """Return a study's results by name, without times and paths."""
    outcome: dict[str, Any] = {"statuses": json.loads((folder / "statuses.json").read_text(encoding="utf-8"))}
    for database in sorted(folder.rglob("mlflow.db")):
        outcome |= dict(_runs(database, rules))
    report = folder / "report"
    for file in sorted(report.rglob("*")) if report.is_dir() else ():
        outcome[f"report: {file.relative_to(report)}"] = _shape(file)
    return outcome


def _runs(database: Path, rules: Rules) -> Iterator[tuple[str, Any]]:
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{database}")
    for experiment in client.search_experiments():
        runs = client.search_runs([experiment.experiment_id], max_results=10_000)
        by_id = {run.info.run_id: run for run in runs}
        seen: dict[str, int] = {}
        for run in sorted(runs, key=lambda run: (run.info.start_time, run.info.run_name or "")):
            tags = run.data.tags
            parent = by_id.get(tags.get("mlflow.parentRunId", ""))
            name = f"{parent.info.run_name} / {run.info.run_name}" if parent else str(run.info.run_name)
            name = f"{experiment.name}: {name} block {tags.get('collocation.block')}"
            seen[name] = seen.get(name, 0) + 1
            key = f"{name} #{seen[name]}"
            yield f"{key} status", run.info.status
            yield f"{key} params", _named(run.data.params, rules)
            yield f"{key} tags", {kept: _words(value) for kept, value in _named(tags, rules).items()}
            metrics = _named({name: str(value) for name, value in run.data.metrics.items()}, rules)
            yield f"{key} metrics", {kept: value if kept in EXACT else "a number" for kept, value in metrics.items()}
            # Artifacts of a server cannot be listed, because the server has ended.
            if not run.info.artifact_uri.startswith("mlflow-artifacts"):
                artifacts = {item.path for item in client.list_artifacts(run.info.run_id)}
                yield f"{key} artifacts", sorted(artifacts - rules.without)


def _named(values: dict[str, str], rules: Rules) -> dict[str, str]:
    return {kept: value for name, value in values.items() if (kept := rules.name(name)) is not None}


def _words(text: str) -> str:
    """Remove numbers and paths from a text."""
    return re.sub(r"\d+(\.\d+)?", "N", re.sub(r"/[\w./-]+", "PATH", text))


def _shape(file: Path) -> str:
    """Return the text of a report's file without its numbers."""
    if file.suffix == ".csv":
        return _words(file.read_text(encoding="utf-8"))
    return "a file"


def compare(before: Path, after: Path, rules: Rules) -> int:
    """Print the differences; return their number."""
    count = 0
    for folder in sorted(path for path in before.iterdir() if path.is_dir()):
        old, new = describe(folder, rules), describe(after / folder.name, Rules(renamed={}, without=rules.without))
        differing = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
        for key in differing:
            print(f"{folder.name}: {key}")
            _print_difference(old.get(key), new.get(key))
        count += len(differing)
        print(f"{folder.name}: {len(old)} facts compared, {len(differing)} differ")
    return count


def _print_difference(old: Any, new: Any) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                print(f"    {name}: {old.get(name)!r} -> {new.get(name)!r}")
    else:
        print(f"    {str(old)[:400]!r} -> {str(new)[:400]!r}")


@contextmanager
def _server(place: Place, port: int) -> Iterator[None]:
    """Run a tracking server on this machine; at the end, kill it, as if its machine had failed."""
    place.root.mkdir(exist_ok=True)
    store = ["--backend-store-uri", f"sqlite:///{place.root / 'mlflow.db'}", "--artifacts-destination", str(place.root)]
    command = [sys.executable, "-m", "mlflow", "server", *store, "--host", "127.0.0.1", "--port", str(port)]
    with (place.folder / "server.txt").open("a", encoding="utf-8") as out:
        server = subprocess.Popen([*command, "--workers", "1"], stdout=out, stderr=out, start_new_session=True)
    try:
        deadline = time.monotonic() + 300
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"the tracking server does not answer; see {place.folder / 'server.txt'}")
            time.sleep(0.2)
        yield
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    """Run the studies or compare the stores; return 1 if there are differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="run the studies in a checkout")
    runs.add_argument("--checkout", type=Path, required=True, help="folder that contains run.py")
    runs.add_argument("--out", type=Path, required=True, help="folder to write to")
    runs.add_argument("--only", nargs="+", choices=STUDIES, default=list(STUDIES), help="these studies")
    compares = commands.add_parser("compare", help="compare the results of two checkouts")
    compares.add_argument("before", type=Path)
    compares.add_argument("after", type=Path)
    compares.add_argument("--renamed", nargs="*", default=[], metavar="OLD=NEW", help="params and tags with new names")
    only_one = "params, tags and artifacts that only one checkout has"
    compares.add_argument("--without", nargs="*", default=[], metavar="NAME", help=only_one)
    args = parser.parse_args()
    if args.command == "run":
        run(args.checkout, args.out, args.only)
        return 0
    renamed = dict(pair.split("=", 1) for pair in args.renamed)
    return 1 if compare(args.before, args.after, Rules(renamed=renamed, without=frozenset(args.without))) else 0


if __name__ == "__main__":
    sys.exit(main())
