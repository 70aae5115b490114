"""`python -m pipeline.planner draw`: pictures of plans, transitions and comparisons, as SVG and PDF."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.errors import ConfigError
from pipeline.planner import deployment, input_files
from pipeline.planner.pictures import gpu_picture, load_picture, transition_picture
from pipeline.planner.transition import transition_steps
from pipeline.report.figures.drawing import Sketch, draw


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the files and the folder of the pictures."""
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="a plan (drawn by slices), the steps of a transition (a timeline), or the output of `compare --json` "
        "(GPUs by load)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder for FILE.svg, FILE.pdf, and FILE-column.pdf in a column's width",
    )


def answer(arguments: argparse.Namespace) -> CommandAnswer:
    """Draw all pictures, then write them."""
    names = [re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem) for path in arguments.files]
    if len(set(names)) < len(names):
        raise ConfigError(f"two files would be drawn as {max(names, key=names.count)}.svg; draw one file at a time")
    sketched = [_sketch(path, name) for path, name in zip(arguments.files, names, strict=True)]
    drawn = [
        draw(sketch, name, is_simulated=is_simulated, has_columns=True)
        for (sketch, is_simulated), name in zip(sketched, names, strict=True)
    ]
    rows = []
    for drawing in drawn:
        contents = {".svg": drawing.svg.encode(), ".pdf": drawing.pdf, "-column.pdf": drawing.column_pdf}
        files = {arguments.out / f"{drawing.name}{suffix}": content for suffix, content in contents.items() if content}
        try:
            arguments.out.mkdir(parents=True, exist_ok=True)
            for path, content in files.items():
                path.write_bytes(content)
        except OSError as error:
            raise ConfigError(
                f"--out {arguments.out}: cannot be written: {error.strerror}; name a writable folder"
            ) from error
        rows.append({"files": list(map(str, files)), "title": drawing.sketch.title, "caption": drawing.sketch.caption})
    text = "\n\n".join(f"{' '.join(row['files'])}\n{row['title']}. {row['caption']}" for row in rows)
    return CommandAnswer(data={"pictures": rows}, text=text)


def _sketch(path: Path, name: str) -> tuple[Sketch, bool]:
    content = input_files.read_json(path)
    if "steps" in content:
        transition = transition_steps.read(path)
        return transition_picture.sketch(transition, name), transition.is_simulated
    if "loads" in content:
        return load_picture.sketch(load_picture.read(content, str(path)), name), content.get("is_simulated") is True
    if "gpus" in content:
        plan = deployment.from_json(content, str(path))
        return gpu_picture.sketch(plan, name), plan.is_simulated
    raise ConfigError(f"{path}: has nothing to draw; name a plan, a transition or the output of compare --json")
