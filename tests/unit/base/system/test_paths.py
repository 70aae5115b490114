"""Files that a user names."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import expand_path, find_file, is_file


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("absent", "=absent does not exist in /"),
        ("/absent/x", "=/absent/x does not exist; check the name"),
        (".", "set it to a file"),
    ],
)
def test_what_is_no_file_is_refused(path, words):
    assert not is_file(Path(path))
    with pytest.raises(ConfigError, match=words):
        find_file("workload.script", path)


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000])
def test_a_name_that_no_file_can_have_is_refused(name):
    assert not is_file(Path(name))
    for use in (expand_path, find_file):
        with pytest.raises(ConfigError, match="is too long for a path"):
            use("data.root", name)
