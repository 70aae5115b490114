"""`python -m pipeline.planner profile`: makes a profile from one of several sources, and writes it."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.base.domain.answer import Answer
from pipeline.base.system.words import counted
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


def answer(arguments: argparse.Namespace) -> Answer:
    """Write the profile; say what is in it."""
    made = parvagpu.read(arguments.from_parvagpu) if arguments.from_parvagpu is not None else _measured(arguments)
    profile_table.write(arguments.out, made)
    workloads = list(dict.fromkeys(row.workload for row in made.rows))
    data = {
        "profile": str(arguments.out),
        "digest": made.digest,
        "num_rows": len(made.rows),
        "gpu_models": list(made.gpu_models),
        "workloads": workloads,
        "is_simulated": made.is_simulated,
    }
    text = f"{arguments.out}: {counted(len(made.rows), 'row')}, {counted(len(workloads), 'workload')}"
    on = f"measured on {', '.join(made.gpu_models)}"
    if made.is_simulated:
        on += ", simulated: says nothing about a real GPU"
    return Answer(data=data, text=f"{text}, {on}")


def _measured(arguments: argparse.Namespace) -> profile_table.Profile:
    where = stores.named_stores(arguments)
    study = rows.read(where, arguments.experiment)
    return profile_measurement.profile_of(study, f"experiment {arguments.experiment!r}")
