"""Option classes are loaded by their names."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

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
