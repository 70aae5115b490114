"""The command, as it is built into a package: which files it has, and that it finds them wherever the user is."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from pipeline.base.system import entry_points
from pipeline.base.system.paths import PROJECT_DIR

FOLDERS = ("pipeline", "listeners", "workloads", "hydra_plugins", "conf")
MAIN = "import sys; sys.path.insert(1, sys.argv.pop(1)); from gpu_collocation.collocate import main; main()"

OWN_PROGRAM = """
import shutil, sys
from dataclasses import dataclass
shutil.rmtree("gpu_collocation")
from gpu_collocation.workloads import program
from gpu_collocation.workloads.options import option

@dataclass(kw_only=True)
class Own:
    limit: int = option(3, least=2, help="of numbers")

program.run_program(Own, lambda args, job: print(args.limit))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder that holds the package, as site-packages would."""
    if importlib.util.find_spec("setuptools") is None:  # to import it would show its own packages to other tests
        pytest.skip("there is no setuptools")
    folder = tmp_path_factory.mktemp("site")
    argv = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(folder)]
    subprocess.run(argv, cwd=PROJECT_DIR, check=True, capture_output=True)
    return folder


@pytest.fixture
def user_dir(tmp_path):
    """A folder with packages of the user's that have the names of ours."""
    for name in (*FOLDERS, "mlflow", "gpu_collocation"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the user\\'s package was imported')\n")
    return tmp_path


def collocate(site, folder, *words, **environ):
    """Run the command as if its script stood beside this interpreter, in a directory that is on PATH."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"PATH": path} | environ
    argv = [sys.executable, "-P", "-c", MAIN, str(site), *words]
    return subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, timeout=120)


def test_the_package_has_all_that_runs_and_nothing_stands_beside_it(site):
    assert [path.name for path in site.iterdir()] == ["gpu_collocation"]
    package = site / "gpu_collocation"
    built = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    needed = {
        str(path.relative_to(PROJECT_DIR))
        for name in FOLDERS
        for path in (PROJECT_DIR / name).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert needed <= built
    unexpected_files = {path for path in built - needed if path.partition("/")[0] in {*FOLDERS, "tests", "benchmarks"}}
    assert unexpected_files == set()
    assert {"run.py", "collocate.py", "docs/configuration.md"} <= built
    assert "setup.py" not in built


QUICK = {"run", "gpu"}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in entry_points.PROGRAMS]
)
def test_programs_are_ours_and_named_as_they_were_started(site, user_dir, name):
    done = collocate(site, user_dir, name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: collocate {name} " in done.stdout
    assert "python " not in done.stdout


def test_a_clone_is_used_from_elsewhere_by_its_path(user_dir):
    program = PROJECT_DIR / "collocate.py"
    done = subprocess.run([sys.executable, program, "schema", "--help"], cwd=user_dir, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "".join(done.stdout.split()).startswith(f"usage:python{program}schema[-h]")


def test_a_program_that_is_not_there_is_refused_in_one_line(site, user_dir):
    done = collocate(site, user_dir, "runn")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: collocate has no program runn; did you mean run? Or choose one of run, advise, pack, report, "
    )
    assert done.stderr.count("\n") == 1
    done = collocate(site, user_dir, "train.py", "--epochs", "3")
    assert done.returncode == 2
    assert done.stderr == (
        "error: put a program before train.py: collocate advise -- train.py --epochs 3, or run -- train.py --epochs 3\n"
    )


@pytest.mark.slow
def test_what_is_wrong_on_the_command_line_is_said_in_its_words(site, user_dir):
    done = collocate(site, user_dir, "run", "limits=3")
    assert done.returncode == 2
    assert done.stderr.endswith("limits.NAME=VALUE (collocate run --help-keys limits lists the names)\n")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("line", "proposals"),
    [
        ("collocate re", ["report"]),
        ("collocate gpu st", ["status"]),
        ("collocate completion z", ["zsh"]),
        ("collocate run scenario=mps_s", ["scenario=mps_static"]),
        ("collocate run degree=2 -- tr", ["train.py"]),
        ("collocate nothing x", []),
    ],
)
def test_the_shell_gets_proposals(site, user_dir, line, proposals):
    if importlib.util.find_spec("argcomplete") is None:
        pytest.skip("argcomplete is not installed")
    (user_dir / "train.py").touch()
    answer = user_dir / "answer"
    environ = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    collocate(site, user_dir, **environ)
    assert answer.read_text().split() == proposals


def test_a_program_of_a_user_runs_by_hand(site, user_dir):
    (user_dir / "own.py").write_text(OWN_PROGRAM)
    environ = {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}  # the package is for all tests
    argv = [sys.executable, "-S", "own.py", "--limit", "7"]  # without what this environment has installed
    done = subprocess.run(argv, cwd=user_dir, env=environ, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("7\n", "")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_code_that_completes(site, user_dir, shell):
    pytest.importorskip("argcomplete")
    done = collocate(site, user_dir, "completion", shell)
    assert done.returncode == 0 and "_ARGCOMPLETE" in done.stdout and "collocate" in done.stdout


def test_advise_is_the_study_of_that_name_with_its_minutes(capsys):
    import collocate as module

    words = ["--minutes", "6", "mix=['a b.py', c.py]", "--", "t.py", "--minutes", "1"]
    assert module._expand_advice(words) == [
        *("+experiment=advise", "mix=['a b.py', c.py]", "advise_minutes=6", "--", "t.py", "--minutes", "1")
    ]
    assert "note: --minutes is passed to the script" in capsys.readouterr().err
    for minutes in ("0", "-1", "nan", "1e9"):
        with pytest.raises(SystemExit):
            module._expand_advice([f"--minutes={minutes}", "--", "t.py"])
        assert f"error: --minutes {float(minutes):g} must be above 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        module._expand_advice(["--minutes", "4"])
    assert "error: advise names no job; write collocate advise -- train.py" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        module._expand_advice(["degree=2", __file__, "1"])
    message = f"error: put -- before {__file__}: collocate advise -- {__file__} 1; see collocate advise --help\n"
    assert message in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        module._expand_advice(["--minutes", "soon"])
    assert (
        stopped.value.code == 2
        and "error: --minutes: 'soon' is not a number; write a number" in capsys.readouterr().err
    )


def test_pack_is_the_study_of_that_name_with_its_options(capsys):
    import collocate as module

    words = ["--mode", "mps", "gpu=cpu", "--check", "10%", "--resume", "--", "t.py", "--lr", "{1,2}"]
    assert module._expand_pack(words) == [
        *("+experiment=pack", "gpu=cpu", "scenario=mps", "pack.check_pct=10", "resume=true"),
        *("--", "t.py", "--lr", "{1,2}"),
    ]
    assert module._expand_pack(["--jobs", "a b.txt", "--most", "4"]) == [
        *("+experiment=pack", "pack.trials='a b.txt'", "pack.most=4")
    ]
    for wrong in ([], ["--jobs", "t.txt", "--", "t.py", "{1,2}"]):
        with pytest.raises(SystemExit):
            module._expand_pack(wrong)
    assert "error: pack names no trial; write collocate pack -- train.py --lr '{1e-1,1e-2}'" in capsys.readouterr().err
