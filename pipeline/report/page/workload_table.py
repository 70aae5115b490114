"""The table of the programs of a study: model, data set and size of each workload."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.report.page.table_format import Table, Value, Values
from pipeline.report.read.study_records import Study

_COLUMNS = {
    "model": "model",
    "dataset": "data set",
    "image_px": "pixels",
    "sequence_tokens": "tokens",
    "num_classes": "classes",
    "batch_size": "batch size",
    "job.parameters": "parameters",
    "job.samples_per_epoch": "samples per epoch",
}


def workload_table(study: Study) -> Table:
    """Return a table of the workloads that name their model, from the smallest to the largest."""
    params = {job.label: job.params for row in study.rows for job in row.jobs if "model" in job.params}
    known = [name for name in _COLUMNS if any(name in of_job for of_job in params.values())]
    rows: list[Values] = [
        (label, *(_read_number(of_job.get(name)) for name in known))
        for label, of_job in sorted(params.items(), key=lambda item: (_count_parameters(item[1]), item[0]))
    ]
    heads = ("workload", *(_COLUMNS[name] for name in known))
    note = "Parameters: numbers of the model, as counted by the job. An epoch has whole batches only."
    return Table("workloads", "Models and data sets", heads, tuple(rows), note)


def _count_parameters(params: Mapping[str, str]) -> int:
    number = _read_number(params.get("job.parameters"))
    return number if isinstance(number, int) else 0


def _read_number(text: str | None) -> Value:
    return int(text) if text is not None and text.isdecimal() else text
