"""A program begins well whatever its starter did to its streams, its warnings and its working directory."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import pytest

from pipeline.base.system import startup
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.launch.environ import inherit_environ

BEGINS = "import os, sys; from pipeline.base.system import startup; startup.begin()\n"


def run(code: str, redirected: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run code behind redirections of a shell, whose own streams are pipes."""
    argv = ["sh", "-c", f'exec "$0" -c "$1" {redirected}', sys.executable, code]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, env=os.environ | environ, cwd=PROJECT_DIR)


@pytest.mark.parametrize("redirected", [">&-", "2>&-", "<&-", "<&- >&- 2>&-", ">/dev/full", ">/dev/full 2>/dev/full"])
def test_streams_that_cannot_be_used_fail_nothing_and_no_file_takes_their_place(redirected, tmp_path):
    code = BEGINS + (
        f"kept = open({str(tmp_path / 'kept')!r}, 'w')\n"
        "print('said', flush=True); print('complained', file=sys.stderr); sys.stdin.read()\n"
        "os.system('echo child; echo child >&2')\n"
        "sys.exit(40 + (kept.fileno() > 2))"
    )
    done = run(code, redirected)
    assert (done.returncode, (tmp_path / "kept").read_text()) == (41, ""), done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_output_without_a_reader_is_lost_in_silence_and_what_is_started_has_none_either():
    code = BEGINS + (
        "reads, writes = os.pipe(); os.close(reads); os.dup2(writes, 1)\n"
        "print('x' * 100_000); sys.exit(startup.check_output(os.system('echo child')))"
    )
    done = run(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("code", "usual", "status"), [("0", 0, 1), ("sys.exit(0)", 0, 1), ("2", 2, 2), ("sys.exit(3)", 3, 3)]
)
def test_output_that_cannot_be_written_is_said_once_and_is_a_failure_of_what_it_is_the_result_of(code, usual, status):
    main = "import sys; from pipeline.base.system import startup\n"
    main += f"def main():\n    print('x' * 100_000)\n    return {code}\n"
    done = run(f"{main}startup.run(main)", ">/dev/full")
    assert done.returncode == status
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"
    assert run(f"{main}startup.run(main)").returncode == usual


def test_output_that_another_program_has_made_non_blocking_arrives_whole():
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETFL, os.O_NONBLOCK)
    code = BEGINS + "print('x' * 1_000_000)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=writes, stderr=subprocess.PIPE, cwd=PROJECT_DIR
    ) as child:
        os.close(writes)
        with os.fdopen(reads, "rb") as file:
            assert len(file.read()) == 1_000_001
        assert child.wait(30) == 0, child.stderr.read()


def test_what_an_encoding_has_no_sign_for_is_shown_in_another_way():
    done = run(BEGINS + r"print('\u00b5', '\udce9'); print('\u00b5', file=sys.stderr)", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\xb5 \\udce9\n", "\\xb5\n")


def test_warnings_of_libraries_are_no_errors_here_and_the_variable_is_for_the_jobs():
    code = BEGINS + (
        "import warnings; warnings.warn('old', DeprecationWarning); warnings.warn('shown')\n"
        "from pipeline.launch.environ import inherit_environ\n"
        "print(os.environ.get('PYTHONWARNINGS'), inherit_environ()['PYTHONWARNINGS'])"
    )
    done = run(code, PYTHONWARNINGS="error")
    assert (done.returncode, done.stdout) == (0, "None error\n"), done.stderr
    assert "DeprecationWarning: old" not in done.stderr and "UserWarning: shown" in done.stderr
    assert run(f"import warnings; warnings.simplefilter('error')\n{BEGINS}warnings.warn('shown')").returncode == 0


def test_a_job_is_given_no_variable_that_was_not_there(monkeypatch):
    monkeypatch.setattr(startup, "job_variables", {})
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)
    assert "PYTHONWARNINGS" not in inherit_environ()


def test_without_a_working_directory_a_program_ends_with_one_line(tmp_path):
    code = f"import sys; sys.path.insert(0, {str(PROJECT_DIR)!r})\n{BEGINS}"
    gone = tmp_path / "gone"
    gone.mkdir()
    argv = ["sh", "-c", 'rmdir "$PWD"; exec "$0" -c "$1"', sys.executable, code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=gone)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: the working directory cannot be used: No such file")
