"""Environments that exist already, and the cache of those that are built."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from pipeline.base.domain.records import Interpreter
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.prepare.env import current, existing, lock
from pipeline.prepare.env.conda import CondaEnv
from pipeline.prepare.env.existing import ExistingEnv
from pipeline.prepare.env.venv import VenvEnv
from tests.support.packages import Channel, run_python, wheel
from tests.support.programs import commit_all, run_git, write_script
from tests.support.waiting import wait_until


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A virtual environment with one package."""
    venv.create(tmp_path / "mine", symlinks=True)
    install(tmp_path / "mine", "tiny", "1.0")
    return tmp_path / "mine"


def find_site(prefix: Path) -> Path:
    (folder,) = prefix.glob("lib/python*/site-packages")
    return folder


def install(prefix: Path, name: str, version: str, **files: str) -> Path:
    info = find_site(prefix) / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for file, text in files.items():
        (info / f"{file}.json").write_text(text)
    return info


def describe_program(prefix: Path | str) -> Interpreter:
    existing._describe.cache_clear()
    return ExistingEnv(str(prefix)).resolve()


def test_a_virtual_environment_by_folder_or_by_interpreter_is_used_as_it_is(prefix, monkeypatch):
    before = sorted((path, path.lstat().st_mtime_ns) for path in prefix.rglob("*"))
    monkeypatch.setenv("HOME", str(prefix.parent))
    interpreters = [describe_program(spelling) for spelling in (prefix, prefix / "bin/python", "~/mine")]
    assert interpreters[0] == interpreters[1] == interpreters[2]
    assert "tiny==1.0" in interpreters[0].lock and interpreters[0].python == prefix / "bin/python"
    program = "import sys; print(sys.prefix)"
    environ = os.environ | dict(interpreters[0].environ)
    done = subprocess.run(["python", "-B", "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(prefix)
    assert sorted((path, path.lstat().st_mtime_ns) for path in prefix.rglob("*")) == before


def test_a_changed_package_is_another_environment_and_the_folder_is_not(prefix, tmp_path):
    first = describe_program(prefix)
    install(prefix, "more", "2.0")
    second = describe_program(prefix)
    assert first.lock_digest != second.lock_digest and "more==2.0" in second.lock
    prefix.rename(tmp_path / "moved")
    assert describe_program(tmp_path / "moved").lock_digest == second.lock_digest


def test_a_package_that_can_be_edited_is_recorded_with_its_commit_and_decides_by_its_code(prefix, tmp_path):
    folder = tmp_path / "ours"
    folder.mkdir()
    (folder / "ours.py").write_text("VERSION = 1\n")
    (folder / "README").write_text("ours")
    commit_all(folder)
    origin = json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}})
    install(prefix, "ours", "0.1", direct_url=origin)

    def line(interpreter: Interpreter) -> str:
        (one,) = (line for line in interpreter.lock if line.startswith("ours @ "))
        return one

    clean = describe_program(prefix)
    assert f"commit={run_git(folder, 'rev-parse', 'HEAD').strip()}" in line(clean) and "changed" not in line(clean)
    (folder / "README").write_text("ours!")
    readme = describe_program(prefix)
    assert readme.lock_digest == clean.lock_digest and "changed=true" in line(readme)
    (folder / "ours.py").write_text("VERSION = 2\n")
    edited = describe_program(prefix)
    assert edited.lock_digest != clean.lock_digest
    run_git(folder, "commit", "-qam", "second")
    assert describe_program(prefix).lock_digest == edited.lock_digest, "a commit leaves the code as it was"


def test_a_conda_environment_is_recorded_by_its_packages_and_what_pip_added(prefix):
    python = {"name": "python", "version": "3.12.1", "build": "h1", "depends": [], "files": ["bin/python"]}
    files = [f"{find_site(prefix).relative_to(prefix)}/tiny-1.0.dist-info/METADATA"]
    tiny = {"name": "tiny", "version": "1.0", "build": "0", "depends": ["python"], "files": files}
    (prefix / "conda-meta").mkdir()
    for record in (tiny, python):
        record |= {"url": f"https://me:s3cret@conda.example.org/{record['name']}.conda", "sha256": "0" * 64}
        (prefix / f"conda-meta/{record['name']}.json").write_text(json.dumps(record))
    (prefix / "conda-meta/state").write_text(json.dumps({"env_vars": {"TOKEN": "s3cret"}}))
    (prefix / "etc/conda/activate.d").mkdir(parents=True)
    (prefix / "etc/conda/activate.d/tiny.sh").write_text("export TINY=yes\n")
    install(prefix, "added", "3.0")
    interpreter = describe_program(prefix)
    assert interpreter.lock[0] == "# environment lock: conda"
    assert "# pip added==3.0" in interpreter.lock and not any("pip tiny" in line for line in interpreter.lock)
    assert "https://conda.example.org/tiny.conda" in interpreter.lock
    assert "s3cret" not in str(interpreter.lock) and any("TOKEN" in line for line in interpreter.lock)
    variables = dict(interpreter.environ)
    assert (variables["CONDA_PREFIX"], variables["TINY"], variables["TOKEN"]) == (str(prefix), "yes", "s3cret")


