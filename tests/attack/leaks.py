"""Secrets of all forms in what a study is given and does: none is printed, nor in its store or spool afterwards."""

from __future__ import annotations

import os
import shutil
import string
import subprocess
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from random import Random

from tests.attack.bench import PATIENT, Bench, Outcome
from tests.support import secret_forms

_TAILS = (
    "no access with password={}",
    "https://me:{}@h/x is not there",
    "401 for Authorization: Bearer {}",
    "--token {} was refused",
)
"""The last words of a program that fails."""
_FLAGS = ("admin_password", "access-key", "service_token", "signing_secret")
_LETTERS = string.ascii_letters + string.digits
_SCRIPT = """
import os, sys
from helper import *
store = os.path.join(os.environ["MLFLOW_TRACKING_URI"].removeprefix("file://"), "0/run")
for kind in ("params", "tags"):
    os.makedirs(os.path.join(store, kind))
    open(os.path.join(store, kind, "api_key"), "w").write({backwards!r}[::-1])
open(os.path.join(store, "meta.yaml"), "w").write("run_id: run\\nstart_time: 1\\n")
{code}
if {fails}:
    sys.exit({tail!r} + " " + os.environ.get({variable!r}, ""))
"""
_NOT_MASKED = ("stdout.log", "stderr.log")


class _Secrets:
    """Makes secrets that no other text has, and remembers where each was."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.places: dict[str, str] = {}

    def fill(self, form: str) -> str:
        """Return a form with a secret in it."""
        return self.fill_all([form])[0]

    def fill_all(self, words: Sequence[str]) -> list[str]:
        """Return the words of one form with a secret in them."""
        secret = f"S3cr{''.join(self._random.choices(_LETTERS, k=14))}7zQ"
        self.places[secret] = " ".join(words)
        return [word.format(secret, secret) for word in words]

    def assign(self, names: Sequence[str], place: str, most: int) -> dict[str, str]:
        """Return some of these names, each with a secret."""
        return {
            name: self.fill_all([f"{place} {name} {{}}"])[0].split()[-1] for name in self._random.sample(names, most)
        }

    def take_token(self) -> str:
        """Return one that its form gives away, whatever stands beside it."""
        token = self._random.choice(secret_forms.KNOWN_BY_FORM)
        self.places[token] = "a token of a known form"
        return token


def attack(bench: Bench, random: Random) -> Outcome:
    """Run a script with half of the forms, which fails or does not; look for each secret afterwards."""
    number, secrets = random.getrandbits(32), _Secrets(random)
    folder, root = bench.folder / f"leaks-{number:08x}", bench.folder / f"leaks-{number:08x}-store"
    folder.mkdir()
    fails = random.random() < 0.5
    study = _write_study(folder, secrets, random, fails=fails)
    bench.environ = secrets.assign(secret_forms.VARIABLES, "in the environment", 10)
    process = bench.start(*study, *PATIENT, "scenario=naive", "baseline=never", "dry_run=false", root=root)
    bench.environ = {}
    outcome = Outcome("of a script that fails" if fails else "of a script", num_inputs=len(secrets.places))
    outcome.problems += bench.end(process)
    if process.returncode != int(fails):
        outcome.problems.append(f"the status is {process.returncode}: {bench.printed[-1500:]}{bench.errors[-1500:]}")
    outcome.problems += bench.problems_after(root)
    outcome.problems += _find_all(secrets, bench.printed + bench.errors, root)
    shutil.rmtree(root, ignore_errors=True)  # there is none if it was refused
    shutil.rmtree(folder)
    return outcome


def _write_study(folder: Path, secrets: _Secrets, random: Random, *, fails: bool) -> list[str]:
    """Write the program of a study; return the overrides of the study."""
    forms = random.sample(secret_forms.WORDS, len(secret_forms.WORDS) // 2)
    words = list(chain.from_iterable((*secrets.fill_all(form), "--lr=1") for form in forms))
    words += [secrets.take_token(), f"--name=x:{secrets.take_token()}"]
    variables = secrets.assign(secret_forms.VARIABLES, "workload.environ", 10)
    flags = secrets.assign(_FLAGS, "workload.flags", 2)
    source = {
        "backwards": secrets.fill("logged as api_key: {}").split()[-1][::-1],
        "code": "\n".join(_fill_code(secrets, random)),
        "fails": fails,
        "tail": secrets.fill(random.choice(_TAILS)),
        "variable": random.choice(list(variables)),
    }
    script = _write_program(folder, secrets, random, _SCRIPT.format(**source))
    study = [
        "workload=script",
        f"workload.script={script}",
        f"workload.args={secret_forms.format_for_hydra(words)}",
        "degree=1",
    ]
    study += [f"+workload.environ.{name}='{value}'" for name, value in variables.items()]
    return study + [f"+workload.flags.{name}='{value}'" for name, value in flags.items()]


def _fill_code(secrets: _Secrets, random: Random) -> Iterator[str]:
    """Yield half of the lines of code that hold a secret."""
    yield "import argparse, os\nparser = argparse.ArgumentParser()"
    yield from map(secrets.fill, random.sample(secret_forms.IN_CODE, len(secret_forms.IN_CODE) // 2))


def _find_all(secrets: _Secrets, output: str, root: Path) -> Iterator[str]:
    """Name the forms whose secrets were printed, or are in the store."""
    for secret, place in secrets.places.items():
        if secret in output:
            yield f"printed: {place}"
        if files := _find(secret, root):
            yield f"in {', '.join(files)}: {place}"


def _write_program(folder: Path, secrets: _Secrets, random: Random, source: str) -> Path:
    """Write a script and its module into a repository of git, both with changes that are not committed."""
    script, helper = folder / "train.py", folder / "helper.py"
    script.write_text("import os\n")
    helper.write_text("import os\n")
    if random.random() < 0.7:
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
        for command in (["init", "-q"], ["add", script.name, helper.name], ["commit", "-qm", "a"]):
            subprocess.run([*git, *command], cwd=folder, check=True, env=os.environ | {"HOME": str(folder)})
    script.write_text(source)
    helper.write_text("\n".join((*_fill_code(secrets, random), "")))
    return script


def _find(secret: str, root: Path) -> list[str]:
    """Name the files that hold a text: by another process, as ours would lose the locks of the store."""
    without = [f"--exclude={name}" for name in _NOT_MASKED]
    argv = ["grep", "-rlaF", *without, "-e", secret, str(root)]
    lines = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines()
    return sorted({Path(path).name for path in lines})
