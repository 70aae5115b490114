"""What is told of the logs of an MPS daemon, on logs of public reports and on recorded ones."""

from __future__ import annotations

from pathlib import Path

from pipeline.prepare.mps.logs import MpsLogs
from tests.conftest import DATA

REPORT = DATA / "mps_control"
RECORDED = DATA / "h100_mps"


def make_logs(folder: Path, control: Path | None = None, server: Path | None = None) -> MpsLogs:
    for name, source in (("control.log", control), ("server.log", server)):
        if source is not None:
            (folder / name).write_bytes(source.read_bytes())
    return MpsLogs(folder=folder)


def test_a_server_that_exits_is_told_with_the_lines_that_say_why(tmp_path: Path) -> None:
    control, server = REPORT / "mps_control_server_exits_1.log", REPORT / "mps_server_failed_to_start.log"
    logs = make_logs(tmp_path, control, server)
    assert logs.has_server_ended()
    assert not logs.is_server_ready(95)
    assert logs.explain() == (
        "; server.log: Failed to start : invalid argument"
        "; control.log: Server encountered a fatal exception. Shutting down / Server 95 exited with status 1"
    )


def test_a_recorded_start_is_ready_and_questions_explain_nothing(tmp_path: Path) -> None:
    control = (RECORDED / "control_log.txt").read_text()
    before_quit = control.partition("Try shutting down server")[0]
    (tmp_path / "control.log").write_text(before_quit)
    logs = MpsLogs(folder=tmp_path)
    assert logs.is_server_ready(577)
    assert not logs.is_server_ready(57)
    assert not logs.has_server_ended()
    assert "UI closed" not in logs.explain()
    assert "credentials" not in logs.explain()


def test_logs_that_are_not_there_explain_nothing(tmp_path: Path) -> None:
    logs = MpsLogs(folder=tmp_path / "gone")
    assert (logs.explain(), logs.has_server_ended(), logs.is_server_ready(1)) == ("", False, False)
