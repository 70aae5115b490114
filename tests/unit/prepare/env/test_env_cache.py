"""The cache of environments: found again, rebuilt when something is wrong, built once by several at a time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.base.domain.records import Interpreter
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.prepare.env.venv import VenvEnv
from tests.support.packages import run_python, wheel
from tests.support.waiting import wait_until

pytest.importorskip("uv")
SITE = "prefix/lib/python*/site-packages"


@pytest.fixture
def env(tmp_path: Path) -> VenvEnv:
    wheel(tmp_path / "wheels", "tiny", "1.0")
    file = tmp_path / "requirements.txt"
    file.write_text("--no-index\n--find-links wheels\ntiny\n")
    return VenvEnv(str(file), cache_root=str(tmp_path / "cache"))


def folder_of(interpreter: Interpreter) -> Path:
    return interpreter.python.parent.parent.parent


def test_it_is_built_once_and_found_again(env, capsys):
    built = env.resolve()
    assert "is not built yet; uv builds it in" in capsys.readouterr().err
    stamp = (folder_of(built) / "environment.json").stat().st_mtime_ns
    assert env.resolve() == built and env.preview() == built
    assert (folder_of(built) / "environment.json").stat().st_mtime_ns == stamp
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root is kept from what others can change")
def test_root_runs_nothing_that_others_can_change(env, tmp_path):
    built = folder_of(env.resolve())
    for place in (tmp_path / "cache", built):
        mode = place.stat().st_mode
        place.chmod(0o777)
        with pytest.raises(ConfigError, match=f"other users can change {place}; choose"):
            env.resolve()
        place.chmod(mode)
    os.chown(built, 65533, -1)
    with pytest.raises(ConfigError, match="only root can write"):
        env.preview()
    os.chown(built, 0, -1)
    assert env.resolve().python.is_relative_to(built)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is kept from what others can change")
def test_what_root_refuses_it_leaves_as_it_was(env, tmp_path):
    public = tmp_path / "public"
    public.mkdir()
    public.chmod(0o777)
    refused = VenvEnv(str(tmp_path / "requirements.txt"), cache_root=str(public / "deep" / "cache"))
    for ask in (refused.preview, refused.resolve):
        with pytest.raises(ConfigError, match=f"other users can change {public}; choose"):
            ask()
    assert list(public.iterdir()) == []
    # Nobody can remove a folder of root's below one as /tmp, and what others made there is theirs.
    public.chmod(0o1777)
    (public / "deep").mkdir()
    os.chown(public / "deep", 65533, -1)
    with pytest.raises(ConfigError, match=f"other users can change {public / 'deep'}; choose"):
        refused.preview()
    (public / "deep").rmdir()
    assert refused.preview().to_build is not None and list(public.iterdir()) == []


def test_a_link_in_the_place_of_a_lock_is_not_followed(env, tmp_path):
    folder = folder_of(env.preview())
    folder.parent.mkdir()
    folder.with_name(f"{folder.name}.lock").symlink_to(tmp_path / "target")
    with pytest.raises(ConfigError, match="cannot be used"):
        env.resolve()
    assert not (tmp_path / "target").exists()


@pytest.mark.slow
def test_it_is_compiled_so_that_first_jobs_are_no_slower_than_later_ones(env):
    (compiled,) = folder_of(env.resolve()).glob("prefix/lib/python*/site-packages/__pycache__/tiny.*.pyc")
    assert compiled.stat().st_size


def test_a_preview_builds_nothing_and_says_what_would_be(env, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    seen = env.preview()
    assert sorted(tmp_path.rglob("*")) == before
    assert seen.to_build is not None and "is not built yet; uv builds it" in seen.to_build
    assert seen.lock_digest.startswith("unbuilt-") and seen.lock == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("rm prefix/bin/python", "is broken"),
        ("ln -sf /bin/false prefix/bin/python", "is broken"),
        (f"ln -sf {sys.executable} prefix/bin/python; rm prefix/pyvenv.cfg", "is broken"),
        ("rm environment.json", "is incomplete"),
        ("echo { > environment.json", "is incomplete"),
        ("rm environment.txt", "is incomplete"),
        ("echo tiny==7 > environment.txt", "has a changed lock file"),
        (f"rm -r {SITE}/tiny-*.dist-info {SITE}/tiny.py", "has other packages than at its build"),
        (f"rm {SITE}/tiny.py", "/site-packages/tiny.py"),
        (f"truncate --size=0 {SITE}/tiny.py", "has a missing or changed file: lib/python"),
        ("rm -r $PWD", "is not built yet"),
    ],
)
def test_what_is_not_as_it_was_built_is_built_again(env, capsys, damage, words):
    built = env.resolve()
    subprocess.run(["sh", "-ec", damage], cwd=folder_of(built), check=True)
    assert words in str(env.preview().to_build)
    capsys.readouterr()
    again = env.resolve()
    assert words in capsys.readouterr().err
    assert again == built and run_python(again, "import tiny") == ""
    assert env.preview().to_build is None


@pytest.mark.slow
def test_what_programs_add_to_it_is_no_change(env):
    built = env.resolve()
    (module,) = folder_of(built).glob("prefix/lib/python*/site-packages/tiny.py")
    (module.parent / "settings.json").write_text("{}")
    shutil.rmtree(module.parent / "__pycache__", ignore_errors=True)
    assert env.preview().to_build is None


# Resolves, says so, and keeps the environment until its stdin ends; a build waits until the test lets it go on.
PROGRAM = """
import os, sys, time
from pipeline.prepare.env.venv import VenvEnv
build = VenvEnv.build
def slowly(self, prefix, builder):
    with open(os.environ["BUILDS"], "a") as builds:
        builds.write(f"{os.getpid()}\\n")
    if "HANG" in os.environ:
        builder.step(["sh", "-c", 'echo $$ > "$HANG.new"; mv "$HANG.new" "$HANG"; exec sleep 600'], tool="sleep")
    while not os.path.exists(os.environ["BUILDS"] + ".may-go-on"):
        time.sleep(0.01)
    return build(self, prefix, builder)
