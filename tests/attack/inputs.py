"""Command lines, files and environments that nobody would make: each is planned, or refused in a line with status 2.

Nothing is written.
"""

from __future__ import annotations

import os
import re
import string
from pathlib import Path
from random import Random

from pipeline.base.system.paths import PROJECT_DIR
from tests.attack.bench import Bench, Outcome
from tests.support import forks

_AT_ONCE = 20
_PAGE = (PROJECT_DIR / "docs/configuration.md").read_text(encoding="utf-8")
_KEYS = re.findall(r"^\| `([\w.]+)` \|", _PAGE, re.MULTILINE)
_GROUPS = [path.name for path in (PROJECT_DIR / "conf").iterdir() if path.is_dir()]
_FILES = sorted(path for path in (PROJECT_DIR / "conf").rglob("*.yaml") if path.parent.name != "conf")
_LONG = "x" * 5000
_VALUES = (
    "", "null", "true", "0", "-1", "1", "2", "1e400", "nan", "inf", "-inf", "1e3", "[]", "[1,2]", "[[]]", "{}",
    "{a: 1}", "{a:1}", "'", '"', "a b", "é", "\\", "$HOME", "${workload.name}", "${nothing}", "${.}", "~", "~/x",
    "/dev/null", "/dev/zero", "/etc/passwd", "/", ".", "..", "a/../b", _LONG, "=", "==", ",", "1,2", "a,b",
    "naive", "mig", "tiny", "script", "S", "[S,M]", "[S,X]", "*", "?", "%s", "{output_dir}", "{job", "0x10", "1_000",
    "9" * 30, "\t", "none", "None", "???", "-", "--", "--help", "@", "#", "!", "range(1,3)", "choice(1,2)", "glob(*)",
    "interval(0,1)", "shuffle(1,2)",
)  # fmt: skip
_WORDS = ("-m", "--", "-", "+", "~scenario", "~listeners.smi", "+experiment=robroek_quick", "+rehearse=tiny", "mix=[S]")
_COMMANDS = {
    "pipeline.report": ("--experiment", "--root", "--uri", "--group", "--no-log"),
    "pipeline.timeline": ("--experiment", "--root", "--uri"),
    "pipeline.tracking": ("flush", "relocate", "--root", "--uri", "--from", "--series-points"),
    "pipeline.gpu": ("status", "profiles", "partitions", "--gpu", "--machine", "--lock-dir", "--json"),
}
"""Without what writes where it is told to, which would be anywhere on this machine."""
_VARIABLES = (
    "HOME", "TMPDIR", "PATH", "LANG", "LC_ALL", "COLUMNS", "TERM", "NO_COLOR", "XDG_CACHE_HOME", "USER",
    "CUDA_VISIBLE_DEVICES", "MLFLOW_TRACKING_URI", "HYDRA_FULL_ERROR", "PYTHONPATH", "PYTHONHASHSEED", "CONDA_PREFIX",
)  # fmt: skip


def attack(bench: Bench, random: Random) -> Outcome:
    """Some made-up inputs of one kind."""
    kind = random.choices((_command_line, _file, _environment, _other_command), (6, 2, 1, 1))[0]
    outcome = Outcome(f"of {kind.__name__.strip('_').replace('_', ' ')}s")
    for _ in range(_AT_ONCE):
        kind(bench, random, outcome)
        outcome.num_inputs += 1
    return outcome


def _command_line(bench: Bench, random: Random, outcome: Outcome) -> None:
    _plan(bench, outcome, [_word(random) for _ in range(random.randint(1, 3))])


def _environment(bench: Bench, random: Random, outcome: Outcome) -> None:
    # As an entry of Python's own path, that is read without end, by Python.
    values = [value for value in _VALUES if value != "/dev/zero"]
    environ = {name: random.choice(values) for name in random.sample(_VARIABLES, random.randint(1, 3))}
    if "TMPDIR" in environ:
        environ["TMPDIR"] = random.choice(("/nonexistent", "/dev/null", str(bench.folder), "relative"))
    _plan(bench, outcome, ["scenario=naive", "degree=2"], environ)


