"""Text models, and training beside inference, from the command line to the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.record.store import results
from tests.support.run_cases import groups

pytest_plugins = ["tests.support.run_fixtures", "tests.support.tracking_fixtures"]
pytestmark = pytest.mark.covers("workloads")


@pytest.mark.torch
@pytest.mark.slow
def test_text_models_are_measured_in_sequences_and_tokens(run, client, tmp_path):
    small = [
        "workload.sequence_tokens=16",
        "workload.model_args.num_hidden_layers=1",
        f"workload.cache_root={tmp_path}/c",
    ]
    window = ["window.seconds=1", "window.settle_s=0.1", "workload.warmup_steps=1"]
    status, out, err = run("workload=tiny_text", "degree=2", *small, *window)
    assert status == 0, err
    assert "sequences/s" in out and "tokens/s" in out
    by_name = {group.info.run_name: (group, jobs) for group, jobs in groups(client)}
    assert by_name.keys() == {"naive-2x-tiny_text", "serial-1x-tiny_text"}
    group, jobs = by_name["naive-2x-tiny_text"]
    rate = group.data.metrics["throughput_total_sequences_per_s"]
    assert group.data.metrics["throughput_total_tokens_per_s"] == pytest.approx(16 * rate)
    assert group.data.metrics["speedup_vs_serial_ratio"] > 0, "the losses of the first steps are those of the job alone"
    for job in jobs:
        assert 0 < job.data.metrics["accuracy_ratio"] <= 1
        assert job.data.metrics["canary_checked_count"] > 5
        assert (job.data.params["task"], job.data.params["job.tokens_per_sequence"]) == ("classification", "16")
    assert len([path for path in (tmp_path / "c").iterdir() if path.is_dir()]) == 2, "a tokeniser and the tokens"


@pytest.mark.torch
@pytest.mark.slow
def test_training_beside_inference_keeps_what_each_counts(run, tmp_path):
    import pandas as pd

    model = "{layers: [1, 1], channels: [8, 16], stem_chs: 8, stem_type: ''}"
    status, _, err = run(
        *("mix=[T,I]", "+workload@sizes.T=tiny", "+workload@sizes.I=infer_tiny"),
        *(f"sizes.T.model_args={model}", f"sizes.I.model_args={model}", "sizes.T.image_px=8", "sizes.I.image_px=8"),
        *("sizes.I.arrival=poisson", "sizes.I.rate_per_s=200", "sizes.I.objective_ms=1000"),
        *("window.seconds=1", "window.settle_s=0.2", "baseline=never"),
    )
    assert status == 0, err
    rows = results.load(tmp_path / "mlruns", "collocation").set_index("run_id")
    together = rows[rows["group.params.scenario"] == "naive"]
    assert len(together) == 2
    service = together[together["params.work_unit"] == "requests"].iloc[0]
    training = together[together["params.work_unit"] == "samples"].iloc[0]
    assert service["metrics.throughput_requests_per_s"] > 0
    assert service["metrics.goodput_requests_per_s"] > 0
    assert training["metrics.throughput_samples_per_s"] > 0
    assert pd.isna(service["metrics.throughput_samples_per_s"])
    assert service["group.metrics.latency_mean_worst_ms"] == service["metrics.latency_mean_ms"]
    assert not list(Path(tmp_path).rglob("requests.bin"))
    (table,) = Path(tmp_path).rglob("requests.parquet")
    due = pd.read_parquet(table)["intended_ns"]
    assert due.is_monotonic_increasing
    # They were to be sent at the rate that was asked for, whatever a busy machine has answered of them.
    assert len(due) > 100
    assert (len(due) - 1) / ((due.iloc[-1] - due.iloc[0]) / 1e9) == pytest.approx(200, rel=0.3)
