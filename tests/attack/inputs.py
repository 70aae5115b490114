"""Command lines that nobody would type: each is planned, or refused in a line with status 2; nothing is written."""

from __future__ import annotations

import re
from random import Random

from pipeline.base.paths import PROJECT_DIR
from tests import forks
from tests.attack.bench import Bench, Outcome

_PAGE = (PROJECT_DIR / "docs/configuration.md").read_text(encoding="utf-8")
_KEYS = re.findall(r"^\| `([\w.]+)` \|", _PAGE, re.MULTILINE)
_GROUPS = [path.name for path in (PROJECT_DIR / "conf").iterdir() if path.is_dir()]
_VALUES = (
    "", "null", "true", "0", "-1", "1", "2", "1e400", "nan", "inf", "-inf", "1e3", "[]", "[1,2]", "[[]]", "{}",
    "{a: 1}", "{a:1}", "'", '"', "a b", "é", "\\", "$HOME", "${workload.name}", "${nothing}", "${.}", "~", "~/x",
    "/dev/null", "/dev/zero", "/etc/passwd", "/", ".", "..", "a/../b", "x" * 5000, "=", "==", ",", "1,2", "a,b",
    "naive", "mig", "tiny", "script", "S", "[S,M]", "[S,X]", "*", "?", "%s", "{output_dir}", "{job", "0x10", "1_000",
    "9" * 30, "\t", "none", "None", "???", "-", "--", "--help", "@", "#", "!", "range(1,3)", "choice(1,2)", "glob(*)",
    "interval(0,1)", "shuffle(1,2)",
)  # fmt: skip
_WORDS = ("-m", "--", "-", "+", "~scenario", "~listeners.smi", "+experiment=robroek_quick", "+rehearse=tiny", "mix=[S]")


def attack(bench: Bench, random: Random) -> Outcome:
    """Plan a random command line."""
    words = [_word(random) for _ in range(random.randint(1, 3))]
    places = [f"gpu.lock_dir={bench.folder / 'locks'}", f"tracking.root={bench.folder / 'nothing'}"]
    before = sorted(bench.folder.iterdir())
    done = forks.run(PROJECT_DIR / "run.py", *places, "dry_run=true", *words, cwd=bench.folder, timeout=120)
    outcome = Outcome(f"a command line of {len(words)} words, exit status {done.returncode}")
    said = f"{words}: {done.stderr[-1500:]}"
    if done.returncode not in (0, 2):
        outcome.problems.append(f"exit status {done.returncode} for {said}")
    if "Traceback" in done.stderr:
        outcome.problems.append(f"a traceback for {said}")
    if done.returncode == 2 and "error: " not in done.stderr:
        outcome.problems.append(f"no error in words for {said}")
    if sorted(bench.folder.iterdir()) != before:
        outcome.problems.append(f"something was written for {words}")
    return outcome


def _word(random: Random) -> str:
    if random.random() < 0.15:
        return random.choice(_WORDS)
    key = random.choice([*_KEYS, *_GROUPS, "nothing", "workload.nothing", "sizes.S.batch_size", "hydra.mode", ""])
    key = key.replace("NAME", random.choice(("nvml", "X")))
    if random.random() < 0.1:
        at = random.randrange(len(key) + 1)
        key = key[:at] + random.choice("._-@/ é") + key[at:]
    return f"{random.choice(('', '', '', '+', '++', '~'))}{key}={random.choice(_VALUES)}"
