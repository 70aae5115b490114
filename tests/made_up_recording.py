"""Writes a recording for `gpu.replay` that nobody recorded: the samples of a divided GPU, made up by formulas.

For GPUs that nobody could record under MIG. What it shows is where figures stand in a report, and nothing about a GPU:

    python -m tests.made_up_recording made_up_mig.parquet 3g.40gb 2g.20gb 1g.10gb
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from pipeline.base import mig_table
from pipeline.base.errors import ConfigError
from pipeline.record import series
from pipeline.record.group_folder import Clock
from pipeline.record.series import About, Series, SeriesKey

MODEL = "h100_80gb"
_SECOND_NS = 1_000_000_000
_IDLE_W, _BUSY_W = 72.0, 620.0


def write(path: Path, profiles: Sequence[str], *, model: str = MODEL, seconds: int = 30, idle_s: int = 2) -> Path:
    """Write `seconds` samples, one a second, of a GPU with one instance of each of these profiles; none for no MIG.

    For the first `idle_s` seconds nothing works.
    """
    gpu = mig_table.find(model)
    found = {number: gpu.find_profile(name) for number, name in enumerate(profiles, start=1)}
    slices = {number: profile.compute_slices for number, profile in found.items() if profile is not None}
    if missing := [profiles[number - 1] for number in found if number not in slices]:
        there = ", ".join(profile.name for profile in gpu.profiles)
        raise ConfigError(f"{gpu.product} has no profile {missing[0]}; it has {there}")
    table: dict[SeriesKey, Series] = {}

    def add(source: str, gi_id: int | None, second: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            key = SeriesKey(source, None, gi_id, name)
            table.setdefault(key, Series()).append(second * _SECOND_NS, round(value, 4))

    energy_j = 1000.0
    for second in range(seconds):
        is_idle = second < idle_s
        busy = {number: 0.0 if is_idle else _busy(number, second) for number in slices or [0]}
        whole = sum(busy[number] * slices.get(number, gpu.compute_slices) for number in busy) / gpu.compute_slices
        power_w = _IDLE_W + (_BUSY_W - _IDLE_W) * whole
        sensors = {
            "power_w": power_w,
            "energy_j": energy_j,
            "sm_clock_mhz": 1980 - 120 * whole,
            "memory_clock_mhz": 2619,
            "temperature_c": 35 + 30 * whole,
            "throttle_reasons_bits": 0 if whole else 1,
            "pstate": 0,
        }
        if not slices:
            sensors |= {"utilization_gpu_pct": round(100 * whole), "utilization_memory_pct": round(40 * whole)}
        add("nvml", None, second, sensors)
        add("gpm", None, second, _activity(whole) | {"pcie_rx_mib_per_s": 900 * whole, "pcie_tx_mib_per_s": 80 * whole})
        for number in slices:
            add("gpm", number, second, _activity(busy[number]))
        energy_j += power_w
    instances = {number: profile.name for number, profile in found.items() if profile is not None}
    written = series.write_table(
        table, Clock(wall_ns=0, monotonic_ns=0), path.parent, About(device=gpu.product, instances=instances)
    )
    return written.rename(path)


def _busy(number: int, second: int) -> float:
    """The share of its time in which an instance works: a wave of its own, so that instances can be told apart."""
    return 0.95 - 0.12 * number + 0.04 * math.sin(second / 3 + number)


def _activity(busy: float) -> dict[str, float]:
    shares = {"smact": 0.9, "smocc": 0.45, "tensor_active": 0.3, "dram_active": 0.5, "fp32_active": 0.25}
    return {"gract_ratio": busy, **{f"{name}_ratio": share * busy for name, share in shares.items()}}


def main() -> None:
    """Write the recording that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.made_up_recording", description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="file to write")
    parser.add_argument(
        "profiles", nargs="*", metavar="PROFILE", help="of each instance, such as 3g.40gb; none: no MIG"
    )
    asked = parser.parse_args()
    try:
        print(write(asked.file, asked.profiles))
    except (ConfigError, OSError) as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
