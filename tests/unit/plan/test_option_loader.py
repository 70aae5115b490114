"""Option classes are loaded by their names."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import option_loader


def test_options_are_unpickled_where_their_class_was_not_loaded():
    options = option_loader.load("workloads.images.options.Tiny")(batch_size=7)
    code = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).batch_size)"
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(options), capture_output=True, cwd=PROJECT_DIR, check=True
    )
    assert done.stdout == b"7\n"


def test_other_names_are_not_there():
    with pytest.raises(AttributeError):
        option_loader.nothing  # noqa: B018


@dataclass
class WithOldName:
    """An option class that was written for an earlier version."""

    unit = "numbers"


def test_an_attribute_of_an_earlier_version_is_refused_with_its_name_of_today() -> None:
    with pytest.raises(ConfigError, match=r"WithOldName: unit was renamed; write work_unit$"):
        option_loader.load(f"{__name__}.WithOldName")
