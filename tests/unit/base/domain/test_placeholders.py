"""Placeholders in arguments: what is filled in, and what is none."""

from __future__ import annotations

import pytest

from pipeline.base.domain import placeholders
from pipeline.base.system.errors import ConfigError

VALUES = {"output_dir": "/out put", "job": 1, "degree": 3}


@pytest.mark.parametrize(
    ("argument", "filled"),
    [
        ("--out={output_dir}/x", "--out=/out put/x"),
        ("{job}of{degree}", "1of3"),
        ("{{job}}-{{epoch}}", "{job}-{epoch}"),
        ('{"a": 1}', '{"a": 1}'),
        ("{epoch:02d} {} ${HOME} {0}", "{epoch:02d} {} ${HOME} {0}"),
    ],
)
def test_placeholders_are_filled_in_and_other_braces_left(argument, filled):
    placeholders.refuse_unknown("train", [argument])
    assert placeholders.fill(argument, VALUES) == filled


def test_a_placeholder_that_does_not_exist_is_refused_by_name():
    with pytest.raises(
        ConfigError, match=r"--out=\{outdir\}: \{outdir\} is not a placeholder.*\{output_dir\}.*\{\{outdir\}\}"
    ):
        placeholders.refuse_unknown("train", ["--fine={job}", "--out={outdir}"])
