"""The servers: each lists its workers' devices and answers requests with a matrix product computed by PyTorch."""

from __future__ import annotations

import functools
import http.server
import json
import os
import platform
import shutil
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from workloads.frameworks.computing import GPU, Framework, Matrix, Seen, Torch, require_module
from workloads.program import find_free_port

_LIMIT_S = 120.0
# With these settings, Ray sends no usage statistics, and waits longer for its own processes if the host is busy.
_RAY_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "300"}


class Serving(Framework):
    """A server whose answers PyTorch computes."""

    def __init__(self) -> None:
        self.torch = Torch()

    def devices(self) -> Sequence[Seen]:
        return self.torch.devices()

    def why_no_gpu(self) -> str:
        return self.torch.why_no_gpu()


class OverHttp(Serving):
    """The HTTP server of Python's standard library, in a thread of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.version = f"Python {platform.python_version()}, PyTorch {self.torch.version}"
        torch = self.torch

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                try:
                    status, answer = 200, json.dumps(torch.compute(int(self.path[1:]), *body))
                except Exception as error:  # noqa: BLE001  the error is the answer
                    status, answer = 500, f"{type(error).__name__}: {error}"
                self.send_response(status)
                self.end_headers()
                self.wfile.write(answer.encode())

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()

    def compute(self, position: int, a: Matrix, b: Matrix) -> tuple[Matrix, float]:
        product, total = _post(self._server.server_address[1], f"/{position}", [a, b])
        return product, total

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Replica:
    """A process of Ray Serve. It answers two matrices with their product, and an empty body with its devices."""

    def __init__(self) -> None:
        self.torch = Torch()

    async def __call__(self, request: Any) -> Any:
        body = await request.body()
        return self.torch.compute(0, *json.loads(body)) if body else [asdict(device) for device in self.torch.devices()]


class RayServe(Framework):
    """Ray Serve: one process per device, to which Ray makes only that device visible."""

    def __init__(self) -> None:
        for name, value in _RAY_SETTINGS.items():
            os.environ.setdefault(name, value)
        with require_module("ray"):
            import ray
            from ray import serve
        self._ray, self._serve = ray, serve
        torch = Torch()
        self._why_no_gpu, self.version = torch.why_no_gpu(), f"{self._ray.__version__}, PyTorch {torch.version}"
        num_gpus = sum(device.kind == GPU for device in torch.devices())
        # Ray's socket paths must be short.
        self._folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        self._port = find_free_port()
        try:
            self._ray.init(
                address="local",
                num_gpus=num_gpus,
                include_dashboard=False,
                log_to_driver=False,
                _temp_dir=self._folder,
            )
            self._serve.start(http_options={"host": "127.0.0.1", "port": self._port})
            resources = {"num_cpus": 0, "num_gpus": 1 if num_gpus else 0}
            for position in range(num_gpus or 1):
                replica = self._serve.deployment(Replica).options(ray_actor_options=resources).bind()
                self._serve.run(replica, name=f"device-{position}", route_prefix=f"/{position}")
            self._seen = [Seen(**_post(self._port, f"/{position}")[0]) for position in range(num_gpus or 1)]
        except BaseException:
            self.close()
            raise

    def devices(self) -> Sequence[Seen]:
        return self._seen

    def why_no_gpu(self) -> str:
        return self._why_no_gpu

    def compute(self, position: int, a: Matrix, b: Matrix) -> tuple[Matrix, float]:
        product, total = _post(self._port, f"/{position}", [a, b])
        return product, total

    def close(self) -> None:
        if self._ray.is_initialized():
            self._serve.shutdown()
            self._ray.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)


class TritonServer(Serving):
    """NVIDIA's Triton Inference Server, started by PyTriton. Its answers are computed in this process."""

    def __init__(self) -> None:
        super().__init__()
        with require_module("pytriton"):
            import numpy
            import pytriton
            from pytriton import client, triton
            from pytriton import model_config as model
        self._client, self._numpy, self._port = client, numpy, find_free_port()
        self.version = f"PyTriton {pytriton.__version__}, PyTorch {self.torch.version}"
        ports = triton.TritonConfig(
            http_address="127.0.0.1",
            http_port=self._port,
            grpc_address="127.0.0.1",
            grpc_port=find_free_port(),
            metrics_port=find_free_port(),
        )
        self._triton = triton.Triton(config=ports)

        def tensor(name: str, rank: int) -> Any:
            return model.Tensor(name=name, dtype=numpy.float32, shape=(-1,) * rank)

        for position in range(len(self.torch.devices())):
            self._triton.bind(
                model_name=f"device{position}",
                infer_func=functools.partial(self._answer, position),
                inputs=[tensor("a", 2), tensor("b", 2)],
                outputs=[tensor("product", 2), tensor("total", 1)],
                config=model.ModelConfig(batching=False),
            )
        self._triton.run()

    def _answer(self, position: int, requests: Sequence[Any]) -> list[dict[str, Any]]:
        answers = []
        for request in requests:
            product, total = self.torch.compute(position, request["a"].tolist(), request["b"].tolist())
            outputs = {"product": product, "total": [total]}
            answers.append({name: self._numpy.array(output, dtype="float32") for name, output in outputs.items()})
        return answers

    def compute(self, position: int, a: Matrix, b: Matrix) -> tuple[Matrix, float]:
        factors = {"a": a, "b": b}
        url = f"http://127.0.0.1:{self._port}"
        with self._client.ModelClient(url, f"device{position}", init_timeout_s=_LIMIT_S) as client:
            answer = client.infer_sample(**{name: self._numpy.array(m, dtype="float32") for name, m in factors.items()})
        return answer["product"].tolist(), float(answer["total"][0])

    def close(self) -> None:
        self._triton.stop()


def _post(port: int, path: str, body: object = None) -> Any:
    data = b"" if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data)
    try:
        with urllib.request.urlopen(request, timeout=_LIMIT_S) as reply:  # noqa: S310  of this machine
            return json.load(reply)
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        raise RuntimeError(f"the server answered with status {error.code}: {text}") from error
