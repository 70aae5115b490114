"""The table "To add something" of docs/architecture.md, executed.

In a copy of the project one of each kind is added, by nothing but the files that its row of the table names. Then a
study that uses all of them runs, and its report is written.
"""

from __future__ import annotations

import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from pipeline.base.system.paths import PROJECT_DIR
from tests.support import forks

PAGES = ("your_own_listener", "your_own_workload", "your_own_sharing_mode", "your_own_column")
pytestmark = pytest.mark.covers(
    "docs/architecture.md",
    "docs/your_own_listener.md",
    "docs/your_own_workload.md",
    "docs/your_own_sharing_mode.md",
    "docs/your_own_column.md",
)
PAGE = PROJECT_DIR / "docs/architecture.md"
CODE = ("pipeline", "listeners", "workloads", "hydra_plugins", "conf", "run.py")
OF_FORKS = ("tests/__init__.py", "tests/support/forks.py", "tests/support/experiments.py")

ROOMS = """
    from pipeline.base.domain.records import HostProgram
    from pipeline.base.system.paths import PROJECT_DIR
    from pipeline.prepare.sharing.streams import Streams

    class Rooms(Streams):
        def __init__(self, colour):
            self.colour = colour
        def choose_host(self, group, scratch):
            return HostProgram(script=str(PROJECT_DIR / "workloads/host_rooms.py"), options=(("colour", self.colour),))
    """
HOST_ROOMS = """
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from workloads import tenants

    class Rooms(tenants.Place):
        def __init__(self, colour):
            self.colour = colour
        def describe(self, position):
            return {"room": f"{self.colour}-{position}"}

    if __name__ == "__main__":
        tenants.run_tenants(lambda options, num_tenants: Rooms(options["colour"]))
    """


def read_page_files(name: str) -> dict[str, str]:
    """The files that a page shows: each block of code after the last path in backticks before it."""
    text = (PROJECT_DIR / f"docs/{name}.md").read_text(encoding="utf-8")
    files, path = {}, ""
    for words, kind, code in re.findall(r"(.*?)(?:\n```(\w*)\n(.*?)```|\Z)", text, re.DOTALL):
        path = (re.findall(r"`([\w/]+\.(?:py|yaml))`", words) or [path])[-1]
        if kind:
            files[path] = code
    return files


LISTENER, OWN_WORKLOAD, MODE = map(read_page_files, PAGES[:3])
FORMULA, METRIC = re.findall(
    r"```python\n(.*?)```", (PROJECT_DIR / "docs/your_own_column.md").read_text(encoding="utf-8"), re.DOTALL
)
# The same files inside the project, as the page says.
WORKLOAD = {
    path.replace("products/", "workloads/products/"): code.replace("products.options", "workloads.products.options")
    for path, code in OWN_WORKLOAD.items()
}
# What the checks of other kinds look at.
SEEN_VARIABLES = ("cuda_device_max_connections", "colours", "depth")
SEEN = f'job.param(**{{name: __import__("os").environ.get(name.upper()) for name in {SEEN_VARIABLES}}})'
WORKLOAD["workloads/products/program.py"] = WORKLOAD["workloads/products/program.py"].replace(
    "    job.ready()", f"    {SEEN}\n    job.ready()"
)
PAINTED = """
    import dataclasses
    from pipeline.prepare.env.current import CurrentEnv

    class PaintedEnv(CurrentEnv):
        def __init__(self, colours):
            self.colours = colours
        def preview(self):
            return dataclasses.replace(super().preview(), environ=(("COLOURS", ",".join(self.colours)),))
        resolve = preview
    """
TRACER = """
    from contextlib import nullcontext
    from pipeline.base.domain.records import Commands

    class Tracer:
        name = "tracer"
        def __init__(self, depth):
            self.depth = depth
        def check(self, group):
            pass
        def list_setting_commands(self, group):
            return Commands()
        def prepare(self, group):
            return nullcontext()
        def notes(self, device):
            return ("figures are taken under the tracer",)
        def prefix(self, folder):
            return ("/usr/bin/env", f"DEPTH={self.depth}")
        def report(self, folder):
            return folder / "job.json"
    """
