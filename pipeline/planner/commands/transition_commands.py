"""`transition`: the steps from one deployment to another, checked by a proof; `replay`: these steps on a machine."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.base.system import json_decoder, locks
from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import align_table, format_count, say
from pipeline.planner import deployment
from pipeline.planner.deployment import Instance
from pipeline.planner.profile_table import list_marks
from pipeline.planner.transition import proof, transition_plan, transition_steps
from pipeline.planner.transition.machine_replay import Outcome, replay
from pipeline.planner.transition.proof import Proof
from pipeline.planner.transition.transition_steps import KINDS, Step, Transition

_MOST_SPARE = 4096


def add_transition_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two plans, the spare GPUs and the duration of each kind of step."""
    parser.add_argument("today", type=Path, help="the deployed plan")
    parser.add_argument("tomorrow", type=Path, help="the plan to deploy")
    parser.add_argument("--spare", type=int, default=1, help="extra GPUs of each model beyond the larger plan (1)")
    parser.add_argument(
        "--duration",
        action="append",
        default=[],
        metavar="KIND=SECONDS",
        help=f"duration of a kind of step, once for each of {', '.join(KINDS)} (migrate: create plus delete); without "
        "durations, no makespan is computed",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the steps to write, in JSON")


def answer_transition(arguments: argparse.Namespace) -> CommandAnswer:
    """Return the steps and the least throughputs, or the reason why no transition was found."""
    if not 0 <= arguments.spare <= _MOST_SPARE:
        raise ConfigError(f"--spare {arguments.spare}: must be from 0 to {_MOST_SPARE}; write 1 for one spare GPU")
    durations_s = read_durations(arguments.duration)
    today, tomorrow = deployment.read(arguments.today), deployment.read(arguments.tomorrow)
    try:
        transition = transition_plan.plan_transition(today, tomorrow, arguments.spare, durations_s)
    except transition_plan.NoTransitionError as error:
        return CommandAnswer(data={"steps": None, "reason": str(error)}, text=f"no transition: {error}", status=1)
    proved = proof.check(transition)
    data = json_decoder.encode(transition) | {"lowest_per_s": dict(proved.lowest_per_s), "broken": list(proved.broken)}
    if proved.broken:
        return CommandAnswer(data=data, text="\n".join(f"fault: {fault}" for fault in proved.broken), status=1)
    if arguments.out is not None:
        transition_steps.write(transition, arguments.out)
    written = f"\nsteps: {arguments.out}" if arguments.out is not None else ""
    return CommandAnswer(data=data, text=describe_transition(transition, proved) + written)


def read_durations(arguments: Sequence[str]) -> dict[str, float]:
    """Read seconds by kind of step; ConfigError if a duration is invalid or missing."""
    durations_s: dict[str, float] = {}
    for text in arguments:
        kind, _, number = text.partition("=")
        try:
            seconds = float(number)
        except ValueError:
            seconds = math.nan
        if kind not in KINDS or not 0 <= seconds < math.inf:
            raise ConfigError(f"--duration {text}: not KIND=SECONDS; KIND is one of {', '.join(KINDS)}")
        durations_s[kind] = seconds
    if not durations_s:
        return {}
    if missing := [kind for kind in KINDS if kind not in durations_s and kind != "migrate"]:
        raise ConfigError(f"--duration: {missing[0]} is missing; add --duration {missing[0]}=SECONDS")
    return {"migrate": durations_s["create"] + durations_s["delete"], **durations_s}


def describe_transition(transition: Transition, proved: Proof) -> str:
    """Describe the steps, their times and the least throughput of each service."""
    counts: Counter[str] = Counter(step.kind for step in transition.steps)
    kinds = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])
    makespan = "" if transition.makespan_s is None else f", makespan {transition.makespan_s:g} s"
    head = [
        f"{format_count(len(transition.steps), 'step')}{f': {kinds}' if kinds else ''}",
        f"longest chain {format_count(transition.longest_chain, 'step')}{makespan}; "
        f"{transition.spare_used} of {format_count(transition.spare, 'spare GPU')} used",
        "proved: every order of the steps is legal and keeps the rate of each service",
        *list_marks(is_simulated=transition.is_simulated),
    ]
    return "\n".join([*head, "", *_format_services(transition, proved), "", *_format_steps(transition.steps)])


def _format_services(transition: Transition, proved: Proof) -> list[str]:
    rows = [["service", "old/s", "new/s", "required/s", "lowest/s"]]
    old, new = transition.old_rates_per_s, transition.new_rates_per_s
    for name in sorted({*old, *new}):
        least = f"{min(old[name], new[name]):g}" if name in old and name in new else "-"
        rows.append(
            [name, _format_rate(old, name), _format_rate(new, name), least, _format_rate(proved.lowest_per_s, name)]
        )
    return align_table(rows)


def _format_rate(rates: Mapping[str, float], name: str) -> str:
    return f"{rates[name]:.6g}" if name in rates else "-"


def _format_steps(steps: Sequence[Step]) -> list[str]:
    rows = [["step", "kind", "change", "begins s", "ends s", "after"]]
    for step in steps:
        times = ["-" if time_s is None else f"{time_s:g}" for time_s in (step.begins_s, step.ends_s)]
        rows.append([step.id, step.kind, describe_step(step), *times, " ".join(step.after) or "-"])
    return align_table(rows, left_columns=(0, 1, 2, 5))


def describe_step(step: Step) -> str:
    """Describe the change of a step, with its GPU."""
    if step.kind == "repartition":
        gone = [f"-{slice_.profile}@{slice_.start}" for slice_ in step.destroyed]
        added = [f"+{slice_.profile}@{slice_.start}" for slice_ in step.made]
        mode = [] if step.mode == "mig" else [f"undivided, {step.mode}"]
        return f"GPU {step.gpu}: {' '.join([*gone, *added, *mode]) or 'MIG on'}"
    assert step.instance is not None
    place = f"GPU {step.gpu} {_format_place(step.instance)}"
    if step.source is not None:
        return f"{step.instance.service}: GPU {step.source_gpu} {_format_place(step.source)} to {place}"
    return f"{step.instance.service}: {place}"


def _format_place(instance: Instance) -> str:
    return "undivided" if instance.profile is None else f"{instance.profile}@{instance.start}"


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the steps, the machine and the folder of locks and journals."""
    parser.add_argument("steps", type=Path, help="the file that `transition` wrote")
    parser.add_argument(
        "--machine", type=Path, required=True, metavar="FILE", help="file of the simulated machine; created if missing"
    )
    parser.add_argument("--lock-dir", type=Path, default=locks.DEFAULT_FOLDER, help="gpu.lock_dir of your studies")


def answer_replay(arguments: argparse.Namespace) -> CommandAnswer:
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
