"""`python -m pipeline.planner profile`: a profile from the runs of a study or from published tables."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.words import format_count
from pipeline.planner import parvagpu, profile_table
from pipeline.planner.results import profile_measurement
from pipeline.report.read import rows, stores


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the source and the path of the profile."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--from-parvagpu", type=Path, metavar="DIR", help="the tables that ParvaGPU published (A100 80GB)"
    )
    stores.add_store_arguments(parser, source)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the profile to write, in CSV")


def answer(arguments: argparse.Namespace) -> CommandAnswer:
    """Write the profile and describe it."""
    if arguments.from_parvagpu is not None:
        table = parvagpu.read(arguments.from_parvagpu)
    else:
        study = rows.read(stores.named_stores(arguments), arguments.experiment)
        table = profile_measurement.measure_profile(study, f"experiment {arguments.experiment!r}")
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
    text += f", measured on {', '.join(table.gpu_models)}"
    marks = profile_table.list_marks(is_simulated=table.is_simulated)
    return CommandAnswer(data=data, text="\n".join([text, *marks]))
