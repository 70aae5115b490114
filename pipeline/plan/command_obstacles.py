"""Programs in a user's command line that keep the job's device, its variables or the times of its output from a job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_MOST_BYTES = 1 << 16
GPU, OUTPUT, ALWAYS = "gpu", "output", "always"
"""Conditions under which an obstacle matters: the job uses a GPU, its rate is read from its output, or none."""

_DOCKER = r"(?:^|[\s;&|/(])(?:docker|podman|nerdctl)(?=\s)[^\n;&|]*\s(?:run|exec|up)\s"
_APPTAINER = r"(?:^|[\s;&|/(])(?:apptainer|singularity)(?=\s)[^\n;&|]*\s(?:exec|run|shell)\s"
_OTHERWISE = "or use env=apptainer env.image=FILE.sif and the command in the image"
_OBSTACLES = (
    (
        GPU,
        rf"\A(?!.*CUDA_VISIBLE_DEVICES).*{_DOCKER}",
        "the container does not get the job's device nor its MPS server; write a shell script with docker run "
        "--ipc=host --user $(id -u) --gpus device=$CUDA_VISIBLE_DEVICES (podman: --device nvidia.com/gpu=...) "
        f"-e CUDA_MPS_PIPE_DIRECTORY -v $CUDA_MPS_PIPE_DIRECTORY:$CUDA_MPS_PIPE_DIRECTORY ..., {_OTHERWISE}",
    ),
    (
        ALWAYS,
        _DOCKER,
        "processes in its container are not the job's: their CPU time and memory are not measured, and a killed study "
        "does not end them",
    ),
    (GPU, rf"\A(?!.*--nv).*{_APPTAINER}", f"the container does not get the job's device; add --nv, {_OTHERWISE}"),
    (
        GPU,
        rf"{_APPTAINER}[^\n]*--(?:cleanenv|containall)",
        "--cleanenv and --containall clear the variables with the job's device and MPS server; remove the option",
    ),
    (
        GPU,
        r"(?:^|[\s;&|/(])srun\s",
        "srun starts a step of Slurm, outside of the job and on a GPU that Slurm chooses; leave srun out, or start the "
        "study by hydra/launcher=slurm",
    ),
    (
        OUTPUT,
        r"\A(?!.*(?:--no-capture-output|--live-stream)).*(?:^|[\s;&|/(])(?:conda|mamba)\s+run\s",
        "conda run prints the output at its end, so its rates have no times; add --no-capture-output, or use "
        "env=existing env.prefix=PREFIX without conda run",
    ),
)


def find_obstacles(script: str, args: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield condition and text of each obstacle in a command line, and in the shell scripts that it names."""
    words = [script, *args]
    text = "\n".join([" ".join(words), *map(_read_shell_script, words), ""])
    for condition, pattern, obstacle in _OBSTACLES:
        if re.search(pattern, text, re.DOTALL):
            yield condition, obstacle


def _read_shell_script(word: str) -> str:
    """Read a shell script without comments and line breaks within commands; empty for any other word."""
    try:
        with Path(word).open(encoding="utf-8") as file:
            text = file.read(_MOST_BYTES)
    except (OSError, ValueError):
        return ""
    is_shell = word.endswith(".sh") or re.match(r"#!.*sh\b", text)
    return re.sub(r"(?m)^\s*#.*|\\\n", " ", text) if is_shell else ""
