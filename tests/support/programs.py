"""Programs that play others: executable scripts, written where a test needs them."""

from __future__ import annotations

from pathlib import Path


def write_script(path: Path, script: str = "", interpreter: str = "/bin/sh") -> Path:
    """Write an executable script, in a folder that is created if it does not exist; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{interpreter}\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path
