"""Importing our packages starts nothing and loads nothing heavy; `--help` answers at once."""

from __future__ import annotations

import dataclasses
import resource
import subprocess
import sys

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import config_schema

PROBE = """
import sys
def forbid(event, args):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "socket.connect"):
        raise RuntimeError(f"an import caused {event}")
sys.addaudithook(forbid)
import listeners.activity, listeners.dcgm, listeners.gpm, listeners.host, listeners.nvml, listeners.smi
import workloads.client
import workloads.serving.options, workloads.rates.options, workloads.frameworks.options, workloads.program
import pipeline.prepare.mig.layouts, pipeline.study.execution, pipeline.tracking
import pipeline.record.store.results, pipeline.prepare.device.nvml
import pipeline.report.__main__, pipeline.report.figures.catalogue, pipeline.report.page.page
import pipeline.report.page.study_tables, pipeline.report.evaluate.paper
import pipeline.planner.__main__, pipeline.planner.profile_table, pipeline.planner.commands.results_commands
import pipeline.planner.commands.planning_commands
heavy = {"torch", "timm", "mlflow", "pandas", "numpy", "transformers", "rich", "pynvml"}
heavy = (heavy | {"matplotlib", "jinja2", "scipy"}) & set(sys.modules)
assert not heavy, heavy
"""


def test_imports_are_light_and_without_side_effects():
    done = subprocess.run([sys.executable, "-c", PROBE], cwd=PROJECT_DIR, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def cpu_s_of_children() -> float:
    """What they took of a CPU, not of the clock: other tests run beside this one."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_help_shows_the_groups_within_half_a_second():
    times = []
    for _ in range(5):
        before_s = cpu_s_of_children()
        done = subprocess.run(
            [sys.executable, "run.py", "--help"], cwd=PROJECT_DIR, capture_output=True, text=True, timeout=300
        )
        times.append(cpu_s_of_children() - before_s)
    assert "naive*, serial, streams" in " ".join(done.stdout.split())  # wherever the line is broken
    for words in ("\n  workload  ", "activity*, dcgm, gpm, host*, nvml*, smi*", "--help-keys"):
        assert words in done.stdout
    readme = (PROJECT_DIR / "README.md").read_text(encoding="utf-8").partition("## Six commands")[2]
    commands = [line.partition("#")[0].strip() for line in readme.split("```")[1].splitlines()[1:]]
    assert len(commands) == 6 and [command for command in commands if command not in done.stdout] == []
    assert done.stdout.count("\n") <= 70
    assert min(times) < 0.25


def test_every_key_is_explained_by_help_keys():
    done = subprocess.run(
        [sys.executable, "run.py", "--help-keys"], cwd=PROJECT_DIR, capture_output=True, text=True, timeout=300
    )
    fields = [field.name for field in dataclasses.fields(config_schema.Config)]
    groups = {name for name in fields if f"\n{name}." in done.stdout}
    assert {"gpu", "window", "limits"} <= groups
    assert [name for name in fields if name not in groups and f"\n{name}  (" not in done.stdout] == ["sizes"]
    assert "\ngpu.count  (int; default: 1)\n      number of GPUs of a simulated machine\n" in done.stdout
