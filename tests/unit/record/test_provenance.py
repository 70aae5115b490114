"""Where a row comes from, without what nobody else may know."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.base.domain.workload import Workload
from pipeline.base.system import git
from pipeline.base.system.factory import Spec
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan.source_digest import read_code
from pipeline.record import invocation, provenance
from pipeline.record.group_record import name_script_artifacts


def test_the_command_line_is_recorded_without_passwords(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run.py", "degree=2", "tracking.uri=https://me:s3cret@mlflow.example.org/x"])
    facts = provenance.collect({}, invocation.get_current())
    assert facts["command_line"] == "run.py degree=2 'tracking.uri=https://<hidden>@mlflow.example.org/x'"


def test_the_commit_around_an_installed_package_is_not_that_of_the_project(monkeypatch):
    assert "git_commit" in provenance.collect({}, invocation.get_current()) or git.read(PROJECT_DIR) is None
    monkeypatch.setattr(provenance, "PROJECT_DIR", PROJECT_DIR / "pipeline")
    assert "git_commit" not in provenance.collect({}, invocation.get_current())


def test_a_worker_records_the_command_line_that_its_launcher_was_given_and_hands_it_to_no_job(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run.py", "degree=2", "shard=3"])
    monkeypatch.setattr(invocation, "_current", None)
    monkeypatch.setenv(invocation.STUDY, "run.py degree=2 hydra/launcher=slurm")
    monkeypatch.setenv(invocation.TASK, "cluster/12_3")
    invocation.begin()
    assert {invocation.STUDY, invocation.TASK}.isdisjoint(os.environ)
    facts = provenance.collect({}, invocation.get_current())
    assert facts["command_line"] == "run.py degree=2 hydra/launcher=slurm"
    assert facts["slurm_task"] == "cluster/12_3"


@pytest.mark.parametrize("handed", [None, "", "it's"])
def test_what_no_launcher_hands_over_is_nothing(monkeypatch, handed):
    monkeypatch.setattr(sys, "argv", ["run.py", "degree=2"])
    monkeypatch.setattr(invocation, "_current", None)
    if handed is not None:
        monkeypatch.setenv(invocation.STUDY, handed)
    invocation.begin()
    facts = provenance.collect({}, invocation.get_current())
    assert facts["command_line"] == "run.py degree=2" and "slurm_task" not in facts


def test_the_machine_is_recorded():
    facts = provenance.collect({}, invocation.get_current())
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    assert int(facts["memory_mib"]) == pytest.approx(int(lines["MemTotal"].split()[0]) / 1024, rel=0.01)
    assert facts["cpu_model"] and facts["os"]
    assert all(int(facts[name]) >= 1 for name in ("cpu_sockets", "numa_nodes") if name in facts)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.py").write_text("import model, fresh\n")
    (folder / "model.py").write_text("WIDTH = 1\n")
    run(folder, "git", "init", "-q")
    run(folder, "git", "add", ".")
    run(folder, "git", "-c", "user.name=me", "-c", "user.email=me@example.org", "commit", "-qm", "first")
    return folder


def run(folder: Path, *argv: str) -> str:
    return subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True).stdout


def origin(folder: Path) -> provenance.Origin:
    code = read_code(folder / "train.py", PROJECT_DIR)
    return provenance.find_origin(
        Workload(
            name="train",
            script=str(code.path),
            argv=(),
            ends_by_itself=True,
            env=Spec(target=""),
            digest="",
            sources=(*code.sources, *read_code(PROJECT_DIR / "workloads/script.py", PROJECT_DIR).sources),
        )
    )


def test_a_clean_repository_is_told_by_its_commit(repository, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(PROJECT_DIR / ".git"))  # as a hook of git has it
    program_origin = origin(repository)
    monkeypatch.delenv("GIT_DIR")
    assert program_origin.facts["program_commit"] == run(repository, "git", "rev-parse", "HEAD").strip()
    assert program_origin.facts["program_changed"] == "false" and program_origin.uncommitted == ()


def test_what_no_commit_tells_can_be_applied_to_the_commit(repository, tmp_path):
    commit = run(repository, "git", "rev-parse", "HEAD").strip()
    (repository / ".gitignore").write_text("fresh.py\n")
    (repository / "model.py").write_text("WIDTH = 2\nURL = 'https://me:s3cret@example.org'\n")
    (repository / "fresh.py").write_text("import model\nNEW = True")
    ends = "A = '\f \u2028'\r\nB = 1\n".encode()
    (repository / "ends.py").write_bytes(ends)
    (repository / "notes.txt").write_text("not of the program")
    (tmp_path / "elsewhere.py").write_text("TOKEN = 's3cret'\n")
    (repository / "linked.py").symlink_to(tmp_path / "elsewhere.py")
    (repository / "train.py").write_text("import model, fresh, linked, ends\n")
    index = (repository / ".git/index").read_bytes()
    program_origin = origin(repository)
    assert (repository / ".git/index").read_bytes() == index
    assert (program_origin.facts["program_commit"], program_origin.facts["program_changed"]) == (commit, "true")
    text = provenance.join_uncommitted([program_origin, program_origin])
    assert "s3cret" not in text and "notes" not in text and text.count("+WIDTH = 2") == 1
    run(tmp_path, "git", "clone", "-q", str(repository), "clone")
    (tmp_path / "diff").write_text(text)
    run(tmp_path / "clone", "git", "apply", str(tmp_path / "diff"))
    assert (tmp_path / "clone/fresh.py").read_text() == "import model\nNEW = True"
    assert (tmp_path / "clone/ends.py").read_bytes() == ends
    assert (tmp_path / "clone/train.py").read_text() == (repository / "train.py").read_text()


def test_a_repository_that_would_run_programs_runs_none(repository):
    for key in ("diff.external", "core.fsmonitor", "diff.x.textconv"):
        run(repository, "git", "config", key, f"touch {repository}/ran; false")
    (repository / ".gitattributes").write_text("*.py diff=x\n")
    (repository / "model.py").write_text("WIDTH = 2\n")
    assert "+WIDTH = 2" in provenance.join_uncommitted([origin(repository)])
    assert not (repository / "ran").exists()


def test_bytes_that_are_no_text_are_told_of(repository):
    (repository / "model.py").write_bytes(b"WIDTH = '\xe9'\n")
    assert "# bytes that are not UTF-8 are replaced by \ufffd\n" in provenance.join_uncommitted([origin(repository)])


def test_the_artifacts_of_scripts_have_names_that_a_disk_takes():
    long = "x" * 246 + ".py"
    script_artifacts = name_script_artifacts(["a/t.py", f"a/{long}", f"a/y{long}", "a/t.py", "b/u.py"])
    assert script_artifacts["a/t.py"] == "script-t.py" and script_artifacts["b/u.py"] == "script-u.py"
    assert len(set(script_artifacts.values())) == 4 and script_artifacts[f"a/{long}"].startswith("script-1-x")
    assert all(len(name) <= 255 and name.endswith(".py") for name in script_artifacts.values())


def test_modules_of_a_script_without_a_repository_are_kept(tmp_path):
    (tmp_path / "train.py").write_text("import model\n")
    (tmp_path / "model.py").write_text("WIDTH = 1\n")
    if git.find_root(tmp_path) is not None:
        pytest.skip("temporary folders lie in a repository here")
    program_origin = origin(tmp_path)
    assert program_origin.facts == {} and "+WIDTH = 1" in provenance.join_uncommitted([program_origin])
    assert "import model" not in provenance.join_uncommitted([program_origin]), "the script is an artifact of its own"


def test_what_is_too_long_is_cut_and_says_so(repository, monkeypatch):
    monkeypatch.setattr(provenance, "_MOST_BYTES", 200)
    (repository / "model.py").write_text("WIDTH = 2\n" * 100)
    text = provenance.join_uncommitted([origin(repository)])
    assert len(text) < 260 and "# cut: the first 200 of " in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_repository_of_somebody_else_is_not_asked(repository, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (repository, *repository.rglob("*")):
        os.chown(path, 12345, 12345)
    assert git.read(repository) is None
