"""Programs as forks behave as programs that were started."""

from __future__ import annotations

import signal

from tests.support import forks


def test_a_script_that_is_interrupted_before_its_first_lines_shows_nothing(tmp_path):
    (tmp_path / "early.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = forks.run(tmp_path / "early.py")
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
