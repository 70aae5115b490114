"""HYDRA_FULL_ERROR is set while Hydra composes, and what the user gave is what a study's children get."""

from __future__ import annotations

import os

import pytest

from pipeline.plan import command_line


@pytest.mark.parametrize("given", [None, "", "0", "1"])
def test_children_get_what_the_user_gave(monkeypatch, given):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    if given is not None:
        monkeypatch.setenv("HYDRA_FULL_ERROR", given)
    with pytest.raises(KeyError), command_line.raise_errors():
        assert os.environ["HYDRA_FULL_ERROR"] == "1"
        assert command_line.is_traceback_wanted() == (given == "1")
        with command_line.restore_environment():
            assert os.environ.get("HYDRA_FULL_ERROR") == given
        assert os.environ["HYDRA_FULL_ERROR"] == "1"
        raise KeyError
    assert os.environ.get("HYDRA_FULL_ERROR") == given
    assert command_line.is_traceback_wanted() == (given == "1")
    with command_line.restore_environment():  # as in a worker, which composes nothing
        assert os.environ.get("HYDRA_FULL_ERROR") == given
