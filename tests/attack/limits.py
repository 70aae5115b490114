"""A study that may open few files, or write short ones only: as on a disk that is full."""

from __future__ import annotations

from random import Random

from tests.attack.bench import SHORT, Bench, Outcome

_CODE = """
import os, resource, runpy, sys
resource.setrlimit(resource.{limit}, ({value}, {value}))
sys.argv[0] = {run!r}
sys.path[0] = os.path.dirname({run!r})
runpy.run_path({run!r}, run_name="__main__")
"""


def attack(bench: Bench, random: Random) -> Outcome:
    """Run a study within a limit of the kernel."""
    from pipeline.base.system.paths import PROJECT_DIR

    limit, value = random.choice(
        [("RLIMIT_NOFILE", random.randint(8, 60)), ("RLIMIT_FSIZE", random.choice([0, 100, 1000, 10_000, 50_000]))]
    )
    code = bench.folder / "limited.py"
    code.write_text(_CODE.format(limit=limit, value=value, run=str(PROJECT_DIR / "run.py")))
    outcome = Outcome(f"a study within {limit}")
    scenario = random.choice(("naive", "mps", "mig"))
    process = bench.start(f"scenario={scenario}", "degree=2", *SHORT, code=code)
    outcome.problems += (f"{limit}={value}: {problem}" for problem in bench.end(process))
    outcome.problems += (f"{limit}={value}: {problem}" for problem in bench.problems_after())
    return outcome
