"""A real H100 answers as the one that was recorded, with which the simulated one is compared."""

from __future__ import annotations

import shutil

import pytest

from pipeline.base.system.helper_program import run
from tests.support.recordings import IDLE, masked, recording

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", IDLE)
def test_a_real_h100_still_answers_as_recorded(name: str) -> None:
    program = shutil.which("nvidia-smi")
    devices = run([program, "-L"], timeout_s=60).stdout.splitlines() if program else []
    if program is None or len(devices) != 1 or "NVIDIA H100 80GB HBM3" not in devices[0]:
        pytest.skip("this machine has not one H100 80GB HBM3, as the one that was recorded")
    arguments, text, status = recording(name)
    answer = run([program, *arguments], timeout_s=60, check=False)
    assert (answer.status, masked(answer.stdout + answer.stderr)) == (status, masked(text))
