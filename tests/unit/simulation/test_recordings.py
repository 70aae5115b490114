"""Every recording of the real H100 is replayed against the simulated driver: this says where, and that none is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import DATA

_SMI, _MPS = "test_simulation_smi", "test_mps_control"
_SESSION = (_MPS, "test_the_recorded_session_word_for_word")
REPLAYED = {
    **dict.fromkeys(
        (f"h100/mig_{name}.txt" for name in ("lci", "lcip", "lcipp", "lgi", "lgip", "lgip_i0", "lgip_i9", "lgipp")),
        (_SMI, "test_a_recorded_command_answers_as_recorded"),
    ),
    "h100/apps_mps.txt": (_SMI, "test_a_recorded_command_answers_as_recorded"),
    "h100/query_bad.txt": (_SMI, "test_a_recorded_command_answers_as_recorded"),
    "h100/query_i9.txt": (_SMI, "test_a_recorded_command_answers_as_recorded"),
    "h100/smi_L.txt": (_SMI, "test_a_recorded_command_answers_as_recorded"),
    "h100/smi_after.txt": (_SMI, "test_a_recorded_command_answers_as_recorded"),
    "h100/query.txt": (_SMI, "test_a_query_is_the_recorded_one_and_invents_no_reading"),
    "h100/query_nounits.txt": (_SMI, "test_a_query_is_the_recorded_one_and_invents_no_reading"),
    "h100/query_loop.txt": (_SMI, "test_a_loop_is_the_recorded_one_and_invents_no_reading"),
    "h100/smi.txt": (_SMI, "test_the_overview_is_the_recorded_one_but_for_readings"),
    "h100/smi_mps.txt": (_SMI, "test_the_overview_is_the_recorded_one_but_for_readings"),
    "h100/nvml_mps.txt": ("test_simulation_nvml", "test_profiles_are_the_recorded_ones"),
    **dict.fromkeys(
        (
            f"h100_mps/{name}.txt"
            for name in (
                *("no_daemon", "start", "start_again", "servers_empty", "servers", "status", "clients", "devclients"),
                *("ps", "bad", "bad_pid", "pct", "get_pct", "pct_bad", "query", "files", "after_kill"),
                *("status_after_kill", "clients_end", "quit", "files_after"),
            )
        ),
        _SESSION,
    ),
    "h100_mps/control_log.txt": (_MPS, "test_the_logs_say_nothing_that_the_recorded_ones_do_not"),
    "h100_mps/server_log.txt": (_MPS, "test_the_logs_say_nothing_that_the_recorded_ones_do_not"),
}


def test_no_recording_is_left_without_a_test() -> None:
    assert {str(path.relative_to(DATA)) for path in DATA.glob("h100*/*")} == REPLAYED.keys()


@pytest.mark.parametrize("recording", REPLAYED)
def test_the_test_that_replays_a_recording_is_there_and_names_it(recording: str) -> None:
    module_name, function = REPLAYED[recording]
    (path,) = Path(__file__).parent.rglob(f"{module_name}.py")
    text = path.read_text()
    assert f"\ndef {function}(" in text
    assert Path(recording).stem.removesuffix("_log") in text
