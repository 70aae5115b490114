"""Virtual environments, really built by uv from wheels in a folder: files that it takes, locks, errors."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from pipeline.base.domain.records import Interpreter
from pipeline.base.system.errors import ConfigError
from pipeline.prepare.env import lock as env_lock
from pipeline.prepare.env import probe, requirements
from pipeline.prepare.env.current import CurrentEnv
from pipeline.prepare.env.venv import VenvEnv
from tests.support.packages import VERSION, project, run_python, wheel

pytest.importorskip("uv")
OFFLINE = "--no-index\n--find-links wheels\n"


@pytest.fixture(autouse=True)
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UV_OFFLINE", "1")  # a test that asks an index fails where there is a network as well
    for version in ("1.0", "2.0"):
        wheel(tmp_path / "wheels", "tiny", version)
    return tmp_path / "wheels"


@pytest.fixture
def resolve(tmp_path: Path):
    return lambda file, **options: VenvEnv(str(file), cache_root=str(tmp_path / "cache"), **options).resolve()


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def change(archive: Path) -> None:
    with zipfile.ZipFile(archive, "a") as content:
        content.writestr("more.py", "")


def version_of(interpreter: Interpreter) -> str:
    return run_python(interpreter, "import tiny; print(tiny.VERSION)")


def test_requirements_are_installed_beside_nothing_else(resolve, tmp_path):
    interpreter = resolve(write(tmp_path / "requirements.txt", OFFLINE + "tiny<2\n"))
    assert version_of(interpreter) == "1.0"
    assert [line for line in interpreter.lock if not line.startswith(("#", "-"))] == ["tiny==1.0"]
    environ = dict(interpreter.environ)
    assert environ["VIRTUAL_ENV"] == str(interpreter.python.parent.parent) and environ["PYTHONPATH"] == ""


@pytest.mark.slow
def test_what_is_asked_for_stands_in_the_preview_and_then_in_the_lock(resolve, tmp_path):
    write(tmp_path / "more.txt", "tiny<2 # the older\n")
    file = write(tmp_path / "requirements.txt", OFFLINE + "-r more.txt\n")
    requested = (f"python=={VERSION}", "tiny<2")
    assert VenvEnv(str(file), cache_root=str(tmp_path / "cache")).preview().requested == requested
    assert env_lock.read_request(resolve(file).lock) == requested


@pytest.mark.slow
def test_an_environment_built_from_its_lock_is_the_same_one_from_another_folder_too(resolve, tmp_path, wheels):
    original = resolve(write(tmp_path / "requirements.txt", OFFLINE + "tiny\n"))
    wheel(wheels, "tiny", "9.0")
    lock = write(tmp_path / "elsewhere/environment.txt", "\n".join(original.lock) + "\n")
    again = resolve(lock)
    assert version_of(again) == "2.0" and again.python != original.python
    assert again.lock == original.lock and again.lock_digest == original.lock_digest
    text = lock.read_text()
    assert env_lock.read_kind(text) == "venv" and env_lock.read_python_version(text) == VERSION


@pytest.mark.slow
def test_a_wheel_named_by_its_path_is_locked_with_its_digest(resolve, tmp_path, wheels):
    path = wheels / "tiny-1.0-py3-none-any.whl"
    file = write(tmp_path / "requirements.txt", "./wheels/tiny-1.0-py3-none-any.whl\n")
    original = resolve(file)
    (pin,) = (line for line in original.lock if not line.startswith("#"))
    assert pin.startswith(f"tiny @ {path.as_uri()}#sha256=")
    lock = write(tmp_path / "environment.txt", "\n".join(original.lock))
    assert resolve(lock).lock_digest == original.lock_digest
    # The same name with another content is another environment, and not the one of the lock.
    change(path)
    assert resolve(file).lock_digest != original.lock_digest
    with pytest.raises(ConfigError, match=r"environment\.txt cannot be built; uv printed:(.|\n)*[Hh]ash"):
        resolve(lock)


@pytest.mark.slow
def test_a_lock_names_a_wheel_of_a_local_version(resolve, tmp_path, wheels):
    path = wheel(wheels, "tiny", "1.0+cu121")
    original = resolve(write(tmp_path / "requirements.txt", f"{path}\n"))
    lock = write(tmp_path / "environment.txt", "\n".join(original.lock))
    assert "%2Bcu121" in lock.read_text()
    assert resolve(lock).lock_digest == original.lock_digest


@pytest.mark.slow
def test_what_a_file_includes_decides_as_well(resolve, tmp_path):
    base = write(tmp_path / "base.txt", OFFLINE + "tiny==1.0\n")
    file = write(tmp_path / "requirements.txt", "-r base.txt\n")
    first = resolve(file)
    base.write_text(OFFLINE + "tiny==2.0\n")
    second = resolve(file)
    assert (version_of(first), version_of(second)) == ("1.0", "2.0")
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
def test_an_interpreter_is_named_from_the_working_directory(resolve, tmp_path, monkeypatch):
    (tmp_path / "mypython").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "elsewhere/requirements.txt", "--no-index\n--find-links ../wheels\ntiny==1.0\n")
    assert version_of(resolve(file, python="./mypython")) == "1.0"


@pytest.mark.slow
def test_the_dependencies_of_a_pyproject_are_installed(resolve, tmp_path, wheels):
    text = f'{PROJECT}["tiny==1.0"]\n[tool.uv]\nno-index = true\nfind-links = ["../wheels"]\n'
    file = write(tmp_path / "mine/pyproject.toml", text)
    assert version_of(resolve(file)) == "1.0"
    write(file, text.replace("==1.0", ""))
    uv("lock", folder=file.parent)
    wheel(wheels, "tiny", "9.0")
    assert version_of(resolve(file.with_name("uv.lock"))) == "2.0"  # locked before 9.0 was there
    assert version_of(resolve(file)) == "9.0"


PROJECT = '[project]\nname = "mine"\nversion = "0"\nrequires-python = ">=3.8"\ndependencies = '
SOURCES = "\n[tool.uv.sources]\n"
WHEEL = "wheels/tiny-1.0-py3-none-any.whl"
WORKSPACE = '\n[tool.uv.workspace]\nmembers = ["ours"]'
DEVELOPMENT = '\n[dependency-groups]\ndev = ["ours"]'
PYLOCK = 'lock-version = "1.0"\ncreated-by = "us"\n[[packages]]\nname = "ours"\ndirectory = { path = "ours" }'


def uv(*arguments: str, folder: Path) -> None:
    from uv import find_uv_bin

    subprocess.run([find_uv_bin(), "--quiet", "--offline", *arguments], cwd=folder, check=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("text", ['["tiny"]' + SOURCES + f'Tiny = {{ path = "{WHEEL}" }}', '["tiny @ {uri}"]'])
def test_a_wheel_that_a_pyproject_names_decides_as_well(resolve, tmp_path, wheels, text):
    path = tmp_path / WHEEL
    file = write(tmp_path / "pyproject.toml", PROJECT + text.replace("{uri}", path.as_uri()))
    first = resolve(file)
    assert resolve(file) == first
    change(path)
    assert resolve(file).lock_digest != first.lock_digest


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uv.lock", "pylock.toml"])
def test_an_archive_that_a_lock_names_and_that_changed_is_refused(resolve, tmp_path, capsys, name):
    write(tmp_path / "pyproject.toml", f'{PROJECT}["tiny"]{SOURCES}tiny = {{ path = "{WHEEL}" }}')
    uv("lock", folder=tmp_path)
    uv("export", "--frozen", "--format=pylock.toml", "--output-file=pylock.toml", folder=tmp_path)
    assert version_of(resolve(tmp_path / name)) == "1.0"
    change(tmp_path / WHEEL)
    with pytest.raises(ConfigError, match=r"cannot be built; uv printed:(.|\n)*[Hh]ash"):
        resolve(tmp_path / name)
    assert f"was built from {tmp_path / WHEEL}, which is missing or has changed" in capsys.readouterr().err


def test_an_archive_that_is_gone_is_said_by_a_dry_run(tmp_path):
    env = VenvEnv(str(write(tmp_path / "requirements.txt", WHEEL)), cache_root=str(tmp_path / "cache"))
    env.resolve()
    (tmp_path / WHEEL).unlink()
    assert f"was built from {tmp_path / WHEEL}, which is missing or has changed" in str(env.preview().to_build)


@pytest.mark.slow
def test_sources_of_what_is_not_installed_are_no_obstacle(resolve, tmp_path):
    project(tmp_path / "other", "other")
    sources = f'{SOURCES}other = {{ workspace = true }}\ntiny = {{ path = "{WHEEL}" }}\n'
    workspace = '[tool.uv.workspace]\nmembers = ["other"]\n[dependency-groups]\nmore = ["other"]\n'
    file = write(tmp_path / "pyproject.toml", PROJECT + '["tiny>=1"]' + sources + workspace)
    uv("lock", folder=tmp_path)
    assert "other" in (tmp_path / "uv.lock").read_text()
    assert version_of(resolve(file)) == version_of(resolve(tmp_path / "uv.lock")) == "1.0"


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
def test_what_can_be_edited_is_refused_and_leaves_nothing(resolve, tmp_path, name, text):
    folder = project(tmp_path / "ours", "ours")
    text = text.replace("{uri}", folder.as_uri())
    if name == "uv.lock":
        write(tmp_path / "pyproject.toml", text)
        uv("lock", folder=tmp_path)
    else:
        write(tmp_path / name, text)
    with pytest.raises(ConfigError, match=f"ours comes from {folder.as_uri()}.*install a wheel"):
        resolve(tmp_path / name)
    assert not list((tmp_path / "cache").glob("venv-*[!k]"))


def test_a_solve_that_fails_is_said_in_uvs_words_and_leaves_nothing(resolve, tmp_path):
    with pytest.raises(ConfigError, match=r"requirements\.txt cannot be built; uv printed:\n(.|\n)*tiny>7"):
        resolve(write(tmp_path / "requirements.txt", OFFLINE + "tiny>7\n"))
    assert not list((tmp_path / "cache").glob("venv-*[!k]"))


@pytest.mark.parametrize("text", ["[project", "project = 3"])
def test_a_pyproject_that_is_none_is_said_in_uvs_words(resolve, tmp_path, text):
    with pytest.raises(ConfigError, match=r"uv printed:\n(.|\n)*pyproject\.toml(.|\n)*TOML"):
        resolve(write(tmp_path / "pyproject.toml", text))


def test_a_python_that_cannot_run_jobs_is_said_and_leaves_nothing(resolve, tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "_PROGRAM", "raise SystemExit('too old')")
    with pytest.raises(ConfigError, match=r"was built, but its interpreter cannot run jobs: .*too old"):
        resolve(write(tmp_path / "requirements.txt", OFFLINE + "tiny\n"))
    assert not list((tmp_path / "cache").glob("venv-*[!k]"))


def test_a_python_that_is_not_there_is_said(resolve, tmp_path, monkeypatch):
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    with pytest.raises(ConfigError, match=r"uv printed(.|\n)*3\.77"):
        resolve(write(tmp_path / "requirements.txt", OFFLINE), python="3.77")


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
def test_a_file_that_cannot_be_used_is_refused_before_anything_is_built(tmp_path, name, text, words):
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
