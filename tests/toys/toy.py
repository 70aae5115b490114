"""A job that does nothing but behave, or misbehave in the way that its first argument names."""

import _thread
import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.toys.waiting import waited_ms
from workloads import client


def main() -> None:  # noqa: C901  one line a manner
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--device")
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("manner", nargs="?", default="well")
    parser.add_argument("--only", type=int, help="index of the one job that misbehaves")
    options = parser.parse_args()
    manner = options.manner
    index = int(Path(os.environ["COLLOCATION_JOB"]).name)
    if options.only is not None and options.only != index:
        manner = "well"
    if manner == "dies_before_hello":
        print("no library today", file=sys.stderr)
        sys.exit(3)
    if manner == "ignores_term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if manner == "forks":
        child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
        for has_session in (False, True):
            started = subprocess.Popen(
                [sys.executable, "-c", child], start_new_session=has_session, stdout=subprocess.PIPE
            )
            started.stdout.readline()  # it ignores SIGTERM from here on
    if manner == "hides":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(subprocess.Popen(["sleep", "600"], env={}, start_new_session=True).pid, flush=True)
    if manner == "fills_stdout":
        for _ in range(20_000):
            print("x" * 1000)
    with client.attach() as job:
        if manner == "dies_before_ready":
            os.kill(os.getpid(), signal.SIGKILL)
        if manner == "never_ready":
            time.sleep(600)
        if manner == "ends_before_ready":
            return
        if manner == "breaks_protocol":
            job._socket.sendall(b"[" * 4000 + b"\n")
        if manner == "raises_before_ready":
            raise ValueError("a model that does not exist")
        if manner == "takes_turns":
            _take_a_turn(job)
        before_ms = waited_ms() if manner == "waits" else 0.0
        job.ready()
        if manner == "waits":
            job.metric("waited_ms", waited_ms() - before_ms)
        if manner == "starts_threads":
            _print_in_threads(job)
        if manner == "raises":
            raise RuntimeError("something went wrong")
        if manner == "out_of_memory":
            raise MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if manner == "computes_wrong":
            job.wrong("1 + 1 = 3")
        if manner == "silent_exit":
            os._exit(0)
        if manner == "works_while_held":
            threading.Thread(target=lambda: list(job.until_stop(iter(int, 1))), daemon=True).start()
        if manner == "no_steps":
            while not job.stopping:
                time.sleep(0.01)
            return
        if manner in ("hangs", "hides", "ignores_term"):
            time.sleep(600)
        steps = 20
        epoch = 0
        while not job.stopping and (options.epochs == 0 or epoch < options.epochs):
            epoch += 1
            began = time.monotonic()
            for _ in job.until_stop(range(steps)) if manner == "can_be_held" else range(steps):
                time.sleep(0.005)
                job.step(samples=4, epoch=epoch)
                if manner == "ends_early" and epoch == 2:
                    return
            job.epoch(epoch, time.monotonic() - began, loss=1 / epoch)
    if manner == "dies_after_bye":
        os.kill(os.getpid(), signal.SIGSEGV)


def _take_a_turn(job: client.NullJob) -> None:
    """Be inside for a while, and leave a forked child behind that has our descriptors for longer."""
    with job.take_turn():
        job.metric("inside", 1)
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        time.sleep(0.1)
        job.metric("inside", 0)


def _print_in_threads(job: client.NullJob) -> None:
    """Print the index of the job in each kind of thread, and in one of nobody."""

    def say(kind: str) -> None:
        print(f"{kind} of job {client.attach().index}", flush=True)

    def start(target, *arguments) -> None:
        thread = threading.Thread(target=target, args=arguments)
        thread.start()
        thread.join()

    start(say, "thread")
    start(start, say, "nested thread")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(start, say, "thread of a pool").result()
    timer = threading.Timer(0, say, ["timer"])
    timer.start()
    timer.join()
    start(lambda: 1 / 0)
    is_over = threading.Event()

    def fail_to_attach() -> None:
        try:
            client.attach()
        except RuntimeError as error:
            sys.stdout.write(f"nobody's, of job {job.index}: {error}\n")
        is_over.set()

    _thread.start_new_thread(fail_to_attach, ())
    is_over.wait()


if __name__ == "__main__":
    main()