SCOREBOARD = """
    from contextlib import contextmanager
    from pathlib import Path
    from pipeline.observe.exporters.prometheus import GroupSeries

    class Scoreboard:
        def __init__(self, file):
            self.file = Path(file)
        @contextmanager
        def serve(self):
            self.file.write_text("")
            yield self._showing
        @contextmanager
        def _showing(self, group, live):
            yield
            names = " ".join(metric.name for metric in GroupSeries(group, live).read() if metric.values)
            self.file.write_text(f"{self.file.read_text()}{group.name} {names}\\n")
    """
CENSUS = """
    from functools import partial
    from pipeline.report.figures.drawing import Sketch, make_panels

    def sketches(cells, samples):
        yield Sketch(name="census", title="Census", caption="", section="Counted", paint=partial(_paint, cells))

    def _paint(cells):
        figure, (axes,) = make_panels(1, 2.0)
        axes.bar([0], [len(cells)])
        return figure
    """
TALLY = """
    from pipeline.base.system.command_parser import CommandAnswer

    def add_tally_arguments(parser):
        parser.add_argument("things", nargs="*")

    def answer_tally(arguments):
        number = len(arguments.things)
        return CommandAnswer(data={"number": number}, text=f"{number} things")
    """
STUDY = """
    # @package _global_
    defaults:
      - override /workload: products
      - override /env: painted
      - override /exporter: scoreboard
      - override /listeners: [host, pressure]
      - _self_
    hydra:
      mode: MULTIRUN
    blocks:
      - {scenario: "naive,queues", degree: 2}
      - {scenario: queues, degree: 1, profiler: tracer, baseline: never}
    window: {seconds: 0.6, settle_s: 0.1}
    listeners: {pressure: {interval_ms: 200, options: {path: pressure}}}
    tracking: {experiment: added}
    """
FINDINGS = """
    table: hearsay
    title: What is said and ours
    about: "Nobody, 1999."
    gpu: none
    epochs: 1
    workloads: [{name: products}]
    findings:
      - {text: "two run at some rate",
         kind: quantity, quantity: throughput_total_products_per_s, modes: [naive], low: 1}
    """