def _file(bench: Bench, random: Random, outcome: Outcome) -> None:
    """One of the project's YAMLs, changed, as a user's own."""
    chosen = random.choice(_FILES)
    group = chosen.parent.relative_to(PROJECT_DIR / "conf")
    place = bench.folder / "own" / group
    place.mkdir(parents=True, exist_ok=True)
    path = place / "attacked.yaml"
    path.write_bytes(_changed(chosen.read_bytes(), random))
    mark = "+" if str(group) in ("experiment", "rehearse") else ""
    _plan(bench, outcome, ["--config-dir", str(bench.folder / "own"), f"{mark}{group}=attacked"], file=path)
    path.unlink()


def _changed(content: bytes, random: Random) -> bytes:
    how = random.randrange(5)
    if how == 0:  # some bytes
        changed = bytearray(content)
        for _ in range(random.randint(1, 5)):
            changed[random.randrange(len(changed))] = random.randrange(256)
        return bytes(changed)
    lines = content.decode().splitlines()
    at = random.randrange(len(lines))
    if how == 1:
        del lines[at]
    elif how == 2:
        lines.insert(at, "".join(random.choices(string.printable, k=random.randint(1, 30))))
    elif how == 3:
        lines[at] = lines[at].partition(":")[0] + ": " + random.choice(_VALUES)
    else:
        lines = lines[:at]
    return "\n".join(lines).encode()


def _other_command(bench: Bench, random: Random, outcome: Outcome) -> None:
    module = random.choice(sorted(_COMMANDS))
    values = [value for value in _VALUES if not value.startswith(("/", ".", "~", "a/.."))]
    words = [random.choice((*_COMMANDS[module], random.choice(values))) for _ in range(random.randint(1, 4))]
    place = bench.folder / "commands"
    place.mkdir(exist_ok=True)
    before = sorted(bench.folder.iterdir())
    done = forks.run("-m", module, *words, cwd=place, env=os.environ | {"PYTHONPATH": str(PROJECT_DIR)}, timeout=300)
    _judge(outcome, done.returncode, done.stderr, f"{module} {words}", {0, 1, 2})
    if sorted(bench.folder.iterdir()) != before:
        outcome.problems.append(f"something was written elsewhere by {module} {words}")


def _plan(
    bench: Bench, outcome: Outcome, words: list[str], environ: dict[str, str] | None = None, file: Path | None = None
) -> None:
    """Have a study planned, and look."""
    places = [f"gpu.lock_dir={bench.folder / 'locks'}", f"tracking.root={bench.folder / 'nothing'}"]
    before = sorted(bench.folder.iterdir())
    words = [word for word in words if not word.startswith("~dry_run")]  # else the study is run, as it was asked for
    argv = [PROJECT_DIR / "run.py", *places, "dry_run=true", *words]
    done = forks.run(*argv, cwd=bench.folder, env=os.environ | (environ or {}), timeout=300)
    description = f"{words}{f' with {environ}' if environ else ''}{f' and {file.read_bytes()!r}' if file else ''}"
    _judge(outcome, done.returncode, done.stderr, description, {0, 2})
    if done.returncode == 2 and "error: " not in done.stderr:
        outcome.problems.append(f"no error in words for {description}: {done.stderr[-1500:]}")
    if sorted(bench.folder.iterdir()) != before:
        outcome.problems.append(f"something was written for {description}")


def _judge(outcome: Outcome, status: int, err: str, description: str, allowed: set[int]) -> None:
    err, description = (text.replace(_LONG, "x...") for text in (err, description))
    if status not in allowed:
        outcome.problems.append(f"exit status {status} for {description}: {err[-1500:]}")
    if "Traceback" in err:
        outcome.problems.append(f"a traceback for {description}: {err[-1500:]}")


def _word(random: Random) -> str:
    if random.random() < 0.15:
        return random.choice(_WORDS)
    key = random.choice([*_KEYS, *_GROUPS, "nothing", "workload.nothing", "sizes.S.batch_size", "hydra.mode", ""])
    key = key.replace("NAME", random.choice(("nvml", "X")))
    if random.random() < 0.1:
        at = random.randrange(len(key) + 1)
        key = key[:at] + random.choice("._-@/ é") + key[at:]
    return f"{random.choice(('', '', '', '+', '++', '~'))}{key}={random.choice(_VALUES)}"
