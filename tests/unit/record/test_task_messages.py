"""Which line of the output of a Slurm task says how it ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.record.shards import task_messages

HELD = "error: CPU (CPU-n0) is in use by another study of bob (pid 7, started in /home/bob)"
WAITS = "waiting for CPU (CPU-n0), which is held by bob (pid 7); at most 40 s, Ctrl-C ends it"
TRACEBACK = """Traceback (most recent call last):
  File "run.py", line 6, in <module>
    import torch
ModuleNotFoundError: No module named 'torch\'"""


def write_log(folder: Path, *lines: str) -> Path:
    path = task_messages.locate(folder, "8_3")
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([HELD, "2 groups: 2 not finished"], HELD),
        ([TRACEBACK], "ModuleNotFoundError: No module named 'torch'"),
        ([HELD, f"{task_messages.START}2 of shard 3 on n1", TRACEBACK], "ModuleNotFoundError: No module named 'torch'"),
        (["[1/2] a", "KeyboardInterrupt"], "KeyboardInterrupt"),
        (
            ["slurmstepd: error: *** JOB 5 ON n0 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***", "bye"],
            "slurmstepd: error: *** JOB 5 ON n0 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
        ),
        (["slurmstepd: error: *** JOB 5 ***", "interrupted by SIGTERM"], "interrupted by SIGTERM"),
        (["/var/spool/job5/slurm_script: line 9: module: not found"], "batch script: line 9: module: not found"),
        (["time_limit_s=40 is over", "2 groups: 1 not finished"], "time_limit_s=40 is over"),
        (["Fatal Python error: Segmentation fault", "", "  File x"], "Fatal Python error: Segmentation fault"),
        (["", "[1/2] naive\x1b[0m", ""], "no error in its output, which ends with: [1/2] naive [0m"),
        (["error: no server at http://bob:secret@h:1"], "error: no server at http://<hidden>@h:1"),
        ([f"error: {'x' * 1000}"], f"error: {'x' * 293}..."),
    ],
)
def test_the_last_error_of_the_last_start_says_how_a_task_ended(lines, error, tmp_path) -> None:
    assert task_messages.read_last_error(write_log(tmp_path, *lines)) == error


def test_of_much_output_the_end_is_read_and_what_cannot_be_read_says_nothing(tmp_path) -> None:
    path = write_log(tmp_path, "error: long ago", *(["x" * 100] * 1000), HELD)
    assert task_messages.read_last_error(path) == HELD
    path.write_bytes(b"\xff\rerror: a bar: 50%\rerror: \xfe\r")
    assert task_messages.read_last_error(path) == "error: �"
    assert task_messages.read_last_error(tmp_path / "absent.log") == task_messages.read_last_error(tmp_path) == ""


def test_a_task_waits_while_that_is_the_last_that_it_wrote(tmp_path) -> None:
    assert task_messages.read_awaited(write_log(tmp_path, "x", WAITS)) == "CPU (CPU-n0), which is held by bob (pid 7)"
    assert task_messages.read_awaited(write_log(tmp_path, WAITS, "[1/2] a")) == ""
    assert task_messages.read_awaited(tmp_path / "absent.log") == ""