MIG_TABLE = "pipeline/base/domain/mig_profiles.json"
(A30,) = re.findall(
    r'^  "A30-24GB": \{\n.*?^  \},\n', (PROJECT_DIR / MIG_TABLE).read_text("utf-8"), re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Addition:
    """One more of a kind: its name, and the text that is added to files, at the end of those that are there already.

    Attributes:
        lines: what is put before which words of a file, where the end of it is not the place.
    """

    name: str
    files: Mapping[str, str]
    lines: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def paths(self) -> list[str]:
        return [*self.files, *self.lines]


ADDED = {
    "sharing mode": Addition("queues", MODE),
    "listener": Addition("pressure", LISTENER),
    "workload": Addition("products", WORKLOAD),
    "environment kind": Addition(
        "painted",
        {
            "pipeline/prepare/env/painted.py": PAINTED,
            "conf/env/painted.yaml": "_target_: pipeline.prepare.env.painted.PaintedEnv\ncolours: [deep, red]\n",
        },
    ),
    "profiler": Addition(
        "tracer",
        {
            "pipeline/launch/profilers/tracer.py": TRACER,
            "conf/profiler/tracer.yaml": "name: tracer\n_target_: pipeline.launch.profilers.tracer.Tracer\ndepth: 3\n",
        },
    ),
    "sharing mode in one process": Addition(
        "rooms",
        {
            "pipeline/prepare/sharing/rooms.py": ROOMS,
            "workloads/host_rooms.py": HOST_ROOMS,
            "conf/scenario/rooms.yaml": "name: rooms\n_target_: pipeline.prepare.sharing.rooms.Rooms\ncolour: red\n",
        },
    ),
    "exporter": Addition(
        "scoreboard",
        {
            "pipeline/observe/exporters/scoreboard.py": SCOREBOARD,
            "conf/exporter/scoreboard.yaml": (
                "name: scoreboard\n_target_: pipeline.observe.exporters.scoreboard.Scoreboard\nfile: scores\n"
            ),
        },
    ),
    "report figure": Addition(
        "census",
        {"pipeline/report/figures/census.py": CENSUS},
        {
            "pipeline/report/figures/catalogue.py": {
                "from pipeline.report.figures import ": "from pipeline.report.figures import census\n",
                "    over_time.sketches,": "    census.sketches,\n",
            }
        },
    ),
    "report column": Addition(
        "slowest_over_fastest_ratio",
        {},
        {
            "pipeline/report/evaluate/metrics.py": {
                "_ALL = (\n": f"{FORMULA}\n\n",
                '    _make_share(name="overlap_ratio"': f"{METRIC.rstrip()},\n",
            }
        },
    ),
    "command of the planner": Addition(
        "tally",
        {"pipeline/planner/commands/tally_commands.py": TALLY},
        {"pipeline/planner/__main__.py": {'    "train": ': '    "tally": ("tally", "how many things there are"),\n'}},
    ),
    "study": Addition("added", {"conf/experiment/added.yaml": STUDY}),
    "simulated GPU": Addition(
        "q7_24gb",
        {},
        {MIG_TABLE: {'  "A30-24GB": {': A30.replace("A30-24GB", "Q7-24GB").replace("NVIDIA A30", "NVIDIA Q7")}},
    ),
    "findings of a publication": Addition("hearsay", {"pipeline/report/evaluate/publications/hearsay.yaml": FINDINGS}),
}


def read_rows_of_the_table() -> dict[str, list[str]]:
    """The files that each row of the page's table names, by what they add."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## To add something\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "|" in line]
    return {row[0]: re.findall(r"`([^`]+/[^`]+)`", " ".join(row[1:])) for row in rows[2:]}


def test_every_row_of_the_table_is_executed_and_nothing_else() -> None:
    assert read_rows_of_the_table().keys() == ADDED.keys() == CHECKS.keys()


@pytest.mark.parametrize("kind", ADDED)
def test_the_files_of_a_row_are_those_that_are_touched(kind: str) -> None:
    named = read_rows_of_the_table()[kind]
    assert sorted(path.replace("NAME", ADDED[kind].name) for path in named) == sorted(ADDED[kind].paths)
    assert sum(path.endswith(".py") for path in named) <= 2 and sum(path.endswith(".yaml") for path in named) <= 1
    for path in named:
        assert (PROJECT_DIR / path).is_file() == ("NAME" not in path), path
        assert (PROJECT_DIR / path.partition("NAME")[0].rpartition("/")[0]).exists(), path


@dataclass(frozen=True)
class Study:
    """A study of what was added.

    Attributes:
        tree: the project, with it.
        out, err: of the run.
        group: the run of the group under the mode that was added.
        jobs: the runs of its jobs.
        profiled: the run of the one job under the profiler that was added.
        report: folder.
    """

    tree: Path
    out: str
    err: str
    group: Any
    jobs: list[Any]
    profiled: Any
    report: Path


def run_python(tree: Path, *argv: object) -> subprocess.CompletedProcess[str]:
    """Run a program of the tree, as a fork of a process that has imported its code."""
    return forks.run(*argv, cwd=tree, project=tree)


def make_command(tree: Path, *overrides: str) -> list[str]:
    return ["run.py", *overrides, "gpu=cpu", f"gpu.lock_dir={tree}", f"tracking.root={tree}/mlruns"]


def run_py(tree: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return run_python(tree, *make_command(tree, *overrides))


@pytest.fixture
def study(tmp_path: Path, template_store: Path) -> Study:
    tree = tmp_path / "project"
    tree.mkdir()
    for name in (*CODE, *OF_FORKS):
        (tree / name).parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (PROJECT_DIR / name).is_dir() else shutil.copy
        copy(PROJECT_DIR / name, tree / name)
    for one in ADDED.values():
        for path, text in one.files.items():
            before = (tree / path).read_text(encoding="utf-8") if (tree / path).exists() else ""
            (tree / path).parent.mkdir(exist_ok=True)
            (tree / path).write_text(before + dedent(text), encoding="utf-8")
        for path, lines in one.lines.items():
            text = (tree / path).read_text(encoding="utf-8")
            for words, line in lines.items():
                assert text.count(words) == 1, (path, words)
                text = text.replace(words, line + words)
            (tree / path).write_text(text, encoding="utf-8")
    shutil.copytree(template_store, tree / "mlruns")
    (tree / "pressure").write_text("some avg10=25.00 avg60=0.00 avg300=0.00 total=0\n")
    argv = [sys.executable, *make_command(tree, "+experiment=added")]  # from nothing, as a user does
    done = subprocess.run(argv, cwd=tree, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    where = ["--root", tree / "mlruns", "--out", tree / "report", "--no-log"]
    report = run_python(tree, "-m", "pipeline.report", "--experiment", "added", *where)
    assert report.returncode == 0, report.stderr
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tree}/mlruns/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("added").experiment_id])
    (group,) = (run for run in runs if run.info.run_name == "queues-2x-products-connections=4")
    jobs = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == group.info.run_id]
    (profiled,) = (run for run in runs if run.data.params.get("job.depth") == "3")
    return Study(
        tree=tree,
        out=done.stdout,
        err=done.stderr,
        group=group,
        jobs=jobs,
        profiled=profiled,
        report=tree / "report",
    )


def table(study: Study, name: str) -> str:
    return (study.report / f"tables/{name}.csv").read_text(encoding="utf-8")


def figures(study: Study) -> Iterator[str]:
    return (path.read_text(encoding="utf-8") for path in (study.report / "figures").glob("*.svg"))


def check_sharing_mode(study: Study) -> None:
    assert study.group.data.tags["collocation.result"] == "ok" and len(study.jobs) == 2
    for name in ("job.cuda_device_max_connections", "placement.connections"):
        assert {job.data.params[name] for job in study.jobs} == {"4"}
    assert study.err.count("scenario=queues has no effect on a CPU") == 1
    assert "hardware queues 4" in table(study, "results")
    assert any("#aa3300" in svg for svg in figures(study))
    for value, remedy in (("0", "must be at least 1"), ("33", "must be at most 32")):
        refused = run_py(study.tree, "scenario=queues", f"scenario.connections={value}", "dry_run=true")
        assert refused.returncode == 2 and f"scenario.connections={value} {remedy}" in refused.stderr, refused.stderr


def check_report_column(study: Study) -> None:
    """Its figure is the ratio of the rates that the store has."""
    rates = [job.data.metrics["throughput_products_per_s"] for job in study.jobs]
    lines = [line for line in table(study, "fairness").splitlines() if not line.startswith("#")]
    (row,) = (row for row in csv.DictReader(lines) if row["mode"] == "hardware queues 4" and row["jobs"] == "2")
    assert float(row["slowest over fastest job"].rstrip("*")) == pytest.approx(min(rates) / max(rates), abs=0.01)
    assert ",slowest over fastest job," in table(study, "results")


def check_listener(study: Study) -> None:
    """Its figure is in the table at the end, the store, the series, the report's tables and the figure over time."""
    assert re.search(r" waiting\b.*\n(.* 0\.25\b.*\n){4}", study.out), study.out
    metrics = study.group.data.metrics
    assert metrics["io_pressure_mean_ratio"] == metrics["system/pressure/io_pressure_ratio"] == 0.25
    assert "waiting for storage" in table(study, "utilisation")
    assert any(">waiting for storage<" in svg for svg in figures(study))


def check_workload(study: Study) -> None:
    assert {job.data.params["size"] for job in study.jobs} == {"64"}
    assert all(job.data.metrics["throughput_products_per_s"] > 0 for job in study.jobs)
    refused = run_py(study.tree, "workload=products", "workload.size=0", "dry_run=true")
    assert refused.returncode == 2 and "workload products: size=0 must be at least 1" in refused.stderr


def check_environment(study: Study) -> None:
    assert {job.data.params["job.colours"] for job in study.jobs} == {"deep,red"}


def check_pages(study: Study) -> None:
    """The commands of the pages plan; those of the page of workloads run in a test of their own."""
    texts = [(PROJECT_DIR / f"docs/{name}.md").read_text(encoding="utf-8") for name in (PAGES[0], PAGES[2])]
    commands = [command for text in texts for command in re.findall(r"^python run\.py ([^#\n]*)", text, re.MULTILINE)]
    assert len(commands) == 5
    for command in commands:
        done = run_py(study.tree, *shlex.split(command), "dry_run=true")
        assert done.returncode == 0, done.stderr


def check_profiler(study: Study) -> None:
    assert study.profiled.data.tags["collocation.profiler"] == "tracer"
    assert {job.data.params["job.depth"] for job in study.jobs} == {"None"}
    assert "figures are taken under the tracer" in study.err


def check_exporter(study: Study) -> None:
    """It is shown every group, with the listener and the progress of the jobs."""
    lines = (study.tree / "scores").read_text(encoding="utf-8").splitlines()
    assert len({line.split()[0] for line in lines}) == len(lines) == 4
    for line in lines:
        assert {"collocation_pressure_io_pressure_ratio", "collocation_job_work_total"} < set(line.split())


def check_figure(study: Study) -> None:
    assert (study.report / "figures/census.svg").is_file()
    page = (study.report / "index.html").read_text(encoding="utf-8")
    assert '<h2 id="counted">Counted</h2>' in page and "Census" in page


def check_command_of_the_planner(study: Study) -> None:
    assert run_python(study.tree, "-m", "pipeline.planner", "tally", "one", "two").stdout == "2 things\n"


def check_study(study: Study) -> None:
    names = [line.split()[0] for line in study.out.splitlines() if re.search(r" ok\*? ", line)]  # * on a busy machine
    assert sorted(names) == [
        "naive-2x",
        "queues-1x-connections=4-tracer",
        "queues-2x-connections=4",
        "serial-1x",
    ]


def check_findings(study: Study) -> None:
    assert "two run at some rate" in table(study, "hearsay")
    assert "What is said and ours" in (study.report / "index.html").read_text(encoding="utf-8")


def check_simulated_gpu(study: Study) -> None:
    """It has the MIG profiles of its entry, and no others."""
    command = ["run.py", "gpu=simulated_q7_24gb", "workload=tiny", "scenario=mig", "dry_run=true", "baseline=never"]
    planned, refused = (
        run_python(study.tree, *command, "degree=1", f"scenario.profiles=[{profile}]", f"gpu.lock_dir={study.tree}")
        for profile in ("4g.24gb", "3g.20gb")
    )
    assert planned.returncode == 0 and "NVIDIA Q7 is simulated" in planned.stderr + planned.stdout, planned.stderr
    assert refused.returncode == 2 and "3g.20gb" in refused.stderr, refused.stderr


def check_mode_in_one_process(study: Study) -> None:
    options = ["tracking.experiment=rooms", "window.seconds=1", "baseline=never", "listeners=[]"]
    done = run_py(study.tree, "scenario=rooms", "degree=2", "workload=tiny", *options)
    assert done.returncode == 0, done.stderr
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{study.tree}/mlruns/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("rooms").experiment_id])
    assert {run.data.params.get("job.room") for run in runs} == {None, "red-0", "red-1"}


