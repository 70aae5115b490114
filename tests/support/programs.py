"""Programs that play others, and repositories of programs."""

from __future__ import annotations

import subprocess
from pathlib import Path


def write_script(path: Path, script: str = "", interpreter: str = "/bin/sh") -> Path:
    """Write an executable script, in a folder that is created if it does not exist; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{interpreter}\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def run_git(folder: Path, *arguments: str) -> str:
    """Run git as an author that the machine need not know; return its output."""
    command = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def commit_all(folder: Path, *files: str) -> str:
    """Make a folder a repository with one commit of these files, by default of all; return the commit."""
    run_git(folder, "init", "-q")
    run_git(folder, "add", *(files or (".",)))
    run_git(folder, "commit", "-qm", "first")
    return run_git(folder, "rev-parse", "HEAD").strip()