def add_base(prefix: Path, base: Path) -> None:
    """Put the packages of a conda environment below those of a virtual environment, as system site packages are."""
    venv.create(base, symlinks=True)
    (find_site(prefix) / "base.pth").write_text(f"{find_site(base)}\n")
    build_folder = json.dumps({"url": "file:///croot/lower_1/work", "dir_info": {}})
    for name, version in (("Tiny", "0.9"), ("typing_extensions", "4.1"), ("lower", "2.0")):
        info = install(base, name, version, direct_url=build_folder)
        (info / "INSTALLER").write_text("conda\n")


def test_of_environments_upon_each_other_the_lock_lists_what_is_imported_once(prefix, tmp_path):
    install(prefix, "typing.extensions", "4.2")
    alone = describe_program(prefix)
    add_base(prefix, tmp_path / "base")
    interpreter = describe_program(prefix)
    assert [line for line in interpreter.lock if not line.startswith("#")] == [
        "lower==2.0",
        "tiny==1.0",
        "typing.extensions==4.2",
    ]
    assert interpreter.lock_digest != alone.lock_digest
    program = "import importlib.metadata as m; print(m.version('tiny'), m.version('typing-extensions'))"
    argv = [interpreter.python, "-I", "-c", program]
    imported = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert imported.split() == ["1.0", "4.2"]


@pytest.mark.slow
def test_the_lock_of_environments_upon_each_other_can_be_installed(prefix, tmp_path, monkeypatch):
    pytest.importorskip("uv")
    add_base(prefix, tmp_path / "base")
    recorded = describe_program(prefix)
    for name, version in (("lower", "2.0"), ("tiny", "1.0"), ("typing_extensions", "4.1")):
        wheel(tmp_path / "wheels", name, version)
    for name, value in (("OFFLINE", "1"), ("NO_INDEX", "1"), ("FIND_LINKS", str(tmp_path / "wheels"))):
        monkeypatch.setenv(f"UV_{name}", value)
    (tmp_path / "environment.txt").write_text("\n".join(recorded.lock))
    built = VenvEnv(str(tmp_path / "environment.txt"), cache_root=str(tmp_path / "cache")).resolve()
    assert built.lock_digest == recorded.lock_digest


def test_the_current_environment_lists_what_is_imported_once(prefix, tmp_path, monkeypatch):
    add_base(prefix, tmp_path / "base")
    monkeypatch.setattr(sys, "path", [str(find_site(prefix)), str(find_site(tmp_path / "base"))])
    current._describe.cache_clear()
    packages = [line for line in current.CurrentEnv().resolve().lock if not line.startswith("#")]
    current._describe.cache_clear()
    assert packages == ["lower==2.0", "tiny==1.0", "typing_extensions==4.1"]


def test_an_interpreter_of_the_system_is_one(tmp_path):
    interpreter = describe_program(Path(sys.executable).resolve())
    assert interpreter.python.exists() and interpreter.lock[0] == "# environment lock: venv"
    assert dict(interpreter.environ)["VIRTUAL_ENV"] == ""


@pytest.mark.parametrize(
    ("make", "seen"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), r"the environment has no interpreter .*/bin/python"),
        (lambda path: path.write_text(""), "cannot be executed"),
        (lambda path: write_script(path, "echo hello"), "printed 'hello"),
        (lambda path: write_script(path, "exit 3"), "ended with status 3"),
    ],
)
def test_a_prefix_without_an_interpreter_is_refused(tmp_path, make, seen):
    make(tmp_path / "prefix")
    with pytest.raises(ConfigError, match=rf"env\.prefix={tmp_path}/prefix: .*{seen}.*; set it to the folder of"):
        describe_program(tmp_path / "prefix")


def test_without_a_prefix_the_error_says_what_to_give():
    with pytest.raises(ConfigError, match=r"env\.prefix=~/miniconda3/envs/NAME, .* workload\.env_prefix"):
        ExistingEnv()


