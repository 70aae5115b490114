"""Record what a command prints on a terminal, as a picture for the pages.

    python -m benchmarks.record_terminal --output docs/images/NAME.svg python run.py degree=2 -- train.py --epochs 3

The command runs in a pseudo-terminal, with the programs of this interpreter's environment first. The picture has the
lines as they stand at the end: of a progress line that was rewritten, the last state.
"""

from __future__ import annotations

import argparse
import io
import os
import pty
import re
import shlex
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROWS = 50
_PART = re.compile(r"\x1b\[(?P<arguments>[?\d;]*)(?P<code>[A-Za-z])|\x1b\][^\x07]*\x07|(?P<text>[^\x1b\r\n]+)|[\r\n]")
_FONT_FILE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""A font that a picture on a page may not load; the rules after it name `monospace` too."""


def run_on_terminal(command: Sequence[str], folder: Path, columns: int) -> tuple[str, int]:
    """Run the command on a terminal of its own; return what it wrote, and its exit status."""
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (ROWS, columns))
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": programs, "TERM": "xterm-256color", "COLUMNS": str(columns)}
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=folder, env=environment, start_new_session=True
    )
    os.close(terminal)
    written = b"".join(_read(controller))
    os.close(controller)
    return written.decode(errors="replace"), process.wait()


def _read(controller: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(controller, 65536)
        except OSError:  # Linux reports the end of the last process on the terminal as an error
            return
        if not data:
            return
        yield data


def list_lines(written: str) -> list[str]:
    """Return the lines that stand on the terminal at the end, with their colours.

    The cursor is followed as far as progress lines and live tables move it: to the begin of its line, and up. A text at
    the begin of a line replaces this line.
    """
    lines, row, is_at_begin = [""], 0, True
    for part in _PART.finditer(written):
        if part["text"] or part["code"] == "m":
            lines[row] = part[0] if is_at_begin else lines[row] + part[0]
            is_at_begin = False
        elif part["code"] == "A":
            row = max(0, row - int(part["arguments"] or 1))
        elif part["code"] == "K":
            lines[row] = ""
        elif part[0] == "\r":
            is_at_begin = True
        elif part[0] == "\n":
            row, is_at_begin = row + 1, True
            if row == len(lines):
                lines.append("")
    while lines and not Text.from_ansi(lines[-1]).plain.strip():
        lines.pop()
    return lines


def draw(command: Sequence[str], lines: Sequence[str], columns: int, title: str) -> str:
    """Return a terminal window with the command and its lines, as SVG without external fonts."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    prompt = Text.assemble(("$ ", "bold green"), (shlex.join(command), "bold"))
    for text in (prompt, *map(Text.from_ansi, lines)):
        for line in text.divide(range(columns, len(text), columns)):
            console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False)
    return _FONT_FILE.sub("", console.export_svg(title=title, unique_id="terminal"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", "-o", type=Path, required=True, help="the picture, an SVG file")
    parser.add_argument("--columns", type=int, default=80, help="width of the terminal (80)")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="working directory of the command")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command with its arguments")
    options = parser.parse_args(arguments)
    if not options.command:
        parser.error("no command to record; add one, such as python run.py degree=2 -- train.py")
    begin_s = time.monotonic()
    written, status = run_on_terminal(options.command, options.folder, options.columns)
    title = f"recorded in {time.monotonic() - begin_s:.0f} s"
    options.output.write_text(draw(options.command, list_lines(written), options.columns, title), encoding="utf-8")
    sys.exit(status)


if __name__ == "__main__":
    main()
