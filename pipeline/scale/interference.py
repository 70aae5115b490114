"""The launcher `beside`, which measures each shard on one GPU, alone and while the other GPUs of the host work.

The other GPUs run the same study from its beginning until the shard is measured. Their rows are recorded in a separate
experiment, which no report of the study reads.
"""

from __future__ import annotations

import dataclasses
import selectors
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.base.domain.records import Device, Plan, Resume
from pipeline.base.system import interrupts, words
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.interrupts import UndoStack
from pipeline.base.system.words import format_count
from pipeline.plan import shards
from pipeline.plan.config_reader import name_company
from pipeline.plan.inventory import Inventory
from pipeline.scale import worker_command
from pipeline.scale.fleet import Fleet
from pipeline.scale.local_gpus import refuse_mode_switches, refuse_taken_ports, select_free
from pipeline.scale.worker_process import WorkerProcess
from pipeline.study import plans, stored_results
from pipeline.study.preview import preview
from pipeline.study.study_request import StudyRequest

_COMPANY = "company"
_REPEATS = 100  # enough for the other GPUs to work until they are stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """The plan and remaining shards of the study for one number of other busy GPUs (`num_other_gpus`)."""

    num_other_gpus: int
    plan: Plan
    plan_file: str
    numbers: Sequence[int]


def run(request: StudyRequest, _: UndoStack, devices_option: Any) -> int:
    """Measure each shard on the first GPU, alone and while other GPUs work; return the worst exit status."""
    devices = select_free(request, devices_option, "beside", of_one_model=True)
    if len(devices) < 2:
        raise ConfigError(
            f"hydra/launcher=beside needs two free GPUs, but only {devices[0].name} ({devices[0].uuid}) is free; "
            "remove hydra/launcher to measure on this GPU alone"
        )
    refuse_taken_ports(request, devices)
    company = (0, len(devices) - 1)
    planned = [_make_leg(request, devices[0], num_other_gpus) for num_other_gpus in company]
    request.planned = {group.digest for leg, _ in planned for group in leg.plan.groups}
    refuse_mode_switches([(devices, leg.plan) for leg, _ in planned], "remove hydra/launcher")
    if request.config.dry_run:
        return preview(*((request, inventory, leg.plan) for leg, inventory in planned))
    legs = []
    for leg, inventory in planned:
        groups = stored_results.open_store(request, leg.plan, inventory)[0]
        legs.append(dataclasses.replace(leg, numbers=tuple(shards.group_by_shard(groups))))
    fleet = PairedFleet(request, devices, legs)
    fleet.announce()
    try:
        fleet.run()
    finally:
        with interrupts.hold_interrupts():
            is_whole = stored_results.show_all(request, [leg.plan for leg in legs])
    return fleet.compute_exit_status(is_whole=is_whole)


def _make_leg(request: StudyRequest, device: Device, num_other_gpus: int) -> tuple[Leg, Inventory]:
    plan_file = worker_command.name_plan_file(request.root)
    for config in request.configs:
        config.gpu.device, config.gpu.other_gpus, config.plan_file = device.uuid, num_other_gpus, plan_file
    inventory, plan = plans.make_plan(request)
    return Leg(
        num_other_gpus=num_other_gpus, plan=plan, plan_file=plan_file, numbers=tuple(shards.group_by_shard(plan.groups))
    ), inventory


class PairedFleet(Fleet):
    """Workers that measure shards on the first GPU, each alone and while the other GPUs work."""

    ENDS_WORKERS = True  # workers on the other GPUs run until they are stopped

    def __init__(self, request: StudyRequest, devices: Sequence[Device], legs: Sequence[Leg]) -> None:
        super().__init__(request, devices, ())
        self.measured_on, *self.others = devices
        numbers = sorted({number for leg in legs for number in leg.numbers})
        # The order alternates, so that a drift over time favours neither.
        in_order = [(number, leg) for number in numbers for leg in (legs if number % 2 else legs[::-1])]
        self.steps = deque((number, leg) for number, leg in in_order if number in leg.numbers)
        self.step: tuple[int, Leg] | None = None
        self.company: list[WorkerProcess] = []
        self.worker_of: dict[int, WorkerProcess] = {}
        self.measured: WorkerProcess | None = None

    def announce(self) -> None:
        company = ", ".join(f"GPU {device.index}" for device in self.others)
        words.say(
            f"{format_count(len(self.steps), 'measurement')} of shards on GPU {self.measured_on.index}, alone and with "
            f"{company} at work; the rows of {company} are recorded in experiment {self._experiment}"
        )

    def start_more(self, selector: selectors.BaseSelector) -> bool:
        """After a step, start the next: first the workers on the other GPUs, then the measurement."""
        self.company = [worker for worker in self.company if worker in self.workers]
        if self.step is None and not self.company and self.steps and not self.is_late(len(self.steps)):
            with interrupts.hold_interrupts():
                self.step = self.steps.popleft()
                for device in self.others[: self.step[1].num_other_gpus]:
                    decided = {
                        "tracking.experiment": self._experiment,
                        "repeats": _REPEATS,
                        "gpu.other_gpus": self.step[1].num_other_gpus,
                        "resume": Resume.NO,
                        "time_limit_s": None,
                        "plan_file": None,
                    }
                    worker = self.start(device, decided, selector)
                    worker.is_quiet = True
                    worker.give(_COMPANY)
                    self.company.append(worker)
        if self.step is not None and self.measured is None and all(worker.has_begun for worker in self.company):
            number, leg = self.step
            with interrupts.hold_interrupts():
                measuring = self.worker_of.get(leg.num_other_gpus)
                if measuring is None or not measuring.takes_shards:
                    decided = {"gpu.other_gpus": str(leg.num_other_gpus), "plan_file": leg.plan_file}
                    measuring = self.start(self.measured_on, decided | self.decide_limits(), selector)
                self.measured = self.worker_of[leg.num_other_gpus] = measuring
                measuring.give(f"shard {number} {'in company' if leg.num_other_gpus else 'alone'}", number)
        return self.measured is not None or bool(self.company)

    def handle_end(self, worker: WorkerProcess, status: int) -> None:
        """Stop the other GPUs' workers after a measurement. If one ends earlier, stop measurement and study."""
        if worker is self.measured:
            words.say(f"{worker.name} | ended with exit status {status}")
            self.has_measured = True
            self.count(status)
        elif self.is_interrupted:
            self.count(status)
            return
        elif self.step is not None:
            words.say(f"{worker.name} | {worker.last_message}")
            words.say(f"error: the work on GPU {worker.device.index} ended early with exit status {status}")
            self.count(status or 1)
            self.steps.clear()
        else:
            return
        for other in self.workers:
            if other.is_busy:
                other.send_signal(signal.SIGTERM)  # background jobs of a shell ignore SIGINT
        self.step = self.measured = None

    @property
    def _experiment(self) -> str:
        return name_company(self.request.config.tracking.experiment)
