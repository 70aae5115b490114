"""Programs in a user's command line that keep the job's device, its variables or the times of its output from a job."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

_MOST_BYTES = 1 << 16
_START = r"(?:^|[\s;&|/(])"
_DOCKER = rf"{_START}(?:docker|podman|nerdctl)\s[^\n;&|]*(?<=\s)(?:run|exec)\s"
_APPTAINER = rf"{_START}(?:apptainer|singularity)\s[^\n;&|]*(?<=\s)(?:exec|run|shell)\s"
_REMEDY = "or use env=apptainer env.image=FILE.sif and the command in the image (docs/your_own_script.md)"
_ON_GPU = {
    rf"\A(?!.*CUDA_VISIBLE_DEVICES).*{_DOCKER}": "the container gets neither the job's device nor its MPS server; use "
    "a shell script with --gpus device=$CUDA_VISIBLE_DEVICES --ipc=host --user $(id -u) -e CUDA_MPS_PIPE_DIRECTORY "
    f"-v $CUDA_MPS_PIPE_DIRECTORY:$CUDA_MPS_PIPE_DIRECTORY, {_REMEDY}",
    rf"\A(?!.*--nv).*{_APPTAINER}": f"the container does not get the job's device; add --nv, {_REMEDY}",
    rf"{_APPTAINER}(?:[^\n]*--(?:cleanenv|containall)|(?:-\S+\s+)*-c?[eC]\s)": "--cleanenv (-e) and --containall (-C) "
    "clear the variables with the job's device and MPS server; remove the option",
    rf"{_START}srun\s": "srun starts a step of Slurm, outside of the job and on a GPU that Slurm chooses; leave srun "
    "out, or start the study by hydra/launcher=slurm",
}
_IN_OUTPUT = {
    rf"\A(?!.*(?:--no-capture-output|--live-stream)).*{_START}(?:conda|mamba)\s+run\s": "conda run prints the output "
    "at its end, so its rates have no times; add --no-capture-output, or use env=existing env.prefix=PREFIX",
}


def find_obstacle(script: str, args: Iterable[str], *, is_on_gpu: bool, reads_output: bool) -> str | None:
    """Explain the first obstacle in a command line or in the shell scripts that it names; `None` without one."""
    words = [script, *args]
    # A word with spaces is a text, such as a note, unless a shell runs it.
    pairs = itertools.pairwise(["-c", *words])
    command = " ".join(word for option, word in pairs if " " not in word or re.fullmatch(r"-\w*c", option))
    text = "\n".join([command, *map(_read_shell_script, words), ""])
    obstacles = (_ON_GPU if is_on_gpu else {}) | (_IN_OUTPUT if reads_output else {})
    return next((why for pattern, why in obstacles.items() if re.search(pattern, text, re.DOTALL)), None)


def _read_shell_script(word: str) -> str:
    """Read a shell script without comments and line breaks within commands; empty for any other word."""
    try:
        if not Path(word).is_file():  # reading a pipe would wait for a writer
            return ""
        with Path(word).open(encoding="utf-8") as file:
            text = file.read(_MOST_BYTES)
    except (OSError, ValueError):
        return ""
    is_shell = word.endswith(".sh") or re.match(r"#!.*sh\b", text)
    return re.sub(r"(?m)(?:^|\s)#.*|\\\n", " ", text) if is_shell else ""