CHECKS = {
    "sharing mode": check_sharing_mode,
    "sharing mode in one process": check_mode_in_one_process,
    "listener": check_listener,
    "workload": check_workload,
    "environment kind": check_environment,
    "profiler": check_profiler,
    "exporter": check_exporter,
    "report figure": check_figure,
    "report column": check_report_column,
    "command of the planner": check_command_of_the_planner,
    "study": check_study,
    "findings of a publication": check_findings,
    "simulated GPU": check_simulated_gpu,
}


@pytest.mark.slow
def test_one_of_each_kind_is_added_and_runs(study: Study) -> None:
    """One test, because the study that they look at takes seconds."""
    for check in (*CHECKS.values(), check_pages):
        check(study)


@pytest.mark.slow
def test_a_workload_in_a_repository_of_its_own_is_checked_rehearsed_and_run(tmp_path: Path) -> None:
    for path, code in OWN_WORKLOAD.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(code)

    def run(*overrides: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(PROJECT_DIR / "run.py"), "--config-dir", "conf", *overrides]
        environ = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)

    refused = run("workload=products", "workload.size=12", "workload.precision=fp32", "gpu=cpu", "dry_run=true")
    assert (refused.returncode, refused.stderr) == (
        2,
        "error: workload products: size=12 must be a multiple of 8 with precision=fp32\n",
    )
    done = run("workload=products", "+rehearse=tiny", "degree=1", "baseline=never", f"gpu.lock_dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    (config,) = tmp_path.glob("mlruns/artifacts/*/*/artifacts/config.yaml")
    recorded = yaml.safe_load(config.read_text())["workload"]
    assert (recorded["options"], recorded["size"]) == ("products.options.Products", 32)
    again = run(f"reproduce={config.parts[-3]}", "dry_run=true")
    assert again.returncode == 0 and "naive-1x-products" in again.stdout, again.stderr
