"""Conda environments, really built from a channel in a folder: content, isolation, locks, errors, other tools."""

from __future__ import annotations

import hashlib
import re
import tomllib
import zipfile
from pathlib import Path

import pytest

from pipeline.base.system import secrets
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.prepare.env import conda_file
from pipeline.prepare.env import lock as env_lock
from pipeline.prepare.env.conda import CondaEnv
from pipeline.prepare.env.venv import VenvEnv
from tests.support.packages import VERSION, Channel, project, run_python, wheel

pytest.importorskip("rattler")


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
