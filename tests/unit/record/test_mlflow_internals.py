"""Uses of MLflow beyond its documented interface, lines that no database takes, and errors of its servers."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipeline.base.domain import script_runs
from pipeline.base.system.errors import TrackingError
from pipeline.record.store import results
from pipeline.record.store.local_store import open_store, set_mlflow_defaults
from tests.support.tracking_cases import PROJECT

_KNOWING = {
    "pipeline/base/domain/script_runs.py",
    "pipeline/record/store/database_schema.py",
    "pipeline/record/store/local_store.py",
    "pipeline/record/store/pages.py",
    "pipeline/record/store/portable_paths.py",
}


def test_few_modules_know_what_is_private() -> None:
    words = ("mlflow\\.(store|utils|_)", "viewState", r"(FROM|INTO) experiments\b", r"\.artifact\.uploading")
    private = re.compile("|".join(words))
    files = [file for name in ("pipeline", "listeners", "hydra_plugins") for file in (PROJECT / name).rglob("*.py")]
    knowing = {file.relative_to(PROJECT).as_posix() for file in files if private.search(file.read_text("utf-8"))}
    assert knowing == _KNOWING


def test_no_module_reads_or_writes_the_tables_of_runs() -> None:
    tables = re.compile(r"(FROM|INTO|UPDATE|JOIN) (runs|tags|params|metrics|latest_metrics)\b")
    files = (PROJECT / "pipeline").rglob("*.py")
    assert not [file for file in files if tables.search(file.read_text("utf-8"))]


@pytest.mark.parametrize("line", [f"1 2.0 {2**63}", f"{2**63} 2.0 1", "1 two 1", "1 2.0 1 more", "1 2.0 1\ttorn"])
def test_a_line_that_is_no_point_is_left_out(tmp_path: Path, line: str) -> None:
    file = tmp_path / "loss"
    file.write_text(f"1000 0.5 7\n{line}\n2000 0.25 8\n")
    points = script_runs._points(file, 100)
    assert len(points) == 2


REFUSAL = b"Invalid Host header - possible DNS rebinding attack detected"
"""The reply of MLflow 3.17 to a name that is not among its allowed hosts."""


class _Refusing(BaseHTTPRequestHandler):
    body = b""

    def do_GET(self) -> None:
        self.send_response(403)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Refusing,), {"body": request.param}))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def _without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    set_mlflow_defaults()
    for name in ("http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("port", [REFUSAL], indirect=True)
def test_a_server_that_refuses_its_host_name_is_told_to_allow_it(tmp_path: Path, port: int) -> None:
    address = f"http://127.0.0.1:{port}"
    store = open_store(tmp_path, address)
    for ask in (lambda: store.open_experiment("e"), lambda: results.list_experiments(address)):
        with pytest.raises(TrackingError, match=rf"--allowed-hosts '127\.0\.0\.1:{port},localhost:\*'"):
            ask()


@pytest.mark.parametrize("port", [b"<html>Access Denied</html>"], indirect=True)
def test_a_proxy_that_answers_for_the_server_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    monkeypatch.setenv("http_proxy", f"http://user:secret@127.0.0.1:{port}")
    store = open_store(tmp_path, "http://mlflow.cluster.internal:5000")
    with pytest.raises(TrackingError, match=rf"proxy http://<hidden>@127\.0\.0\.1:{port}.* no_proxy=mlflow\.cluster"):
        store.open_experiment("e")
    with pytest.raises(TrackingError, match=r"no_proxy=mlflow\.cluster\.internal`, or check --uri"):
        results.list_experiments("http://mlflow.cluster.internal:5000")
    local = open_store(tmp_path, f"http://127.0.0.1:{port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(TrackingError, match=r"Access Denied.*; check tracking\.uri, or use tracking=local$"):
        local.open_experiment("e")
