"""The page about a user's own script: its commands run, and say what it quotes."""

from __future__ import annotations

import re
import shlex
import shutil

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from tests.conftest import TOYS

pytest_plugins = ["tests.support.tracking_fixtures", "tests.support.run_fixtures"]
pytestmark = pytest.mark.covers("docs/your_own_script.md")
PAGE = (PROJECT_DIR / "docs/your_own_script.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(text|sh)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def is_said(quoted: str, text: str) -> bool:
    """Whether a line of the page stands in a text, its `...` for anything."""
    return re.search(".*".join(map(re.escape, quoted.strip().split("..."))), text) is not None


@pytest.mark.torch
@pytest.mark.slow
def test_the_commands_of_the_page_say_what_it_quotes(run, tmp_path):
    shutil.copy(TOYS / "plain_torch.py", tmp_path / "train.py")
    printed, statuses = "", []
    for kind, block in BLOCKS:
        if kind == "text":
            for line in block.splitlines():
                assert is_said(line, printed), line
            continue
        for command in re.findall(r"^python run\.py (.*)$", block.replace("\\\n", ""), re.MULTILINE):
            if "torchrun" in command or "accelerate" in command:
                continue  # test_docs_commands plans them; test_jobs has their ports
            status, out, err = run(*shlex.split(command))
            statuses.append(status)
            printed = out + err
            assert ("changed while" in printed) == (len(statuses) == 1), command
            assert ("samples/s" in out) == ("metric_pattern" in command), command
            assert ("speed-up" in out) == ("degree=2" in command or "mix=[{" in command), command
            assert ("naive-1x-train-batch-size=16" in out) == ("flags" in command), out
    assert statuses == [0, 0, 0, 0, 0, 1]
    assert len(list((tmp_path / "mlruns/artifacts").rglob("output/model.pt"))) == 1 + 2 + 3 + 4 + 1
