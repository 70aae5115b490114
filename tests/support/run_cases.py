"""Command lines of quick studies, and queries of their runs in the store."""

from __future__ import annotations

from pipeline.base.system.paths import PROJECT_DIR

TOY = ["--config-dir", str(PROJECT_DIR / "tests/conf"), "workload=toy"]
BRIEF = ["window.settle_s=0.1", "limits.ready_s=60", "limits.stop_s=60"]
SHORT = ["window.seconds=0.2", *BRIEF]


def groups(client, name: str = "collocation"):
    experiment = client.get_experiment_by_name(name)
    runs = client.search_runs([experiment.experiment_id], "tags.`collocation.role` = 'group'", order_by=["start_time"])
    children = client.search_runs([experiment.experiment_id], "tags.`collocation.role` = 'job'")
    return [(run, [c for c in children if c.data.tags["mlflow.parentRunId"] == run.info.run_id]) for run in runs]
