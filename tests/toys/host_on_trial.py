"""A host program that tries one operation in contexts before it hosts jobs; `manner` says how the contexts behave."""

import os
import signal
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])
from workloads import green_trial, host_green, tenants  # noqa: E402


class Context:
    def __init__(self, manner: str) -> None:
        self._manner = manner

    def issue(self, compute):
        if self._manner == "fails":
            raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED\nsearch for it")
        if self._manner == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._manner == "is_unknown":
            raise KeyError("no such model")
        return compute() + (self._manner == "differs")

    def capture(self, compute):
        return compute

    def wait(self) -> None:
        if self._manner == "hangs":
            time.sleep(600)


def make_place(options: dict, num_tenants: int) -> tenants.Place:
    command = [__file__, "try", options["manner"], str(num_tenants), str(options["limit_s"])]
    fault = host_green.find_fault(command, options["limit_s"])
    if fault:
        raise tenants.UnsupportedError(f"{fault}; use another mode")
    return tenants.Place()


def try_all() -> None:
    manner, num_contexts, limit_s = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    contexts = [*(Context("works") for _ in range(num_contexts - 1)), Context(manner)]
    green_trial.try_operations(iter([("addition", lambda: 2)]), Context("works"), contexts, int.__eq__, limit_s)


if __name__ == "__main__":
    if sys.argv[1] == "try":
        green_trial.run_trial(try_all)
    tenants.run_tenants(make_place)
