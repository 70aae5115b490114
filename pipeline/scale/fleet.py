"""Workers on the GPUs of this host, each with a unit of the study, and the units that wait for one."""

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
from pipeline.base.system.words import counted
from pipeline.scale import cpus, workers
from pipeline.scale.worker_process import WorkerProcess
from pipeline.study.study_request import StudyRequest

_REFUSED = 2


def ports_of(exporter: Any, devices: Sequence[Device]) -> Mapping[str, int]:
    """By UUID, the port of each GPU's exporter: from the one that was given on; empty if it takes none."""
    first = getattr(exporter, "port", None)
    return {} if first is None else {device.uuid: first + position for position, device in enumerate(devices)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What of a study the GPUs of one model have to do.

    Attributes:
        asked: the study as it is asked of them.
        waiting: units that no GPU has.
        begun: by unit, the UUID of the GPU that has rows of it, which need not be run again there.
        took_s: how long each unit took that is done.
    """

    asked: StudyRequest
    devices: Sequence[Device]
    waiting: deque[int]
    begun: Mapping[int, str] = field(default_factory=dict)
    took_s: list[float] = field(default_factory=list)

    def in_turn(self) -> list[Device]:
        """The GPUs, those first that have begun a unit."""
        begun = {self.begun.get(unit) for unit in self.waiting}
        return sorted(self.devices, key=lambda device: device.uuid not in begun)

    def take(self, device: Device) -> int:
        """The unit that a GPU gets: one that it has begun, or else one that no other has, or else the next one."""
        unit = min(self.waiting, key=lambda each: {device.uuid: 0, None: 1}.get(self.begun.get(each), 2))
        self.waiting.remove(unit)
        return unit

    def seconds_left(self, running_s: Sequence[float]) -> float | None:
        """How long the units will take, those that run for so long among them, as others did; `None` if none did."""
        if not self.took_s:
            return None
        mean_s = fmean(self.took_s)
        rests_s = [max(0.0, mean_s - each) for each in running_s] + [mean_s] * len(self.waiting)
        return max(sum(rests_s) / len(self.devices), max(rests_s, default=0.0))


class Fleet:
    """Workers on some GPUs, and the units that wait for one.

    Attributes:
        ENDS_WORKERS: whether they are told to end if this process is killed; else they finish their units.
    """

    ENDS_WORKERS = False

    def __init__(self, asked: StudyRequest, devices: Sequence[Device], parts: Sequence[Part]) -> None:
        self.asked, self.devices, self.parts = asked, devices, parts
        self.part_of = {device.uuid: part for part in parts for device in part.devices}
        self.cpus: Mapping[str, frozenset[int]] = cpus.divided(devices)
        self.num_units = sum(len(part.waiting) for part in parts)
        self.idle = deque(device for part in parts for device in part.in_turn())
        self.num_given_up = self.worst = 0
        self.was_refused = self.has_measured = False
        self.is_interrupted = False
        self.begin_s = time.monotonic()
        self.workers: list[WorkerProcess] = []

    def run(self) -> None:
        """Until no unit is left, or no GPU to run one on. After a signal the workers get it, and are waited for."""
        with selectors.DefaultSelector() as selector:
            try:
                while self.start_more(selector):
                    self._listen(selector)
                with interrupts.held():
                    self._end_workers(selector)
            except Interrupted as interrupted:
                self.is_interrupted = True
                with interrupts.held():
                    for worker in self.workers:
                        if worker.is_busy:
                            worker.send_signal(interrupted.signum)
                    self._end_workers(selector)
                raise

    def start_more(self, selector: selectors.BaseSelector) -> bool:
        """Give each idle GPU a unit; whether any is at work."""
        for device in list(self.idle):
            part = self.part_of[device.uuid]
            if not part.waiting:
                continue
            if self.is_late(sum(len(each.waiting) for each in self.parts)):
                for each in self.parts:
                    self.num_given_up += len(each.waiting)
                    each.waiting.clear()
                break
            with interrupts.held():
                self.idle.remove(device)
                unit, config = part.take(device), part.asked.config
                decided = {"gpu.beside": config.gpu.beside, "plan_file": config.plan_file}
                if config.gpu.models > 1:
                    decided |= {"gpu.models": config.gpu.models}
                    decided |= {"gpu.model": config.gpu.model} if device.is_simulated else {}
                at_hand = (worker for worker in self.workers if worker.device == device and worker.takes_units)
                worker = next(at_hand, None) or self.start(device, decided | self.in_the_time_left(), selector)
                worker.give(f"unit {unit}", unit)
        return any(worker.is_busy for worker in self.workers)

    def is_late(self, num_left: int) -> bool:
        """Whether the time limit of the study is over; if so, says that so many units are left."""
        limit_s, left_s = self.asked.config.time_limit_s, self._time_left_s()
        if left_s is None or left_s > 0:
            return False
        words.say(f"time_limit_s={limit_s:g} is over: {counted(num_left, 'unit')} left")
        self.worst = max(self.worst, 1)
        return True

    def in_the_time_left(self) -> dict[str, object]:
        """What is decided for each worker that measures."""
        left_s = self._time_left_s()
        limit = {} if left_s is None else {"time_limit_s": f"{max(0.1, left_s):.1f}"}
        return {"resume": self.asked.config.resume, **limit}

    def status(self, *, is_whole: bool) -> int:
        """The exit status of the study: what a refused worker was to run, another GPU may have run."""
        if is_whole:
            return self.worst
        return self.worst or (_REFUSED if self.was_refused and not self.has_measured else 1)

    def _time_left_s(self) -> float | None:
        limit_s = self.asked.config.time_limit_s
        return None if limit_s is None else limit_s - (time.monotonic() - self.begin_s)

    def start(self, device: Device, decided: Mapping[str, object], selector: selectors.BaseSelector) -> WorkerProcess:
        """Start a worker on a GPU, with these keys decided for it."""
        ports = ports_of(self.asked.config.exporter, self.devices)
        port = {"exporter.port": ports[device.uuid]} if ports else {}
        of_worker = {"hydra/launcher": "worker", **decided, **port, "gpu.device": device.uuid}
        invocation = self.asked.invocation
        worker = WorkerProcess(
            device,
            workers.command(invocation.words, of_worker),
            os.environ | startup.job_variables | invocation.variables_of_workers(),
            self.cpus[device.uuid],
            ends_with_launcher=self.ENDS_WORKERS,
        )
        self.workers.append(worker)
        self.asked.has_started = True
        for output in worker.outputs:
            selector.register(output, selectors.EVENT_READ, (worker, output))
        return worker

    def _end_workers(self, selector: selectors.BaseSelector) -> None:
        """End the workers once they have run what they were given."""
        for worker in self.workers:
            worker.dismiss()
        while self.workers:
            self._listen(selector)

    def _listen(self, selector: selectors.BaseSelector) -> None:
        """Pass on what the workers say, and take note of what ends."""
        ready = selector.select()
        with interrupts.held():
            for key, _ in ready:
                worker, output = key.data
                if output.closed:  # it was read with the other one
                    continue
                status = worker.listen(output)
                for registered in [key for key in selector.get_map().values() if key.data[1].closed]:
                    selector.unregister(registered.fileobj)
                if worker.has_ended:
                    self.workers.remove(worker)
                if status is not None:
                    self.ended(worker, status)

    def ended(self, worker: WorkerProcess, status: int) -> None:
        """Take note of how a unit ended; its GPU gets the next one."""
        part = self.part_of[worker.device.uuid]
        if status == _REFUSED:
            part.waiting.appendleft(worker.unit)
            worker.dismiss()
        else:
            self.idle.append(worker.device)
        if status == 0:
            part.took_s.append(time.monotonic() - worker.begin_s)
        progress = "" if self.is_interrupted else f"; {self._progress()}"
        words.say(f"{worker.name} | ended with exit status {status}{progress}")
        if status == _REFUSED:
            words.say(f"GPU {worker.device.index} gets no more units; unit {worker.unit} waits for another GPU")
            self.was_refused = True
        else:
            self.has_measured = True
            self.count(status)

    def count(self, status: int) -> None:
        """Let the exit status of the study be no better than that of a worker; one that was killed has failed."""
        was_killed = status > 128 and status - 128 not in interrupts.SIGNALS
        self.worst = max(self.worst, 1 if was_killed else status)

    def _progress(self) -> str:
        """How many units have ended, and how long the others will take."""
        busy = [worker for worker in self.workers if worker.is_busy]
        num_left = self.num_given_up + len(busy) + sum(len(part.waiting) for part in self.parts)
        now_s = time.monotonic()
        left_s = [
            part.seconds_left([now_s - each.begin_s for each in busy if each.device in part.devices])
            for part in self.parts
        ]
        known_s = [seconds for seconds in left_s if seconds is not None]
        is_known = len(known_s) == len(left_s) and max(known_s) >= 1
        left = f", about {words.duration(max(known_s))} left" if is_known else ""
        return f"{self.num_units - num_left} of {counted(self.num_units, 'unit')} ended{left}"