@pytest.mark.slow
def test_the_jobs_of_a_mix_may_have_environments_of_their_own(prefix, make_plan, monkeypatch):
    monkeypatch.chdir(prefix.parent)
    (prefix.parent / "train.py").write_text("")
    mix = [f"workload@sizes.{size}=script" for size in "SM"] + [f"sizes.{size}.script=train.py" for size in "SM"]
    env_options = ["env=existing", f"env.prefix={sys.executable}", f"sizes.M.env_prefix={prefix}"]
    group = make_plan([*mix, "mix=[S,M]", *env_options], is_sweep=False).groups[0]
    assert [dict(job.workload.env.options)["prefix"] for job in group.jobs] == [sys.executable, str(prefix)]
    assert group.jobs[0].workload.digest != group.jobs[1].workload.digest


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["conda", "venv"])
def test_an_environment_that_was_built_is_the_same_one_as_itself_where_it_lies(tmp_path, kind, monkeypatch):
    pytest.importorskip("rattler")
    pytest.importorskip("uv")
    monkeypatch.setenv("UV_OFFLINE", "1")
    wheel(tmp_path / "wheels", "tiny", "1.0")
    sources = ["--no-index", f"--find-links {tmp_path}/wheels", "tiny"]
    if kind == "conda":
        channel = Channel(tmp_path / "channel")
        channel.add_module("rich", "0.1")
        file = channel.environment_yml(tmp_path / "environment.yml", "rich", pip=sources)
        built = CondaEnv(str(file), cache_root=str(tmp_path / "cache")).resolve()
    else:
        (tmp_path / "requirements.txt").write_text("\n".join(sources))
        built = VenvEnv(str(tmp_path / "requirements.txt"), cache_root=str(tmp_path / "cache")).resolve()
    interpreter = describe_program(built.python.parent.parent)
    assert interpreter.lock_digest == built.lock_digest
    assert (interpreter.python, interpreter.environ) == (built.python, built.environ)
    unrecorded = {*sources, *(f"# requested: {line}" for line in lock.read_request(built.lock))}
    assert {line for line in built.lock if line.removeprefix("# pip ") not in unrecorded} == set(interpreter.lock)


pytest.importorskip("uv")
SITE = "prefix/lib/python*/site-packages"


@pytest.fixture
def env(tmp_path: Path) -> VenvEnv:
    wheel(tmp_path / "wheels", "tiny", "1.0")
    file = tmp_path / "requirements.txt"
    file.write_text("--no-index\n--find-links wheels\ntiny\n")
    return VenvEnv(str(file), cache_root=str(tmp_path / "cache"))


def get_folder(interpreter: Interpreter) -> Path:
    return interpreter.python.parent.parent.parent


def test_it_is_built_once_and_found_again(env, capsys):
    built = env.resolve()
    assert "is not built yet; uv builds it in" in capsys.readouterr().err
    stamp = (get_folder(built) / "environment.json").stat().st_mtime_ns
    assert env.resolve() == built and env.preview() == built
    assert (get_folder(built) / "environment.json").stat().st_mtime_ns == stamp
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root is kept from what others can change")
def test_root_runs_nothing_that_others_can_change(env, tmp_path):
    built = get_folder(env.resolve())
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
    folder = get_folder(env.preview())
    folder.parent.mkdir()
    folder.with_name(f"{folder.name}.lock").symlink_to(tmp_path / "target")
    with pytest.raises(ConfigError, match="cannot be used"):
        env.resolve()
    assert not (tmp_path / "target").exists()


@pytest.mark.slow
def test_it_is_compiled_so_that_first_jobs_are_no_slower_than_later_ones(env):
    (compiled,) = get_folder(env.resolve()).glob("prefix/lib/python*/site-packages/__pycache__/tiny.*.pyc")
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
    subprocess.run(["sh", "-ec", damage], cwd=get_folder(built), check=True)
    assert words in str(env.preview().to_build)
    capsys.readouterr()
    again = env.resolve()
    assert words in capsys.readouterr().err
    assert again == built and run_python(again, "import tiny") == ""
    assert env.preview().to_build is None


@pytest.mark.slow
def test_what_programs_add_to_it_is_no_change(env):
    built = env.resolve()
    (module,) = get_folder(built).glob("prefix/lib/python*/site-packages/tiny.py")
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


def list_builds(tmp_path: Path) -> list[str]:
    path = tmp_path / "builds"
    return path.read_text().split() if path.exists() else []


def let_builds_go_on(tmp_path: Path) -> None:
    (tmp_path / "builds.may-go-on").touch()


@pytest.mark.slow
def test_several_at_once_build_it_once_and_the_others_wait_and_say_so(start, tmp_path):
    processes = [start() for _ in range(3)]
    wait_until(lambda: list_builds(tmp_path))
    (builder,) = list_builds(tmp_path)
    for process in processes:
        if process.pid != int(builder):
            wait_until(lambda process=process: "waiting for another process" in process.stderr.readline())
    let_builds_go_on(tmp_path)
    outputs = [process.communicate("", timeout=300)[0] for process in processes]
    assert len(set(outputs)) == 1 and outputs[0].strip()
    assert len(list_builds(tmp_path)) == 1


@pytest.mark.slow
def test_who_waits_goes_on_while_the_builder_still_uses_it(start, tmp_path):
    first = start()
    wait_until(lambda: list_builds(tmp_path))
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
    assert out.strip() and len(list_builds(tmp_path)) == 2


@pytest.mark.slow
def test_an_environment_that_is_used_is_not_taken_away_from_its_jobs(start, env, tmp_path):
    let_builds_go_on(tmp_path)
    user = start()
    assert user.stdout.readline().strip()
    (marker,) = tmp_path.glob("cache/venv-*/environment.json")
    marker.unlink()
    other = start()
    wait_until(lambda: "waiting for another process" in other.stderr.readline())
    assert len(list_builds(tmp_path)) == 1 and (marker.parent / "prefix/bin/python").exists()
    user.communicate("", timeout=300)
    assert other.stdout.readline().strip() and len(list_builds(tmp_path)) == 2
