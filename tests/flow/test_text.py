"""Text training as a user types it: what is counted in sequences lands in the store, and in tokens beside it."""

from __future__ import annotations

import pytest

from tests.support.run_cases import groups

pytest_plugins = ["tests.support.tracking_fixtures", "tests.support.run_fixtures"]
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
