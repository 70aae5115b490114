"""`nvidia-smi dmon`, `pmon` and `compute-policy -l`: lines without the readings, which only hardware could give."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pipeline.simulation import codes
from pipeline.simulation.smi_text import Numbered
from pipeline.simulation.state import Gpu

_NAME_WIDTH = 15
_DEVICE_COLUMNS = (
    ("pwr", "W"),
    ("gtemp", "C"),
    ("mtemp", "C"),
    ("sm", "%"),
    ("mem", "%"),
    ("enc", "%"),
    ("dec", "%"),
    ("jpg", "%"),
    ("ofa", "%"),
    ("mclk", "MHz"),
    ("pclk", "MHz"),
)
_PROCESS_COLUMNS = tuple(column for column in _DEVICE_COLUMNS if column[0] in ("sm", "mem", "enc", "dec", "jpg", "ofa"))
# Column of each GPM metric, by NVML's id. Source: recordings of an H100; others are not simulated.
_GPM_COLUMNS = {1: "gract", 2: "smutil", 3: "smocc", 5: "mmaact", 10: "dram"}


def monitor(
    command: str, arguments: Sequence[str], gpus: Callable[[], Sequence[Numbered]], say: Callable[[str], None]
) -> int:
    """Print what one of the three commands prints, and return the exit status.

    Args:
        command: `dmon`, `pmon` or `compute-policy`.
        arguments: what follows it. `-c N` ends after N rounds, `-d S` waits S seconds between them (1 if not given).
        gpus: reads the GPUs.
        say: prints a line.
    """
    if command == "compute-policy":
        return _policies(arguments, gpus, say)
    given = dict(zip(arguments[::2], arguments[1::2], strict=False))
    known = {"-c", "-d", "--gpm-metrics"} if command == "dmon" else {"-c", "-d"}
    try:
        num_rounds = int(given.get("-c", "0"))
        period_s = float(given.get("-d", "1"))
        metrics = [_GPM_COLUMNS[int(metric)] for metric in given.get("--gpm-metrics", "").split(",") if metric]
    except (ValueError, KeyError):
        return _refused(command, arguments, say)
    if len(arguments) % 2 or not given.keys() <= known:
        return _refused(command, arguments, say)
    for line in _process_header() if command == "pmon" else _device_header(metrics):
        say(line)
    number = 0
    while True:
        for numbered in gpus():
            for line in _process_lines(*numbered) if command == "pmon" else _device_lines(numbered[0], len(metrics)):
                say(line)
        number += 1
        if number == num_rounds:
            return 0
        time.sleep(period_s)


def _device_lines(index: int, num_metrics: int) -> list[str]:
    return [f"{index:>5}" + f"{'-':>7}" * len(_DEVICE_COLUMNS) + f"{'-':>11}" * num_metrics + " "]


def _process_lines(index: int, gpu: Gpu) -> list[str]:
    processes = [(str(p.pid), p.kind, p.name[:_NAME_WIDTH]) for p in sorted(gpu.processes, key=lambda p: p.pid)]
    blanks = f"{'-':>7}" * len(_PROCESS_COLUMNS)
    return [
        f"{index:>5}{pid:>11}{kind:>6}{blanks}    {name:<{_NAME_WIDTH}}"
        for pid, kind, name in processes or [("-", "-", "-")]
    ]


def _device_header(metrics: Sequence[str]) -> tuple[str, str]:
    names = "".join(f"{name:>7}" for name, _ in _DEVICE_COLUMNS) + "".join(f"{name:>11}" for name in metrics)
    units = "".join(f"{unit:>7}" for _, unit in _DEVICE_COLUMNS) + f"{'GPM:%':>11}" * len(metrics)
    return f"# gpu{names} ", f"# Idx{units} "


def _process_header() -> tuple[str, str]:
    names = "".join(f"{name:>7}" for name, _ in _PROCESS_COLUMNS)
    units = "".join(f"{unit:>7}" for _, unit in _PROCESS_COLUMNS)
    return f"# gpu{'pid':>12}{'type':>7}{names}    command ", f"# Idx{'#':>12}{'C/G':>7}{units}    name "


def _policies(arguments: Sequence[str], gpus: Callable[[], Sequence[Numbered]], say: Callable[[str], None]) -> int:
    if list(arguments) not in (["-l"], ["--list"]):
        return _refused("compute-policy", arguments, say)
    rule = "+" + "-" * 37 + "+"
    for line in (rule, "| GPU compute policies:               |", "| GPU     Name           Value        |"):
        say(line)
    say("|" + "=" * 37 + "|")
    for index, _ in gpus():
        say(f"|{index:>4}   {'Timeslice':<15} {'Default':<14}|")
        say(rule)
    return 0


def _refused(command: str, arguments: Sequence[str], say: Callable[[str], None]) -> int:
    say(f"The simulated nvidia-smi does not know {command} {' '.join(arguments)}.")
    return codes.INVALID_ARGUMENT
