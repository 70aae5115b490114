"""A study with secrets in many places: none is in the store, and a script that was kept without its own is not run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.run_cases import groups

pytest_plugins = ["tests.support.tracking_fixtures", "tests.support.run_fixtures"]
pytestmark = pytest.mark.covers("pipeline/base/system/secrets.py")

SCRIPT = """\
import os, sys
from helper import KEY
API_KEY = "s3cr3t-script"
assert [len(API_KEY), len(KEY["api_key"]), len(os.environ["HF_TOKEN"]), len(sys.argv[2])] == [13, 13, 12, 11]
if "fail" in sys.argv:
    sys.exit(f"no access for {os.environ['HF_TOKEN']}, password={sys.argv[2]}; https://me:s3cr3t-tail@h/x")
"""
SECRETS = (
    *("environ.HF_TOKEN=s3cr3t-token", "environ.URL='https://h/?sig=s3cr3t-sig&v=1'", "flags.db_password=s3cr3t-flag"),
    "environ.DSN='Server=h;Password=s3cr3t-dsn'",
)
WORDS = ("--password", "s3cr3t-word", "-H", "Authorization: Bearer s3cr3t-header", "ghp_" + "s3cr3T" * 6)


def git(folder: Path, *command: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *command], cwd=folder, check=True)


@pytest.mark.slow
def test_no_secret_is_in_the_store_nor_said(run, client, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (tmp_path / "helper.py").write_text('KEY = {"api_key": "s3cr3t-helper"}\n')
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "-qm", "a")
    script.write_text(SCRIPT.replace('"s3cr3t-script"', '"s3cr3t-edited"'))
    arguments = ["degree=1", "gpu=cpu", *(f"+workload.{secret}" for secret in SECRETS)]
    status, out, err = run(*arguments, "--", "train.py", *WORDS, "fail")
    assert status == 1
    assert "s3cr3t" not in (out + err).lower()
    assert "no access for <hidden>, password=<hidden>; https://<hidden>@h/x" in out
    assert "to run it: " in err and "(with your own values for <hidden>)" in err
    # By another process: one that closes a file of sqlite loses the locks of its own connections to it.
    store = ["grep", "-rlEi", "--exclude=stderr.log", "s3cr3t", str(tmp_path / "mlruns")]
    assert subprocess.run(store, capture_output=True, text=True).stdout == ""
    ((group, (job,)),) = groups(client)
    assert group.data.tags["collocation.reason"].count("<hidden>") == 3
    assert job.data.params["environ.URL"] == "https://h/?sig=<hidden>&v=1"
    assert job.data.params["environ.DSN"] == "Server=h;Password=<hidden>"


@pytest.mark.slow
def test_a_script_that_was_kept_without_its_secrets_is_not_run(run, client, tmp_path):
    script, code = tmp_path / "train.py", 'password = "s3cr3t-script"\nassert len(password) == 13\n'
    script.write_text(code)
    assert run("degree=1", "--", "train.py")[0] == 0
    ((group, _),) = groups(client)
    again = f"reproduce={group.info.run_id}"
    status, _, err = run(again, "dry_run=true")
    assert status == 0 and f"script-train.py was recorded without its secrets; {script} runs instead" in err
    (stored_script,) = tmp_path.glob("mlruns/artifacts/**/script-train.py")
    assert stored_script.read_text() == code.replace("s3cr3t-script", "<hidden>")
    script.write_text(stored_script.read_text())
    status, _, err = run(again)
    assert status == 2 and err.count("\n") == 1
    assert f"{script} contains <hidden> in place of its secrets" in err
    script.write_text(f"{code}# changed\n")
    status, _, err = run(again, "dry_run=true")
    assert status == 0 and "the original is artifact script-train.py, without its secrets" in err
