"""Certificates for downloads, and the files and folders that an environment trusts."""

from __future__ import annotations

import os
import shutil
import ssl
from pathlib import Path

import pytest

from pipeline.base.system.errors import CommandError, ConfigError
from pipeline.prepare.env import trust, uv
from pipeline.prepare.env.builder import Builder

SYSTEM = {"UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true"}


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Places of pip's files that are the test's own, and a system that has certificates."""
    for name in (*SYSTEM, "SSL_CERT_FILE", "SSL_CERT_DIR", "PIP_CERT", "PIP_CONFIG_FILE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(uv, "_list_config_files", lambda: iter([tmp_path / "user.conf", tmp_path / "global.conf"]))
    monkeypatch.setattr(uv, "_has_system_store", lambda: True)
    (tmp_path / "ca.pem").touch()
    (tmp_path / "folder").mkdir()
    return tmp_path


def test_the_certificates_of_the_system_are_trusted_by_default():
    assert uv.choose_variables() == SYSTEM


@pytest.mark.parametrize("name", SYSTEM)
@pytest.mark.parametrize("value", ["false", "true", ""])
def test_who_has_told_uv_whether_to_trust_the_system_is_obeyed(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert uv.choose_variables() == {}


def test_a_system_without_certificates_is_not_trusted_alone(monkeypatch, places):
    monkeypatch.undo()
    for capath in (None, str(places / "folder"), str(places / "absent")):
        paths = ssl.DefaultVerifyPaths(None, capath, "SSL_CERT_FILE", "", "SSL_CERT_DIR", "")
        monkeypatch.setattr(ssl, "get_default_verify_paths", lambda paths=paths: paths)
        assert not uv._has_system_store()
    paths = ssl.DefaultVerifyPaths(None, str(places / "folder"), "SSL_CERT_FILE", "", "SSL_CERT_DIR", "")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    (places / "folder/ca.pem").touch()
    assert uv._has_system_store()


def test_the_certificate_of_pip_is_that_of_uv(monkeypatch, places):
    variables = {"SSL_CERT_FILE": str(places / "ca.pem")}
    (places / "global.conf").write_text(f"[global]\ncert = {places}/ca.pem\nindex-url = https://u:%@h/simple\n")
    assert uv.choose_variables() == SYSTEM | variables
    (places / "user.conf").write_text(f"[install]\ncert = {places}/folder\n[global]\ncert = {places}/ca.pem\n")
    assert uv.choose_variables() == SYSTEM | {"SSL_CERT_DIR": str(places / "folder")}
    (places / "user.conf").write_text("cert = of no section\n")
    assert uv.choose_variables() == SYSTEM | variables
    monkeypatch.setenv("PIP_CERT", str(places / "absent.pem"))
    assert uv.choose_variables() == SYSTEM
    monkeypatch.setenv("PIP_CERT", str(places / "ca.pem"))
    assert uv.choose_variables() == SYSTEM | variables
    monkeypatch.setenv("SSL_CERT_DIR", "/certificates")
    assert uv.choose_variables() == SYSTEM


def test_the_files_of_pip_are_looked_for_where_pip_does(monkeypatch, places):
    monkeypatch.undo()
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/own.conf")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("XDG_CONFIG_DIRS", "/a:/b")
    first, _, *later_files = map(str, uv._list_config_files())
    assert [first, *later_files] == [
        *("/own.conf", "/home/me/.config/pip/pip.conf", "/home/me/.pip/pip.conf", "/etc/pip.conf"),
        *("/b/pip/pip.conf", "/a/pip/pip.conf"),
    ]
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    assert list(uv._list_config_files()) == []


def test_uv_has_them_beside_the_variables_of_the_user(monkeypatch, places):
    pytest.importorskip("uv")
    monkeypatch.setenv("UV_INDEX_URL", "https://mirror/simple")
    ran = []
    monkeypatch.setattr(
        "pipeline.prepare.env.builder.helper_program.run", lambda argv, **how: ran.append(how["environ"])
    )
    uv.run(Builder(title="t", scratch=places, lock=0), ["--version"], places)
    (environ,) = ran
    assert (environ["UV_SYSTEM_CERTS"], environ["UV_INDEX_URL"]) == ("true", "https://mirror/simple")


def test_an_issuer_that_nobody_knows_is_an_error_with_its_remedy(monkeypatch, places):
    pytest.importorskip("uv")

    def fail(argv, **_):
        raise CommandError(argv, 2, "cause: invalid peer certificate: UnknownIssuer")

    monkeypatch.setattr("pipeline.prepare.env.builder.helper_program.run", fail)
    with pytest.raises(ConfigError, match=r"UnknownIssuer\n    set SSL_CERT_FILE"):
        uv.run(Builder(title="t", scratch=places, lock=0), ["--version"], places)


@pytest.mark.parametrize(
    ("printed", "remedy"),
    [
        (
            "x Failed to fetch: `https://pypi.org/simple/numpy/`\ncause: error sending request\ncause: dns error",
            "uv does not read pip.conf; set UV_INDEX_URL",
        ),
        (
            "x Failed to fetch: `https://mirror/simple/`\ncause: HTTP status client error (401 Unauthorized)",
            "its login",
        ),
        (
            "hint: `torch` was found on https://mirror/whl/cpu, but not at the requested version. If all indexes are "
            "equally trusted, use `--index-strategy unsafe-best-match` to consider all versions from all indexes",
            "export UV_INDEX_STRATEGY=unsafe-best-match",
        ),
        ("No solution found when resolving dependencies", None),
    ],
)
def test_a_package_index_that_uv_refuses_has_its_remedy(monkeypatch, places, printed, remedy):
    pytest.importorskip("uv")

    def fail(argv, **_):
        raise CommandError(argv, 2, printed)

    monkeypatch.setattr("pipeline.prepare.env.builder.helper_program.run", fail)
    with pytest.raises(ConfigError) as refused:
        uv.run(Builder(title="t", scratch=places, lock=0), ["--version"], places)
    lines = str(refused.value).splitlines()
    assert lines[-1].strip() == printed.splitlines()[-1] if remedy is None else remedy in lines[-1]


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "bin" / "program"
    path.parent.mkdir()
    path.touch(0o755)
    return path


def swap(program: Path, how: str) -> None:
    """Make it possible that somebody else put the program there."""
    if how == "file":
        program.chmod(0o777)
    elif how == "folder":
        program.parent.chmod(0o777)
    elif how == "gone":
        shutil.rmtree(program.parent)
        program.parent.parent.chmod(0o1777)
    else:
        program.parent.parent.joinpath("open").mkdir()
        program.parent.parent.joinpath("open").chmod(0o777)
        program.rename(program.parent.parent / "open" / "moved")
        program.symlink_to("../open/moved")


@pytest.mark.parametrize("how", ["file", "folder", "gone", "link"])
def test_a_program_that_others_could_have_put_there_is_known(program, how):
    assert trust.find_replaceable_part(program) is None
    swap(program, how)
    assert trust.find_replaceable_part(program) is not None


def test_a_link_to_a_program_of_ours_is_trusted(tmp_path, program):
    link = tmp_path / "link"
    link.symlink_to("bin/../bin/program")
    assert trust.find_replaceable_part(link) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_program_of_another_user_is_not_trusted(program):
    assert trust.find_replaceable_part(program) is None
    os.chown(program.parent, 4242, 0)
    assert trust.find_replaceable_part(program) == program.parent


def test_links_that_lead_nowhere_end(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert trust.find_replaceable_part(tmp_path / "a") is None
