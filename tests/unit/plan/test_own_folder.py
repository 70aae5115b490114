"""Choices in a folder of `--config-dir` are known to help texts, JSON schemas and the completion of shells."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from pipeline.base.system.paths import PROJECT_DIR, config_folders
from pipeline.plan import help_text as explained
from pipeline.plan import json_schema

OPTIONS = """
from dataclasses import dataclass
from workloads.options import option

@dataclass(kw_only=True)
class Primes:
    "Count primes."
    limit: int = option(20000, least=2, help="numbers to try")
"""
YAML = "defaults: [/schema/own_primes.Primes@_here_, _self_]\nlimit: 50000\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_primes.py").write_text(OPTIONS)
    (tmp_path / "conf/workload").mkdir(parents=True)
    (tmp_path / "conf/workload/primes.yaml").write_text(YAML)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["run.py", "--config-dir", "conf"])
    return tmp_path


def schema_of(capsys, kind):
    assert json_schema.main([kind, "--config-dir", "conf"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_schema_of_workloads_takes_the_keys_of_ones_own(folder, capsys):
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(schema_of(capsys, "workload"))
    content = {"defaults": ["/schema/own_primes.Primes@_here_", "_self_"], "limit": 50000}
    assert list(validator.iter_errors(content)) == []
    assert [error.path[0] for error in validator.iter_errors(content | {"limit": [1]})] == ["limit", "limit"]


def test_the_schema_of_experiments_takes_them_in_blocks(folder, capsys):
    jsonschema = pytest.importorskip("jsonschema")
    made = schema_of(capsys, "experiment")
    experiment = {"workload": {"limit": 5}, "blocks": [{"workload": "primes", "workload.limit": "5,7"}]}
    assert list(jsonschema.Draft202012Validator(made).iter_errors(experiment)) == []
    block = made["properties"]["blocks"]["items"]["properties"]
    assert "primes" in block["workload"]["examples"]


def test_the_schema_needs_the_class_and_the_folder(folder, capsys):
    (folder / "conf/workload/other.yaml").write_text("defaults: [/schema/own_nothing.Other@_here_]\n")
    assert json_schema.main(["workload"]) == 2
    assert capsys.readouterr().err.startswith("error: /schema/own_nothing.Other is not a class that can be imported")
    assert json_schema.main(["--config-dir", "nosuch"]) == 2
    assert "--config-dir nosuch does not exist" in capsys.readouterr().err


def test_help_lists_the_choices_and_what_they_set(folder):
    assert ", primes, " in " ".join(explained.format_overview().split())
    assert "workload.limit  (int; default: 20000, 50000 in primes)\n" in explained.format_keys("workload.limit")
    (folder / "conf/workload/primes.yaml").write_text(f"{YAML}  - wrong: [\n")
    with pytest.raises(explained.ConfigError, match=r"primes\.yaml is not a YAML map"):
        explained.format_keys("workload.limit")


@pytest.mark.parametrize("words", [["-cd", "a"], ["--config-dir", "a"], ["--config-dir=a"], ["-cd=a"]])
def test_the_folder_is_an_option_of_ours_alone(words):
    assert [path.name for path in config_folders([*words, "--", "train.py", "--config-dir", "b"])] == ["conf", "a"]


@pytest.mark.slow
def test_a_shell_completes_them(folder):
    environ = {**os.environ, "PYTHONPATH": str(folder), "COMP_LINE": "python run.py --config-dir conf workload=pri"}
    argv = [sys.executable, PROJECT_DIR / "run.py", "-sc", "query=bash"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("workload=primes\n", "")
