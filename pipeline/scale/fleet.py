"""Workers on the GPUs of this host, and the queue of shards."""

from __future__ import annotations

import os
import selectors
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from pipeline.base.domain.records import Device
from pipeline.base.system import interrupts, startup, words
from pipeline.base.system.interrupts import Interrupted
from pipeline.base.system.words import format_count
from pipeline.scale import worker_command, worker_process
from pipeline.scale.worker_process import WorkerProcess
from pipeline.study.study_request import StudyRequest

_REFUSED = 2


def assign_ports(exporter: Any, devices: Sequence[Device]) -> Mapping[str, int]:
    """Return consecutive exporter ports by GPU UUID, beginning with the configured port; empty without a port."""
    first = getattr(exporter, "port", None)
    return {} if first is None else {device.uuid: first + position for position, device in enumerate(devices)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The shards for the GPUs of one model.

    Attributes:
        request: study with the settings for these GPUs.
        waiting: numbers of the shards that are not assigned.
        gpu_by_shard: UUID of the GPU that already has rows of a shard, by shard number; it reuses these rows.
        took_s: durations of the finished shards.
    """

    request: StudyRequest
    devices: Sequence[Device]
    waiting: deque[int]
    gpu_by_shard: Mapping[int, str] = field(default_factory=dict)
    took_s: list[float] = field(default_factory=list)

    def sort_devices(self) -> list[Device]:
        """Return the GPUs, beginning with those that have rows of a waiting shard."""
        started_uuids = {self.gpu_by_shard.get(shard) for shard in self.waiting}
        return sorted(self.devices, key=lambda device: device.uuid not in started_uuids)

    def take(self, device: Device) -> int:
        """Choose a shard for a GPU: first one that it has begun, then one that no GPU has begun, then any."""
        shard = min(self.waiting, key=lambda shard: {device.uuid: 0, None: 1}.get(self.gpu_by_shard.get(shard), 2))
        self.waiting.remove(shard)
        return shard

    def estimate_seconds_left(self, running_s: Sequence[float]) -> float | None:
        """Estimate the seconds until all shards are finished; `None` if no shard has finished."""
        if not self.took_s:
            return None
        mean_s = fmean(self.took_s)
        rests_s = [max(0.0, mean_s - spent_s) for spent_s in running_s] + [mean_s] * len(self.waiting)
        return max(sum(rests_s) / len(self.devices), max(rests_s, default=0.0))


class Fleet:
    """Workers on some GPUs, and the queue of shards."""

    ENDS_WORKERS = False  # when this process is killed, workers finish their shards

    def __init__(self, request: StudyRequest, devices: Sequence[Device], parts: Sequence[Part]) -> None:
        self.request, self.devices, self.parts = request, devices, parts
        self.part_of = {device.uuid: part for part in parts for device in part.devices}
        self.cpus: Mapping[str, frozenset[int]] = worker_process.divide_cpus(devices)
        self.num_shards = sum(len(part.waiting) for part in parts)
        self.idle = deque(device for part in parts for device in part.sort_devices())
        self.num_given_up = self.worst = 0
        self.was_refused = self.has_measured = False
        self.is_interrupted = False
        self.begin_s = time.monotonic()
        self.workers: list[WorkerProcess] = []

    def run(self) -> None:
        """Run until no shards or no usable GPUs remain; forward a signal to the workers and wait for them."""
        with selectors.DefaultSelector() as selector:
            try:
                while self.start_more(selector):
                    self._listen(selector)
                with interrupts.hold_interrupts():
                    self._end_workers(selector)
            except Interrupted as interrupted:
                self.is_interrupted = True
                with interrupts.hold_interrupts():
                    for worker in self.workers:
                        if worker.is_busy:
                            worker.send_signal(interrupted.signum)
                    self._end_workers(selector)
                raise

    def start_more(self, selector: selectors.BaseSelector) -> bool:
        """Assign a shard to each idle GPU; return whether a worker is busy."""
        for device in list(self.idle):
            part = self.part_of[device.uuid]
            if not part.waiting:
                continue
            if self.is_late(sum(len(queue.waiting) for queue in self.parts)):
                for queue in self.parts:
                    self.num_given_up += len(queue.waiting)
                    queue.waiting.clear()
                break
            with interrupts.hold_interrupts():
                self.idle.remove(device)
                shard, config = part.take(device), part.request.config
                decided = {"gpu.other_gpus": config.gpu.other_gpus, "plan_file": config.plan_file}
                if config.gpu.models > 1:
                    decided |= {"gpu.models": config.gpu.models}
                    decided |= {"gpu.model": config.gpu.model} if device.is_simulated else {}
                at_hand = (worker for worker in self.workers if worker.device == device and worker.takes_shards)
                worker = next(at_hand, None) or self.start(device, decided | self.decide_limits(), selector)
                worker.give(f"shard {shard}", shard)
        return any(worker.is_busy for worker in self.workers)

    def is_late(self, num_left: int) -> bool:
        """Return whether the time limit of the study has passed; if so, report the remaining shards."""
        limit_s, left_s = self.request.config.time_limit_s, self._compute_time_left_s()
        if left_s is None or left_s > 0:
            return False
        words.say(f"time_limit_s={limit_s:g} has passed: {format_count(num_left, 'shard')} left")
        self.worst = max(self.worst, 1)
        return True

    def decide_limits(self) -> dict[str, object]:
        """Return the keys that every measuring worker gets."""
        left_s = self._compute_time_left_s()
        limit = {} if left_s is None else {"time_limit_s": f"{max(0.1, left_s):.1f}"}
        return {"resume": self.request.config.resume, **limit}

    def compute_exit_status(self, *, is_whole: bool) -> int:
        """Return the exit status of the study; other GPUs may have run the shards that a worker refused."""
        if is_whole:
            return self.worst
        return self.worst or (_REFUSED if self.was_refused and not self.has_measured else 1)

    def _compute_time_left_s(self) -> float | None:
        limit_s = self.request.config.time_limit_s
        return None if limit_s is None else limit_s - (time.monotonic() - self.begin_s)

    def start(self, device: Device, decided: Mapping[str, object], selector: selectors.BaseSelector) -> WorkerProcess:
        """Start a worker on a GPU with the keys that the launcher sets."""
        ports = assign_ports(self.request.config.exporter, self.devices)
        port = {"exporter.port": ports[device.uuid]} if ports else {}
        of_worker = {"hydra/launcher": "worker", **decided, **port, "gpu.device": device.uuid}
        invocation = self.request.invocation
        worker = WorkerProcess(
            device,
            worker_command.make_command(invocation.words, of_worker),
            os.environ | startup.job_variables | invocation.make_worker_variables(),
            self.cpus[device.uuid],
            ends_with_launcher=self.ENDS_WORKERS,
        )
        self.workers.append(worker)
        self.request.has_started = True
        for output in worker.outputs:
            selector.register(output, selectors.EVENT_READ, (worker, output))
        return worker

    def _end_workers(self, selector: selectors.BaseSelector) -> None:
        for worker in self.workers:
            worker.dismiss()
        while self.workers:
            self._listen(selector)

    def _listen(self, selector: selectors.BaseSelector) -> None:
        ready = selector.select()
        with interrupts.hold_interrupts():
            for key, _ in ready:
                worker, output = key.data
                if output.closed:  # read and closed together with the other output
                    continue
                status = worker.listen(output)
                for registered in [key for key in selector.get_map().values() if key.data[1].closed]:
                    selector.unregister(registered.fileobj)
                if worker.has_ended:
                    self.workers.remove(worker)
                if status is not None:
                    self.handle_end(worker, status)

    def handle_end(self, worker: WorkerProcess, status: int) -> None:
        """Record the end of a shard; its GPU becomes idle, unless the worker refused the shard."""
        part = self.part_of[worker.device.uuid]
        if status == _REFUSED:
            part.waiting.appendleft(worker.shard)
            worker.dismiss()
        else:
            self.idle.append(worker.device)
        if status == 0:
            part.took_s.append(time.monotonic() - worker.begin_s)
        progress = "" if self.is_interrupted else f"; {self._describe_progress()}"
        words.say(f"{worker.name} | ended with exit status {status}{progress}")
        if status == _REFUSED:
            words.say(f"GPU {worker.device.index} gets no more shards; shard {worker.shard} waits for another GPU")
            self.was_refused = True
        else:
            self.has_measured = True
            self.count(status)

    def count(self, status: int) -> None:
        """Raise the exit status of the study to a worker's; 1 for a killed worker."""
        was_killed = status > 128 and status - 128 not in interrupts.SIGNALS
        self.worst = max(self.worst, 1 if was_killed else status)

    def _describe_progress(self) -> str:
        busy = [worker for worker in self.workers if worker.is_busy]
        num_left = self.num_given_up + len(busy) + sum(len(part.waiting) for part in self.parts)
        now_s = time.monotonic()
        left_s = [
            part.estimate_seconds_left([now_s - worker.begin_s for worker in busy if worker.device in part.devices])
            for part in self.parts
        ]
        known_s = [seconds for seconds in left_s if seconds is not None]
        is_known = len(known_s) == len(left_s) and max(known_s) >= 1
        remaining = f", about {words.format_duration(max(known_s))} left" if is_known else ""
        return f"{self.num_shards - num_left} of {format_count(self.num_shards, 'shard')} ended{remaining}"
