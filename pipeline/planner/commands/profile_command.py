"""`python -m pipeline.planner profile`: makes a profile from one of several sources, and writes it."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.base.domain.command_answer import CommandAnswer
from pipeline.base.system.words import format_count
from pipeline.planner import parvagpu, profile_table
from pipeline.planner.results import profile_measurement
from pipeline.report.read import rows, stores


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the source, and the path of the profile."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--from-parvagpu", type=Path, metavar="DIR", help="the tables that ParvaGPU published, of an A100 80GB"
    )
    stores.add_store_arguments(parser, source)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the profile to write, in CSV")


def answer(arguments: argparse.Namespace) -> CommandAnswer:
    """Write the profile; say what is in it."""
    table = parvagpu.read(arguments.from_parvagpu) if arguments.from_parvagpu is not None else _measure(arguments)
    profile_table.write(arguments.out, table)
    workloads = list(dict.fromkeys(row.workload for row in table.rows))
    data = {
        "profile": str(arguments.out),
        "digest": table.digest,
        "num_rows": len(table.rows),
        "gpu_models": list(table.gpu_models),
        "workloads": workloads,
        "is_simulated": table.is_simulated,
    }
    text = f"{arguments.out}: {format_count(len(table.rows), 'row')}, {format_count(len(workloads), 'workload')}"
    on = f"measured on {', '.join(table.gpu_models)}"
    if table.is_simulated:
        on += ", simulated: says nothing about a real GPU"
    return CommandAnswer(data=data, text=f"{text}, {on}")


def _measure(arguments: argparse.Namespace) -> profile_table.Profile:
    where = stores.named_stores(arguments)
    study = rows.read(where, arguments.experiment)
    return profile_measurement.measure_profile(study, f"experiment {arguments.experiment!r}")
