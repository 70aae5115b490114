"""The methods and the provenance of a study, for the end of the page."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from pipeline.base.domain.precision_goal import MIN_BLOCKS
from pipeline.report.evaluate.statistics import MARGIN_IN_WORDS, MIN_FOR_INTERVAL
from pipeline.report.read.rows import FACTS
from pipeline.report.read.study_records import Study

_MODES = {
    "serial": "one job after another, alone on the GPU",
    "naive": "each job is a process, and the driver lets one of them compute at a time (time slices)",
    "timeslice": "naive, with a chosen length of the time slices",
    "mps": "each job is a process, and NVIDIA's Multi-Process Service (MPS) lets them compute at the same time",
    "mps_percent": "MPS with a limit for each job, in per cent of the multiprocessors (active thread percentage)",
    "mps_static": "MPS with multiprocessors of its own for each job, in chunks (static partitions)",
    "mig": "each job on a GPU instance with multiprocessors and memory of its own (Multi-Instance GPU)",
    "mig_mps": "MIG, with several jobs on an instance under MPS",
    "streams": "all jobs in one process, each with a CUDA stream",
    "green": "all jobs in one process, each with multiprocessors of its own (CUDA green contexts)",
}


def list_methods(study: Study) -> list[tuple[str, str]]:
    """Return headings and texts on the sharing modes of a study and on the evaluation of its runs."""
    modes = sorted({row.sharing for row in study.rows if row.sharing.name in _MODES}, key=lambda mode: mode.order)
    about = "; ".join(f"{mode.label}: {_MODES[mode.name]}" for mode in modes)
    return [
        *([("Sharing modes", f"{about}.")] if about else []),
        (
            "Baseline",
            "Every speed is compared with the serial baseline of the same block: the same jobs, one at a time, on the "
            "same GPU since the same boot, with the same driver, power limit, ECC mode and clock settings. The "
            "baseline of n copies is n times one solo run. Several solo runs in a block count as one, with the means "
            "of their figures. Mixes with fixed work have a separate serial run.",
        ),
        (
            "Windows",
            "Steady window: jobs run until they are stopped. Throughput is measured while all jobs run after their "
            "warm-up. The speed-up is the sum, over all jobs, of throughput divided by throughput alone. Work window: "
            "every job does a fixed number of epochs. The speed-up is serial total time divided by total time.",
        ),
        (
            "Repeats",
            "A block is one repeat: every group of the study once, in random order, with its own baselines. Figures "
            f"are medians over the blocks. With {MIN_FOR_INTERVAL} blocks or more they have 95 % t intervals, which "
            "use logarithms if a quantity scatters by factors. Peaks have their lowest and highest block instead.",
        ),
        (
            "Verdicts",
            "Modes are compared by the paired log-ratio of their speeds, and of their energies for the same work, in "
            "the same block; also with one job at a time in the best step mode. A verdict needs at least "
            f"{MIN_BLOCKS} blocks, a median ratio beyond {MARGIN_IN_WORDS}, and a p value of the paired t test below "
            "0.05 after correction for all claims of the table (Holm, with Shaffer's improvement). Equality within "
            f"{MARGIN_IN_WORDS} is tested by two one-sided tests, whose p values are in the same correction. Otherwise "
            "there is no verdict. Intervals are not corrected, so an interval may exclude 1 without a verdict.",
        ),
        (
            "What is not ranked",
            "Groups that ran out of memory, were skipped, failed or computed wrong results are shown with this outcome "
            "instead of a rank. A quantity that was not measured is missing, not zero.",
        ),
        (
            "Utilisation",
            "GRACT: share of time with a resident kernel. SMACT: share of multiprocessors with a resident warp. Power, "
            "energy and clocks are those of the whole GPU, also under MIG.",
        ),
    ]


def list_provenance(study: Study) -> list[tuple[str, tuple[str, ...]]]:
    """Return the names and values of all facts on machines, software and settings."""
    rows = study.rows
    settings = {"; ".join(f"{name}: {value}" for name, value in row.settings if value) for row in rows}
    results = Counter(row.result.value for row in rows)
    simulated = " (simulated)" if study.is_simulated else ""
    facts: list[tuple[str, tuple[str, ...]]] = [
        ("experiment", (study.experiment,)),
        ("devices", tuple(device + simulated for device in study.devices)),
        ("GPU", tuple(sorted({row.gpu_uuid for row in rows if row.gpu_uuid}))),
        ("windows and settings", tuple(sorted(settings))),
        ("blocks", (f"{len(study.blocks)}, {study.num_complete_blocks} complete",) if study.blocks else ()),
        ("groups", (f"{len(rows)}" + (f" of {study.num_planned} planned" if study.num_planned else ""),)),
        ("results", (", ".join(f"{result} {number}" for result, number in sorted(results.items())),)),
        ("measured", _when(study)),
    ]
    names = [*FACTS, *sorted(study.facts.keys() - FACTS.keys())]
    facts += [(FACTS.get(name, name.replace("_", " ")), study.facts.get(name, ())) for name in names]
    return [(name, values) for name, values in facts if any(values)]


def _when(study: Study) -> tuple[str, ...]:
    if not study.rows:
        return ()
    ends = (min(row.start_ms for row in study.rows), max(row.end_ms or row.start_ms for row in study.rows))
    first, last = (datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M") for ms in ends)
    return (f"{first} to {last} UTC",)
