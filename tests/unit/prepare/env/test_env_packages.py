"""Environments of conda and uv, really built from a channel and from wheels in a folder."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from pipeline.base.domain.records import Interpreter
from pipeline.base.system import secrets
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.prepare.env import conda_file, probe, requirements
from pipeline.prepare.env import lock as env_lock
from pipeline.prepare.env.conda import CondaEnv
from pipeline.prepare.env.current import CurrentEnv
from pipeline.prepare.env.venv import VenvEnv
from tests.support.packages import VERSION, Channel, project, run_python, wheel

for name in ("rattler", "uv"):
    pytest.importorskip(name)


@pytest.fixture
def channel(tmp_path: Path) -> Channel:
    channel = Channel(tmp_path / "channel")
    for version in ("1.0", "2.0"):
        channel.add_module("tiny", version)
    return channel


@pytest.fixture
def resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("UV_OFFLINE", "1")  # a test that asks an index fails where there is a network as well
    return lambda file, **options: CondaEnv(str(file), cache_root=str(tmp_path / "cache"), **options).resolve()


def test_an_environment_holds_what_its_file_says_and_nothing_of_the_orchestrators(channel, resolve, tmp_path):
    interpreter = resolve(channel.environment_yml(tmp_path / "environment.yml", "tiny=1"))
    assert run_python(interpreter, "import tiny; print(tiny.VERSION)") == "1.0"
    (tmp_path / "path").mkdir()
    (tmp_path / "path/stray.py").write_text("")
    find = "import importlib.util as u; print([u.find_spec(n) is None for n in ('stray', 'hydra', 'mlflow')])"
    assert run_python(interpreter, find, PYTHONPATH=str(tmp_path / "path")) == "[True, True, True]"
    assert interpreter.to_build is None


@pytest.mark.slow
def test_the_variables_are_those_of_an_activated_environment(channel, resolve, tmp_path):
    script = 'export TINY_HOME="$CONDA_PREFIX/share"\necho a script that talks\n'
    channel.add("tinyact", "1.0", {"etc/conda/activate.d/tiny.sh": script})
    file = channel.environment_yml(tmp_path / "e.yml", "tinyact", extra="variables: {COLOUR: deep blue}\n")
    interpreter = resolve(file)
    environ = dict(interpreter.environ)
    prefix = str(interpreter.python.parent.parent)
    assert environ["TINY_HOME"] == f"{prefix}/share" and environ["COLOUR"] == "deep blue"
    assert environ["CONDA_PREFIX"] == prefix and environ["PATH"].split(":")[0] == f"{prefix}/bin"
    assert run_python(interpreter, "import os; print(os.environ['COLOUR'])") == "deep blue"


@pytest.mark.slow
def test_a_script_that_fails_is_an_error_that_names_the_environment(channel, resolve, tmp_path):
    channel.add("tinyact", "1.0", {"etc/conda/activate.d/tiny.sh": "echo no licence 1>&2; exit 3\n"})
    with pytest.raises(ConfigError, match=r"e\.yml cannot be activated.*no licence"):
        resolve(channel.environment_yml(tmp_path / "e.yml", "tinyact"))


def test_a_script_that_ends_the_shell_is_an_error_that_names_the_environment(channel, resolve, tmp_path):
    channel.add("tinyact", "1.0", {"etc/conda/activate.d/tiny.sh": "exit 0\n"})
    with pytest.raises(ConfigError, match=r"e\.yml cannot be activated, because an activation script ended the shell"):
        resolve(channel.environment_yml(tmp_path / "e.yml", "tinyact"))


@pytest.mark.slow
def test_the_lock_names_every_package_exactly(channel, resolve, tmp_path):
    interpreter = resolve(channel.environment_yml(tmp_path / "e.yml", "tiny=1"))
    archive = channel.root / "noarch/tiny-1.0-0.tar.bz2"
    md5, sha256 = (hashlib.new(name, archive.read_bytes()).hexdigest() for name in ("md5", "sha256"))
    assert f"{archive.as_uri()}#{md5}" in interpreter.lock and f"# sha256 {sha256}" in interpreter.lock
    assert "# tiny 1.0 0" in interpreter.lock and f"# python: {VERSION}" in interpreter.lock
    urls = [line for line in interpreter.lock if line.startswith("file:")]
    assert [Path(url).name.split("-")[0] for url in urls] == ["python", "tiny"]  # each after what it depends on
    assert env_lock.read_kind("\n".join(interpreter.lock)) == "conda"


@pytest.mark.slow
def test_an_environment_built_from_a_lock_is_the_same_one(channel, resolve, tmp_path):
    wheel(tmp_path / "wheels", "tinywheel", "3.0")
    pip = ["--no-index", "--find-links wheels", "tinywheel"]
    file = channel.environment_yml(tmp_path / "e.yml", "tiny", pip=pip, extra="variables: {COLOUR: blue}\n")
    original = resolve(file)
    assert "# pip tinywheel==3.0" in original.lock
    # What a solve would choose today is something else.
    channel.add_module("tiny", "9.0")
    wheel(tmp_path / "wheels", "tinywheel", "9.0")
    lock = tmp_path / "environment.txt"
    lock.write_text("\n".join(original.lock) + "\n")
    again = resolve(lock)
    assert again.python != original.python
    assert again.lock == original.lock and again.lock_digest == original.lock_digest
    versions = "import os, tiny, tinywheel; print(tiny.VERSION, tinywheel.VERSION, os.environ['COLOUR'])"
    assert run_python(again, versions) == run_python(original, versions) == "2.0 3.0 blue"
    assert resolve(lock).python == again.python


@pytest.mark.slow
def test_a_wheel_of_the_pip_part_that_changed_is_installed_again(channel, resolve, tmp_path):
    path = wheel(tmp_path / "wheels", "tinywheel", "3.0")
    file = channel.environment_yml(tmp_path / "e.yml", pip=[f"./wheels/{path.name}"])
    first = resolve(file)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("more.py", "VERSION = 'changed'")
    second = resolve(file)
    assert second.lock_digest != first.lock_digest
    assert run_python(second, "import more; print(more.VERSION)") == "changed"


@pytest.mark.slow
def test_a_folder_in_the_pip_part_is_refused_and_leaves_nothing(channel, resolve, tmp_path):
    folder = project(tmp_path / "ours", "ours")
    with pytest.raises(ConfigError, match=f"ours comes from {folder.as_uri()}: .*install a wheel"):
        resolve(channel.environment_yml(tmp_path / "e.yml", pip=["./ours"]))
    assert not list((tmp_path / "cache").glob("conda-*[!k]"))


@pytest.mark.slow
def test_a_package_with_another_content_than_recorded_is_refused(channel, resolve, tmp_path):
    lock = tmp_path / "environment.txt"
    lock.write_text("\n".join(resolve(channel.environment_yml(tmp_path / "e.yml", "tiny=1")).lock))
    archive = channel.add("tiny", "1.0", {"site-packages/tiny.py": "VERSION = 'forged'"}, noarch="python")
    with pytest.raises(ConfigError, match=r"environment\.txt cannot be built(.|\n)*tiny-1\.0.*the lock records"):
        resolve(lock)
    assert archive.exists() and not list((tmp_path / "cache").glob("*/environment.json"))[1:]


@pytest.mark.slow
def test_the_digest_tells_packages_apart_and_not_where_they_came_from(channel, resolve, tmp_path):
    one = resolve(channel.environment_yml(tmp_path / "one.yml", "tiny=1"))
    two = resolve(channel.environment_yml(tmp_path / "two.yml", "tiny=2"))
    mirror = Channel(tmp_path / "mirror")
    mirror.add_module("tiny", "1.0")
    mirrored = resolve(mirror.environment_yml(tmp_path / "mirrored.yml", "tiny"))
    assert mirrored.lock_digest == one.lock_digest != two.lock_digest
    assert mirrored.lock != one.lock


def test_a_solve_that_fails_is_said_in_the_solvers_words_and_leaves_nothing(channel, resolve, tmp_path):
    with pytest.raises(
        ConfigError,
        match=r"e\.yml cannot be built; py-rattler printed:\n *Cannot(.|\n)*No candidates were found for tiny 7",
    ):
        resolve(channel.environment_yml(tmp_path / "e.yml", "tiny=7"))
    assert not list((tmp_path / "cache").glob("conda-*[!k]"))


def test_a_channel_that_is_not_there_is_named(channel, resolve, tmp_path):
    (tmp_path / "e.yml").write_text("channels: [./nowhere]\ndependencies: [python]\n")
    with pytest.raises(ConfigError, match="nowhere"):
        resolve(tmp_path / "e.yml")


def test_an_environment_without_python_is_refused(channel, resolve, tmp_path):
    channel.add("data", "1.0", {"share/data.txt": "x"})
    (tmp_path / "e.yml").write_text(f"channels: [{channel.url}]\ndependencies: [data]\n")
    with pytest.raises(ConfigError, match="has no interpreter; add `python`"):
        resolve(tmp_path / "e.yml")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("e.yml", "channels: [a\n", "is not valid YAML"),
        ("e.yml", "- python\n", "has no keys; use only the keys"),
        ("e.yml", "channels: [a]\ndependencys: [python]\n", "dependencys"),
        ("e.yml", "channels: [a]\n", "has no dependencies"),
        ("e.yml", "channels: [~nobody-here/c]\ndependencies: [python]\n", "unknown user ~nobody-here"),
        ("lock.txt", "@EXPLICIT\n# variables {bad\nhttps://x/y.conda\n", "is followed by {bad; write a JSON object"),
        ("e.yml", "dependencies: [python]\n", "has no channels"),
        ("e.yml", "channels: [a]\ndependencies: [{npm: [x]}]\n", "neither a package nor a list"),
        ("e.yml", "channels: [a]\ndependencies: [python, {pip: ['-e .']}]\n", "install a wheel"),
        (
            "e.yml",
            "channels: [a]\ndependencies: [python, {pip: ['-e git+https://h/C.git@main#egg=c']}]\n",
            r"e\.yml: `-e git.*`: an editable package .*; leave -e out: c @ git\+https://h/C\.git@main$",
        ),
        ("e.yml", "channels: [a]\ndependencies: [python, {pip: ['-r gone.txt']}]\n", "gone.txt cannot be read"),
        ("e.yml", "channels: [a]\ndependencies: [python, '-e git+https://h/C.git']\n", "put it below `- pip:`"),
        ("e.yml", "channels: a\ndependencies: [python]\n", "channels and dependencies as lists"),
        ("e.txt", "numpy\n", "or use env=venv"),
        ("e.txt", "@EXPLICIT\nnumpy\n", "not package URLs"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_before_anything_is_built(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=words):
        CondaEnv(str(tmp_path / name), cache_root=str(tmp_path / "cache")).preview()
    assert not (tmp_path / "cache").exists()


def test_without_a_file_the_environment_is_the_one_that_the_networks_need(tmp_path):
    preview = CondaEnv(None, cache_root=str(tmp_path)).preview()
    assert f"the conda environment of {PROJECT_DIR}/workloads/environment.yml is not built" in str(preview.to_build)
    preview = VenvEnv(None, cache_root=str(tmp_path)).preview()
    assert f"of {PROJECT_DIR}/workloads/requirements.txt is not built" in str(preview.to_build)
    (committed,) = [conda_file.read(PROJECT_DIR / "workloads/environment.yml")]
    assert committed.channels == ("conda-forge",) and committed.pip == ()
    lines = (PROJECT_DIR / "workloads/requirements.txt").read_text().splitlines()
    requirements = {line for line in lines if not line.startswith("#")}
    python, *packages = committed.specs
    assert python.startswith("python=")
    assert {re.sub("^pytorch>", "torch>", spec) for spec in packages} == requirements
    project = tomllib.loads((PROJECT_DIR / "pyproject.toml").read_text())["project"]
    assert requirements <= set(project["dependencies"]), "what runs in the orchestrator's environment runs there"


def test_no_such_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        CondaEnv(str(tmp_path / "gone.yml")).preview()


def test_passwords_and_tokens_do_not_get_into_a_lock():
    record = {
        "name": "a",
        "version": "1",
        "build": "0",
        "url": "https://me:secret@host/t/token-1/ch/noarch/a-1-0.conda",
    }
    pip = ("--index-url https://me:secret@host/simple",)
    lock = conda_file.make_explicit_lock("3.12", [record], conda_file.CondaFile(pip=pip), [])
    assert "https://host/ch/noarch/a-1-0.conda" in lock.lines and "# pip --index-url https://host/simple" in lock.lines
    assert "secret" not in lock.text and "token-1" not in lock.text
    for place in ("a @ git+ssh://git@host/me/a@0123", "a @ file:///data/t/wheels/a.whl", "--find-links /data/t/wheels"):
        assert secrets.strip_logins(place) == place


OFFLINE = "--no-index\n--find-links wheels\n"


@pytest.fixture(autouse=True)
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UV_OFFLINE", "1")  # a test that asks an index fails where there is a network as well
    for version in ("1.0", "2.0"):
        wheel(tmp_path / "wheels", "tiny", version)
    return tmp_path / "wheels"


@pytest.fixture
def resolve_wheels(tmp_path: Path):
    return lambda file, **options: VenvEnv(str(file), cache_root=str(tmp_path / "cache"), **options).resolve()


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def change(archive: Path) -> None:
    with zipfile.ZipFile(archive, "a") as content:
        content.writestr("more.py", "")


def read_version(interpreter: Interpreter) -> str:
    return run_python(interpreter, "import tiny; print(tiny.VERSION)")


def test_requirements_are_installed_beside_nothing_else(resolve_wheels, tmp_path):
    interpreter = resolve_wheels(write(tmp_path / "requirements.txt", OFFLINE + "tiny<2\n"))
    assert read_version(interpreter) == "1.0"
    assert [line for line in interpreter.lock if not line.startswith(("#", "-"))] == ["tiny==1.0"]
    environ = dict(interpreter.environ)
    assert environ["VIRTUAL_ENV"] == str(interpreter.python.parent.parent) and environ["PYTHONPATH"] == ""


@pytest.mark.slow
def test_what_is_asked_for_stands_in_the_preview_and_then_in_the_lock(resolve_wheels, tmp_path):
    write(tmp_path / "more.txt", "tiny<2 # the older\n")
    file = write(tmp_path / "requirements.txt", OFFLINE + "-r more.txt\n")
    requested = (f"python=={VERSION}", "tiny<2")
    assert VenvEnv(str(file), cache_root=str(tmp_path / "cache")).preview().requested == requested
    assert env_lock.read_request(resolve_wheels(file).lock) == requested


@pytest.mark.slow
def test_an_environment_built_from_its_lock_is_the_same_one_from_another_folder_too(resolve_wheels, tmp_path, wheels):
    original = resolve_wheels(write(tmp_path / "requirements.txt", OFFLINE + "tiny\n"))
    wheel(wheels, "tiny", "9.0")
    lock = write(tmp_path / "elsewhere/environment.txt", "\n".join(original.lock) + "\n")
    again = resolve_wheels(lock)
    assert read_version(again) == "2.0" and again.python != original.python
    assert again.lock == original.lock and again.lock_digest == original.lock_digest
    text = lock.read_text()
    assert env_lock.read_kind(text) == "venv" and env_lock.read_python_version(text) == VERSION


@pytest.mark.slow
def test_a_wheel_named_by_its_path_is_locked_with_its_digest(resolve_wheels, tmp_path, wheels):
    path = wheels / "tiny-1.0-py3-none-any.whl"
    file = write(tmp_path / "requirements.txt", "./wheels/tiny-1.0-py3-none-any.whl\n")
    original = resolve_wheels(file)
    (pin,) = (line for line in original.lock if not line.startswith("#"))
    assert pin.startswith(f"tiny @ {path.as_uri()}#sha256=")
    lock = write(tmp_path / "environment.txt", "\n".join(original.lock))
    assert resolve_wheels(lock).lock_digest == original.lock_digest
    # The same name with another content is another environment, and not the one of the lock.
    change(path)
    assert resolve_wheels(file).lock_digest != original.lock_digest
    with pytest.raises(ConfigError, match=r"environment\.txt cannot be built; uv printed:(.|\n)*[Hh]ash"):
        resolve_wheels(lock)


@pytest.mark.slow
def test_a_lock_names_a_wheel_of_a_local_version(resolve_wheels, tmp_path, wheels):
    path = wheel(wheels, "tiny", "1.0+cu121")
    original = resolve_wheels(write(tmp_path / "requirements.txt", f"{path}\n"))
    lock = write(tmp_path / "environment.txt", "\n".join(original.lock))
    assert "%2Bcu121" in lock.read_text()
    assert resolve_wheels(lock).lock_digest == original.lock_digest


@pytest.mark.slow
def test_what_a_file_includes_decides_as_well(resolve_wheels, tmp_path):
    base = write(tmp_path / "base.txt", OFFLINE + "tiny==1.0\n")
    file = write(tmp_path / "requirements.txt", "-r base.txt\n")
    first = resolve_wheels(file)
    base.write_text(OFFLINE + "tiny==2.0\n")
    second = resolve_wheels(file)
    assert (read_version(first), read_version(second)) == ("1.0", "2.0")
    assert f"--find-links {tmp_path}/wheels" in second.lock


@pytest.mark.parametrize("line", ["./tiny-1.0-py3-none-any.whl", "tiny-1.0-py3-none-any.whl", "--find-links ."])
def test_the_same_text_beside_other_archives_is_another_environment(tmp_path, line):
    def key(folder: str) -> str:
        return VenvEnv(str(write(tmp_path / folder / "requirements.txt", line)), cache_root=str(tmp_path)).key

    first_key, second_key = key("mine"), key("theirs")
    assert first_key != second_key
    wheel(tmp_path / "mine", "tiny", "1.0")
    assert line.startswith("--") == (key("mine") != first_key)  # one that is named is looked at once it is installed
    assert key("theirs") == second_key


@pytest.mark.parametrize("name", ["pyproject.toml", "pylock.toml"])
def test_a_project_of_the_same_text_in_another_folder_is_another_one(tmp_path, name):
    files = [write(tmp_path / folder / name, PROJECT) for folder in ("mine", "theirs")]
    assert len({VenvEnv(str(file), cache_root=str(tmp_path)).key for file in files}) == 2


@pytest.mark.slow
def test_an_interpreter_is_named_from_the_working_directory(resolve_wheels, tmp_path, monkeypatch):
    (tmp_path / "mypython").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "elsewhere/requirements.txt", "--no-index\n--find-links ../wheels\ntiny==1.0\n")
    assert read_version(resolve_wheels(file, python="./mypython")) == "1.0"


@pytest.mark.slow
def test_the_dependencies_of_a_pyproject_are_installed(resolve_wheels, tmp_path, wheels):
    text = f'{PROJECT}["tiny==1.0"]\n[tool.uv]\nno-index = true\nfind-links = ["../wheels"]\n'
    file = write(tmp_path / "mine/pyproject.toml", text)
    assert read_version(resolve_wheels(file)) == "1.0"
    write(file, text.replace("==1.0", ""))
    run_uv("lock", folder=file.parent)
    wheel(wheels, "tiny", "9.0")
    assert read_version(resolve_wheels(file.with_name("uv.lock"))) == "2.0"  # locked before 9.0 was there
    assert read_version(resolve_wheels(file)) == "9.0"


PROJECT = '[project]\nname = "mine"\nversion = "0"\nrequires-python = ">=3.8"\ndependencies = '
SOURCES = "\n[tool.uv.sources]\n"
WHEEL = "wheels/tiny-1.0-py3-none-any.whl"
WORKSPACE = '\n[tool.uv.workspace]\nmembers = ["ours"]'
DEVELOPMENT = '\n[dependency-groups]\ndev = ["ours"]'
PYLOCK = 'lock-version = "1.0"\ncreated-by = "us"\n[[packages]]\nname = "ours"\ndirectory = { path = "ours" }'


def run_uv(*arguments: str, folder: Path) -> None:
    from uv import find_uv_bin

    subprocess.run([find_uv_bin(), "--quiet", "--offline", *arguments], cwd=folder, check=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("text", ['["tiny"]' + SOURCES + f'Tiny = {{ path = "{WHEEL}" }}', '["tiny @ {uri}"]'])
def test_a_wheel_that_a_pyproject_names_decides_as_well(resolve_wheels, tmp_path, wheels, text):
    path = tmp_path / WHEEL
    file = write(tmp_path / "pyproject.toml", PROJECT + text.replace("{uri}", path.as_uri()))
    first = resolve_wheels(file)
    assert resolve_wheels(file) == first
    change(path)
    assert resolve_wheels(file).lock_digest != first.lock_digest


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uv.lock", "pylock.toml"])
def test_an_archive_that_a_lock_names_and_that_changed_is_refused(resolve_wheels, tmp_path, capsys, name):
    write(tmp_path / "pyproject.toml", f'{PROJECT}["tiny"]{SOURCES}tiny = {{ path = "{WHEEL}" }}')
    run_uv("lock", folder=tmp_path)
    run_uv("export", "--frozen", "--format=pylock.toml", "--output-file=pylock.toml", folder=tmp_path)
    assert read_version(resolve_wheels(tmp_path / name)) == "1.0"
    change(tmp_path / WHEEL)
    with pytest.raises(ConfigError, match=r"cannot be built; uv printed:(.|\n)*[Hh]ash"):
        resolve_wheels(tmp_path / name)
    assert f"was built from {tmp_path / WHEEL}, which is missing or has changed" in capsys.readouterr().err


def test_an_archive_that_is_gone_is_said_by_a_dry_run(tmp_path):
    env = VenvEnv(str(write(tmp_path / "requirements.txt", WHEEL)), cache_root=str(tmp_path / "cache"))
    env.resolve()
    (tmp_path / WHEEL).unlink()
    assert f"was built from {tmp_path / WHEEL}, which is missing or has changed" in str(env.preview().to_build)


@pytest.mark.slow
def test_sources_of_what_is_not_installed_are_no_obstacle(resolve_wheels, tmp_path):
    project(tmp_path / "other", "other")
    sources = f'{SOURCES}other = {{ workspace = true }}\ntiny = {{ path = "{WHEEL}" }}\n'
    workspace = '[tool.uv.workspace]\nmembers = ["other"]\n[dependency-groups]\nmore = ["other"]\n'
    file = write(tmp_path / "pyproject.toml", PROJECT + '["tiny>=1"]' + sources + workspace)
    run_uv("lock", folder=tmp_path)
    assert "other" in (tmp_path / "uv.lock").read_text()
    assert read_version(resolve_wheels(file)) == read_version(resolve_wheels(tmp_path / "uv.lock")) == "1.0"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "./ours\n"),
        ("requirements.txt", "ours/../ours[more]\n"),
        ("requirements.txt", "ours @ {uri}\n"),
        ("pyproject.toml", f'{PROJECT}["ours"]{SOURCES}ours = {{ path = "ours", editable = true }}'),
        ("pyproject.toml", f'{PROJECT}["ours"]{SOURCES}ours = [{{ path = "ours" }}]'),
        ("pyproject.toml", f'{PROJECT}["ours"]{SOURCES}ours = {{ workspace = true }}{WORKSPACE}'),
        ("pyproject.toml", f'{PROJECT}["ours @ {{uri}}"]'),
        ("pylock.toml", PYLOCK),
        ("uv.lock", f'{PROJECT}[]{SOURCES}ours = {{ path = "ours", editable = true }}{DEVELOPMENT}'),
    ],
)
def test_what_can_be_edited_is_refused_and_leaves_nothing(resolve_wheels, tmp_path, name, text):
    folder = project(tmp_path / "ours", "ours")
    text = text.replace("{uri}", folder.as_uri())
    if name == "uv.lock":
        write(tmp_path / "pyproject.toml", text)
        run_uv("lock", folder=tmp_path)
    else:
        write(tmp_path / name, text)
    with pytest.raises(ConfigError, match=f"ours comes from {folder.as_uri()}.*install a wheel"):
        resolve_wheels(tmp_path / name)
    assert not list((tmp_path / "cache").glob("venv-*[!k]"))


def test_a_solve_that_fails_is_said_in_uvs_words_and_leaves_nothing(resolve_wheels, tmp_path):
    with pytest.raises(ConfigError, match=r"requirements\.txt cannot be built; uv printed:\n(.|\n)*tiny>7"):
        resolve_wheels(write(tmp_path / "requirements.txt", OFFLINE + "tiny>7\n"))
    assert not list((tmp_path / "cache").glob("venv-*[!k]"))


@pytest.mark.parametrize("text", ["[project", "project = 3"])
def test_a_pyproject_that_is_none_is_said_in_uvs_words(resolve_wheels, tmp_path, text):
    with pytest.raises(ConfigError, match=r"uv printed:\n(.|\n)*pyproject\.toml(.|\n)*TOML"):
        resolve_wheels(write(tmp_path / "pyproject.toml", text))


def test_a_python_that_cannot_run_jobs_is_said_and_leaves_nothing(resolve_wheels, tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "_PROGRAM", "raise SystemExit('too old')")
    with pytest.raises(ConfigError, match=r"was built, but its interpreter cannot run jobs: .*too old"):
        resolve_wheels(write(tmp_path / "requirements.txt", OFFLINE + "tiny\n"))
    assert not list((tmp_path / "cache").glob("venv-*[!k]"))


def test_a_python_that_is_not_there_is_said(resolve_wheels, tmp_path, monkeypatch):
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    with pytest.raises(ConfigError, match=r"uv printed(.|\n)*3\.77"):
        resolve_wheels(write(tmp_path / "requirements.txt", OFFLINE), python="3.77")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("environment.yml", "", "or use env=conda"),
        ("requirements.txt", "-e .\n", "install a wheel"),
        ("requirements.txt", "--editable=.\n", "install a wheel"),
        ("requirements.txt", "-r gone.txt\n", r"gone\.txt cannot be read"),
        ("requirements.txt", "-r requirements.txt\n", "includes itself"),
        ("uv.lock", "", r"pyproject\.toml cannot be read"),
    ],
)
def test_a_file_of_requirements_that_cannot_be_used_is_refused_before_anything_is_built(tmp_path, name, text, words):
    with pytest.raises(ConfigError, match=words):
        VenvEnv(str(write(tmp_path / name, text)), cache_root=str(tmp_path / "cache")).preview()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("-e git+https://h/C.git@main#egg=clip", "leave -e out: clip @ git+https://h/C.git@main"),
        ("--editable=git+https://h/C.git", "leave -e out: git+https://h/C.git"),
        (
            "--editable git+ssh://git@h/o/C.git@v1#egg=c[x]&subdirectory=s",
            "leave -e out: c[x] @ git+ssh://git@h/o/C.git@v1#subdirectory=s",
        ),
        ("-e git+git@h:o/C.git#egg=c", "leave -e out: c @ git+ssh://git@h/o/C.git"),
        ("-e clip @ git+https://h/C.git", "leave -e out: clip @ git+https://h/C.git"),
        ('-e "git+https://h/C.git#egg=clip"', "leave -e out: clip @ git+https://h/C.git"),
        ("-e hg+https://h/c#egg=c", "leave -e out: c @ hg+https://h/c"),
        ("-e git+https://u:s3cret@h/C.git", "leave -e out: git+https://<hidden>@h/C.git"),
        ("-e git+file:///r/C.git#egg=c", "leave -e out: c @ git+file:///r/C.git"),
        *((f"-e {place}", "install a wheel of the package") for place in (".", "./a[x]", "../b", "/c", "file:///d")),
    ],
)
def test_a_package_that_can_be_edited_gets_the_remedy_of_its_place(tmp_path, line, remedy):
    (tmp_path / "more.txt").write_text(f"numpy\n{line}\n")
    with pytest.raises(ConfigError) as refused:
        VenvEnv(
            str(write(tmp_path / "requirements.txt", "-r more.txt\n")), cache_root=str(tmp_path / "cache")
        ).preview()
    assert str(refused.value).startswith(f"{tmp_path}/more.txt: `-")
    assert str(refused.value).endswith(f"; {remedy}")


def test_uv_that_is_not_there_is_refused_by_a_dry_run(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "uv", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="pip install uv"):
        VenvEnv(str(write(tmp_path / "requirements.txt", "")), cache_root=str(tmp_path / "cache")).preview()


def test_a_place_that_cannot_be_written_is_named_with_its_key(tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ConfigError, match=r"env\.cache_root=.*choose a folder that you can write"):
        VenvEnv(str(write(tmp_path / "requirements.txt", "")), cache_root=str(tmp_path / "cache")).resolve()


def test_options_of_a_requirements_file_keep_their_meaning_in_another_folder(tmp_path):
    lines = ["--find-links=wheels", "-f ../other", "--index-url https://host/simple", "--pre", "numpy==1", "./a.txt"]
    absolute = [requirements.make_place_absolute(line, tmp_path) for line in lines]
    assert absolute == [
        f"--find-links {tmp_path}/wheels",
        f"-f {tmp_path.parent}/other",
        "--index-url https://host/simple",
        "--pre",
        "numpy==1",
        f"{tmp_path}/a.txt",
    ]


def test_the_current_environment_has_a_lock_that_says_what_it_is():
    interpreter = CurrentEnv().resolve()
    text = "\n".join(interpreter.lock)
    assert env_lock.read_kind(text) == "current" and env_lock.read_python_version(text) == VERSION
    assert any(line.startswith("hydra-core==") for line in interpreter.lock)
    # Built as a venv from it, the same packages are the same environment.
    packages = [line for line in interpreter.lock if not line.startswith("#")]
    installed = {dist.name: dist.version for dist in metadata.distributions() if dist.name != "gpu-collocation"}
    assert {line.split("==")[0].split(" @ ")[0] for line in packages} == installed.keys()
    pinned = dict(line.split("==") for line in packages if "==" in line)
    assert pinned == {name: installed[name] for name in pinned} and pinned
    same = [env_lock.Distribution(name=name, version=version) for name, version in pinned.items()]
    assert len(same) == len(packages)  # no package of the tests' environment is from a folder
    assert env_lock.lock_packages("venv", VERSION, same).digest == interpreter.lock_digest
    assert env_lock.read_kind("numpy==1") is None and env_lock.read_python_version("# python: 3.12") is None
