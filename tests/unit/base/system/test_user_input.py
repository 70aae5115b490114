"""Commands, command lines and files as a user spells them, and the refusals of each in one line."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.base.domain.layout import DATABASE
from pipeline.base.system import entry_points, locks, paths
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR, expand_path, find_file, is_file
from pipeline.base.system.words import natural_key
from pipeline.launch.environ import inherit_environ
from pipeline.record import owner
from pipeline.record.invocation import Invocation, spell_resume_command
from pipeline.record.spool import Spool
from pipeline.record.store import local_store

_RUN = entry_points.RUN


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["pairs", "--driver-branch", "abc"], "--driver-branch: 'abc' is not a whole number; write a whole number"),
        (["compare", "s.yaml", "--profile", "p", "--load", "much"], "--load: 'much' is not a number; write a number"),
        (["draw", "plan.json"], "the following arguments are required: --out; see PLANNER draw --help"),
        (["pairs", "--nope"], "unrecognized arguments: --nope; see PLANNER --help"),
        (["serv"], "COMMAND: 'serv' is unknown; did you mean serve?"),
        (["pairs", "--device"], "--device: expected one argument; see PLANNER pairs --help"),
    ],
)
def test_a_wrong_command_line_is_one_line_with_a_remedy(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipeline.planner.__main__ import main

    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"error: {line.replace('PLANNER', entry_points.spell('planner'))}\n")


def test_an_unknown_command_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    from pipeline.planner.__main__ import COMMANDS, main

    with pytest.raises(SystemExit):
        main(["nope"])
    assert capsys.readouterr().err == f"error: COMMAND: 'nope' is unknown; choose from {', '.join(COMMANDS)}\n"


@pytest.mark.parametrize(
    "name", [name for name in entry_points.PROGRAMS if name not in (_RUN, entry_points.ADVISE, entry_points.PACK)]
)
def test_every_command_refuses_in_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(entry_points.module_of(name))
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{module.__name__}.__main__")
    with pytest.raises(SystemExit) as ended:
        module.make_parser().parse_args(["--unknown-option"])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and re.fullmatch(r"error: [^\n;]+; [^\n]+\n", error)


def test_no_command_has_a_parser_that_prints_its_usage() -> None:
    files = [path for path in (PROJECT_DIR / "pipeline").rglob("*.py") if path.name != "command_parser.py"]
    assert [path for path in files if re.search(r"= argparse\.ArgumentParser\(", path.read_text("utf-8"))] == []


TYPED = ["/site/gpu_collocation/run.py", "degree=2", "--", "train.py", "resume=false"]


@pytest.fixture
def command_folder(monkeypatch, tmp_path):
    monkeypatch.setenv(entry_points.VARIABLE, "1")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    entry_points._command.cache_clear()
    yield tmp_path / "bin"
    entry_points._command.cache_clear()


def test_a_clone_has_run_py_and_modules():
    assert entry_points.spell("run", "mix=[S,M]", "a b") == "python run.py 'mix=[S,M]' 'a b'"
    assert entry_points.spell("gpu", "clean") == "python -m pipeline.gpu clean"


def test_another_interpreter_than_that_on_the_path_is_named(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/x/python")
    assert entry_points.spell("schema") == "/x/python -m pipeline.plan.json_schema"


def test_a_search_is_continued_by_the_command_that_began_it(monkeypatch):
    monkeypatch.setenv(entry_points.VARIABLE, "1")
    words = ["run.py", "+experiment=advise", "advise_minutes=5", "--", "t.py", "advise_minutes=5"]
    assert spell_resume_command(words).endswith("collocate advise --minutes=5 resume=true -- t.py advise_minutes=5")


def test_elsewhere_a_clone_is_named_by_its_path(tmp_path, monkeypatch):
    clone = tmp_path / "a clone"
    clone.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(entry_points, "PROJECT_DIR", clone)
    assert entry_points.spell("run", "degree=2") == f"python '{clone}/run.py' degree=2"
    assert entry_points.spell("schema") == f"python '{clone}/collocate.py' schema"
    assert owner.spell_close_command(tmp_path).endswith(
        f"'{clone}/collocate.py' tracking flush --root {tmp_path} --close-lost"
    )
    assert spell_resume_command(["run.py", "degree=2"]).endswith(f"'{clone}/run.py' degree=2 resume=true")
    monkeypatch.chdir(clone)
    assert entry_points.spell("gpu", "clean") == "python -m pipeline.gpu clean"
    clone.rmdir()
    assert entry_points.spell("gpu") == f"python '{clone}/collocate.py' gpu"


def test_the_command_has_one_name(command_folder):
    assert entry_points.spell("run", "-m", "degree=1,2") == "collocate run -m degree=1,2"
    assert entry_points.spell("tracking", "flush") == "collocate tracking flush"


def test_a_command_that_is_not_on_the_path_is_spelled_by_its_path(command_folder, monkeypatch, tmp_path):
    command_folder.mkdir()
    program = command_folder / "collocate"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert entry_points.spell("gpu") == f"{program} gpu"
    entry_points._command.cache_clear()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/collocate").symlink_to(program)  # as pipx and uv do
    assert entry_points.spell("gpu") == "collocate gpu"


def test_what_resumes_a_study_is_spelled_so_too(command_folder):
    command_folder.mkdir()
    assert spell_resume_command(TYPED) == "collocate run degree=2 resume=true -- train.py resume=false"
    assert Invocation(words=TYPED).masked_command == "collocate run degree=2 -- train.py resume=false"


@pytest.mark.parametrize(
    ("recorded", "start"),
    [
        (["collocate", "run", "degree=2"], ["collocate", "run"]),
        (["/venv/bin/collocate", "run", "degree=2"], ["/venv/bin/collocate", "run"]),
        (["run.py", "degree=2"], ["run.py"]),
        (["collocate"], ["collocate"]),
        ([], []),
    ],
)
def test_the_start_of_a_recorded_command_line_is_known(recorded, start):
    assert entry_points.divide(recorded) == (start, recorded[len(start) :])


def test_a_study_of_the_command_can_be_resumed_from_a_clone(monkeypatch):
    recorded = ["collocate", "run", "degree=2", "shard=1"]
    assert spell_resume_command(recorded) == "collocate run degree=2 shard=1 resume=true"


def test_jobs_do_not_inherit_how_the_study_was_started(monkeypatch):
    monkeypatch.setenv(entry_points.VARIABLE, "1")
    assert entry_points.VARIABLE not in inherit_environ()


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


def test_numbers_within_texts_are_in_their_order() -> None:
    names = ["a bs128", "a bs16", "a bs8", "a", "b 2.5", "b 2.25", "10", "9"]
    assert sorted(names, key=natural_key) == ["9", "10", "a", "a bs8", "a bs16", "a bs128", "b 2.5", "b 2.25"]


def list_untracked(repository: Path) -> str:
    command = ["git", "-C", str(repository), "status", "--porcelain", "--untracked-files=all"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_folder_that_is_made_is_none_of_the_repository_around_it(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    root = tmp_path / "results" / "mlruns"
    paths.make_root(root)
    (root / DATABASE).touch()
    assert list_untracked(tmp_path) == ""
    (root / ".gitignore").write_text("changed by its owner\n")
    paths.make_root(root)
    assert (root / ".gitignore").read_text() == "changed by its owner\n"


def test_a_folder_that_was_there_is_left_as_it_is(tmp_path: Path) -> None:
    """It may be the user's own project, or this one's mlruns/ with its .gitkeep."""
    (tmp_path / ".gitkeep").touch()
    paths.make_root(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".gitkeep"]
    with pytest.raises(FileExistsError):
        paths.make_root(tmp_path / ".gitkeep")


def test_whoever_needs_the_folder_first_makes_it(
    tmp_path: Path, template_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Spool(tmp_path / "spooled", None, {}, {})  # type: ignore[arg-type]
    monkeypatch.setattr(local_store, "_prepare", lambda root, **_: shutil.copy(template_store / DATABASE, root))
    local_store.open_store(tmp_path / "opened")
    assert all((tmp_path / name / ".gitignore").exists() for name in ("spooled", "opened"))


@pytest.mark.parametrize(("first", "second", "both"), [(True, True, True), (True, False, False), (False, True, False)])
def test_sharers_exclude_who_wants_it_alone(tmp_path: Path, first: bool, second: bool, both: bool) -> None:
    one, other = locks.open_file(tmp_path / "lock"), locks.open_file(tmp_path / "lock")
    assert locks.try_take(one, is_shared=first)
    assert locks.try_take(other, is_shared=second) == both
    locks.drop(one)
    assert locks.try_take(other, is_shared=second)
    os.close(one)
    os.close(other)


@pytest.mark.parametrize("is_passed_on", [True, False])
def test_a_child_holds_what_is_passed_on_and_nothing_else(tmp_path: Path, is_passed_on: bool) -> None:
    lock = locks.open_file(tmp_path / "lock")
    locks.take(lock)
    argv = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=[lock] if is_passed_on else []) as child:
        os.close(lock)
        other = locks.open_file(tmp_path / "lock")
        assert locks.try_take(other) != is_passed_on
        child.communicate()
    assert locks.try_take(other)
    os.close(other)


def test_it_is_free_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), locks.hold_lock(tmp_path / "lock"):
        other = locks.open_file(tmp_path / "lock")
        assert not locks.try_take(other)
        raise RuntimeError
    assert locks.try_take(other)
    os.close(other)
