"""`python -m pipeline.planner replay`: a transition on a simulated machine, step by step."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from pipeline.base.system import locks
from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.words import format_count, say
from pipeline.planner.commands.transition_command import describe_step
from pipeline.planner.transition import proof, transition_steps
from pipeline.planner.transition.machine_replay import Outcome, replay


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the steps, the machine and the folder of locks and journals."""
    parser.add_argument("steps", type=Path, help="the file that `transition` wrote")
    parser.add_argument(
        "--machine", type=Path, required=True, metavar="FILE", help="file of the simulated machine; created if missing"
    )
    parser.add_argument("--lock-dir", type=Path, default=locks.DEFAULT_FOLDER, help="gpu.lock_dir of your studies")


def answer(arguments: argparse.Namespace) -> CommandAnswer:
    """Carry out the steps; status 1 if the transition is faulty, or no plan exists after a failed step."""
    transition = transition_steps.read(arguments.steps)
    if broken := proof.check(transition).broken:
        lines = [f"fault: {fault}" for fault in broken]
        return CommandAnswer(
            data={"broken": list(broken)}, text="\n".join([*lines, "no step was carried out"]), status=1
        )

    def report_step(status: str, step: transition_steps.Step) -> None:
        say(f"{step.id} {step.kind} {describe_step(step)}: {status}")

    outcome = replay(transition, arguments.machine, Path(arguments.lock_dir), report_step)
    data = dataclasses.asdict(outcome) | {"is_reached": outcome.reason is None}
    return CommandAnswer(data=data, text=describe_outcome(outcome), status=int(outcome.reason is not None))


def describe_outcome(outcome: Outcome) -> str:
    """Describe the steps that were completed, undone or failed."""
    lines = [f"undone after a kill: {undone}" for undone in outcome.put_back]
    if outcome.was_set_up:
        lines.append("the GPU instances of the current deployment were created on the empty machine")
    for failure in outcome.failures:
        lines.append(
            f"step {failure['step']} failed on GPU {failure['gpu']}, which is not changed further: {failure['reason']}"
        )
    earlier = f", {outcome.earlier} before this start" if outcome.earlier else ""
    lines.append(
        f"{format_count(outcome.done, 'step')} done{earlier}; partitions are simulated, services are not started"
    )
    lines.append("the new deployment is reached" if outcome.reason is None else f"stopped: {outcome.reason}")
    return "\n".join(lines)
