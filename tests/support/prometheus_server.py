"""A separate Prometheus server on loopback, and queries of its data."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.slurm_cluster import free_ports
from tests.support.waiting import wait_until

_CONF = """\
global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}
scrape_configs: [{{job_name: studies, static_configs: [{{targets: {targets}}}]}}]
"""


def missing() -> str:
    """Return the reason why this machine cannot run the server; empty if it can."""
    return "" if shutil.which("prometheus") else "there is no prometheus on PATH"


@dataclass(frozen=True)
class Prometheus:
    """A running server.

    Attributes:
        targets: ports that the server scrapes, even if nothing listens there.
    """

    address: str
    targets: Sequence[int]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the current series of an expression, each with `metric` (its labels) and `value`."""
        words = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.address}/api/v1/query?{words}", timeout=60) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result

    def num_scrapes(self, port: int) -> int:
        """Return the number of scrapes of a target, including failed ones."""
        results = self.query(f'count_over_time(up{{instance="127.0.0.1:{port}"}}[1h])')
        return int(results[0]["value"][1]) if results else 0

    def num_answered(self, port: int) -> int:
        """Return the number of successful scrapes of a target."""
        results = self.query(f'sum_over_time(up{{instance="127.0.0.1:{port}"}}[1h])')
        return int(results[0]["value"][1]) if results else 0

    def series_of(self, port: int) -> set[frozenset[tuple[str, str]]]:
        """Return the labels of a target's current series, without the two labels that Prometheus adds."""
        results = self.query(f'{{__name__=~"collocation_.+",instance="127.0.0.1:{port}"}}')
        return {frozenset((k, v) for k, v in one["metric"].items() if k not in ("instance", "job")) for one in results}


@contextmanager
def running(folder: Path, num_targets: int) -> Iterator[Prometheus]:
    """Run a server that scrapes a number of ports of this host twice a second, until the context is left."""
    port, *targets = free_ports(1 + num_targets)
    configuration = folder / "prometheus.yml"
    configuration.write_text(_CONF.format(targets=json.dumps([f"127.0.0.1:{port}" for port in targets])))
    argv = ["prometheus", f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*argv, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    server = Prometheus(f"http://127.0.0.1:{port}", targets)

    def is_up() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            return server.num_scrapes(targets[-1]) > 0
        except OSError:
            return False

    try:
        wait_until(is_up)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