VenvEnv.build = slowly
print(VenvEnv(sys.argv[1], cache_root=sys.argv[2]).resolve().lock_digest, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start(env, tmp_path):
    started: list[subprocess.Popen[str]] = []

    def begin(**environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "requirements.txt"), str(tmp_path / "cache")],
            cwd=PROJECT_DIR,
            env=os.environ | {"BUILDS": str(tmp_path / "builds")} | environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def builds(tmp_path: Path) -> list[str]:
    path = tmp_path / "builds"
    return path.read_text().split() if path.exists() else []


def let_builds_go_on(tmp_path: Path) -> None:
    (tmp_path / "builds.may-go-on").touch()


@pytest.mark.slow
def test_several_at_once_build_it_once_and_the_others_wait_and_say_so(start, tmp_path):
    processes = [start() for _ in range(3)]
    wait_until(lambda: builds(tmp_path))
    (builder,) = builds(tmp_path)
    for process in processes:
        if process.pid != int(builder):
            wait_until(lambda process=process: "waiting for another process" in process.stderr.readline())
    let_builds_go_on(tmp_path)
    outputs = [process.communicate("", timeout=300)[0] for process in processes]
    assert len(set(outputs)) == 1 and outputs[0].strip()
    assert len(builds(tmp_path)) == 1


@pytest.mark.slow
def test_who_waits_goes_on_while_the_builder_still_uses_it(start, tmp_path):
    first = start()
    wait_until(lambda: builds(tmp_path))
    second = start()
    wait_until(lambda: "waiting for another process" in second.stderr.readline())
    let_builds_go_on(tmp_path)
    digest = first.stdout.readline()
    assert second.stdout.readline() == digest and first.poll() is None


@pytest.mark.slow
def test_a_build_whose_orchestrator_was_killed_is_waited_for_and_done_again(start, tmp_path):
    step = tmp_path / "step"
    first = start(HANG=str(step))
    wait_until(step.exists)
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = start()
    # The step of the killed build goes on by itself, and two builds in one folder would spoil each other.
    wait_until(lambda: "waiting for another process" in second.stderr.readline())
    os.kill(int(step.read_text()), signal.SIGKILL)
    let_builds_go_on(tmp_path)
    out, err = second.communicate("", timeout=300)
    assert "is incomplete" in err
    assert out.strip() and len(builds(tmp_path)) == 2


@pytest.mark.slow
def test_an_environment_that_is_used_is_not_taken_away_from_its_jobs(start, env, tmp_path):
    let_builds_go_on(tmp_path)
    user = start()
    assert user.stdout.readline().strip()
    (marker,) = tmp_path.glob("cache/venv-*/environment.json")
    marker.unlink()
    other = start()
    wait_until(lambda: "waiting for another process" in other.stderr.readline())
    assert len(builds(tmp_path)) == 1 and (marker.parent / "prefix/bin/python").exists()
    user.communicate("", timeout=300)
    assert other.stdout.readline().strip() and len(builds(tmp_path)) == 2
