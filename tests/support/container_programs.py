"""A program that plays Apptainer, and its images."""

from __future__ import annotations

import sys
from pathlib import Path

# Apptainer starts the command as a child process, with the PATH of the image, and refuses a folder that does not exist.
# Unlike Apptainer, it fails for a folder that no --bind names; sites may switch off Apptainer's own binds.
APPTAINER = """#!{python}
import argparse, json, os, subprocess, sys
from pathlib import Path
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("action", choices=["exec"])
parser.add_argument("--nv", action="store_true", required=True)
parser.add_argument("--bind", action="append", default=[])
parser.add_argument("--pwd", required=True)
parser.add_argument("image")
parser.add_argument("command", nargs=argparse.REMAINDER)
args = parser.parse_args()
binds = [Path(folder) for folder in args.bind]
lines = Path(args.image).read_text().splitlines()
needed = [Path(args.pwd), *(Path(word) for word in args.command if word.startswith("/"))]
if "COLLOCATION_JOB" in os.environ:
    job = Path(os.environ["COLLOCATION_JOB"])
    needed += [job, Path(json.loads((job / "job.json").read_text())["socket"])]
for path in [*binds, *needed]:
    if not path.exists() or not any(path.is_relative_to(folder) for folder in binds):
        sys.exit(f"FATAL:   {{path}} is not in the container")
os.environ["PATH"] = lines[0]
sys.exit(subprocess.call(args.command, cwd=args.pwd))
"""


def write_apptainer(folder: Path) -> None:
    """Write the program `apptainer` into a folder."""
    program = folder / "apptainer"
    program.write_text(APPTAINER.format(python=sys.executable))
    program.chmod(0o755)


def write_image(path: Path) -> None:
    """Write an image; its text is the PATH in it."""
    path.write_text(f"{Path(sys.executable).parent}:/usr/bin:/bin\n")
