"""The record on disk: folders that no two starts share, rows that are whole, samples that survive."""

from __future__ import annotations

import dataclasses
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.base.domain.records import Result, Slot
from pipeline.base.domain.samples import Sample
from pipeline.clean import leftovers
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.record import group_folder, group_record
from pipeline.record.spool import Spool
from pipeline.record.store import content
from pipeline.record.store.content import RunContent
from tests.support.rows import group
from tests.support.tracking_cases import Recorded


@pytest.fixture
def a_group():
    return group("a", "b")


def test_two_starts_in_the_same_second_never_share_a_folder(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        studies = list(pool.map(lambda _: Spool(tmp_path, Recorded(), {}, {}).study, range(64)))
    assert len(set(studies)) == 64


def test_each_job_has_its_place_in_its_run(tmp_path, a_group):
    slots = [
        Slot(visible_devices="MIG-1", gpu_uuid="GPU-1", gi_id=3, ci_id=0, facts=(("mig_profile", "3g.20gb"),)),
        Slot(visible_devices=""),
    ]
    with Spool(tmp_path, Recorded(), {}, {}).open(a_group) as run:
        run.place(slots)
        jobs = tuple(JobResult(job=job, result=Result.OK, reason="") for job in a_group.jobs)
        run.close(GroupResult(group=a_group, result=Result.OK, reason="", jobs=jobs))
    placed, unplaced = group_record.read(run.folder).jobs
    assert placed.gi_id == 3
    assert placed.placement == {"device": "MIG-1", "gi_id": "3", "ci_id": "0", "mig_profile": "3g.20gb"}
    assert placed.all_params["placement.mig_profile"] == "3g.20gb"
    assert (unplaced.gi_id, unplaced.placement) == (None, {})


def test_a_password_of_the_server_is_not_published_with_the_configuration(tmp_path, a_group):
    text = "tracking:\n  uri: https://me:s3cret@mlflow.example.org\n"
    with Spool(tmp_path, Recorded(), {}, {}).open(dataclasses.replace(a_group, config_text=lambda: text)) as run:
        files = {path.name: path.read_text() for path in (run.folder / "artifacts").iterdir()}
    assert "uri: https://<hidden>@mlflow.example.org\n" in files["config.yaml"]
    assert not [name for name, text in files.items() if "s3cret" in text]


def test_names_that_are_not_utf8_are_recorded_with_escapes(tmp_path, a_group):
    name = os.fsdecode(b"/home/caf\xe9")
    with Spool(tmp_path, Recorded(), {"working_folder": name}, {"plan.txt": f"in {name}\n"}).open(a_group) as run:
        assert (run.folder / "artifacts" / "plan.txt").read_text() == "in /home/caf\\udce9\n"
    run_content = RunContent()
    run_content.add_tag("folder", group_record.read(run.folder).facts["working_folder"])
    run_content.add_param("long", name * 6000)
    (batch,) = run_content.make_batches()
    assert dict(batch.tags)["folder"] == "/home/caf\\udce9"
    assert json.dumps([batch.params, run_content.long_values], ensure_ascii=False).encode()


def test_a_closed_group_is_sent_with_its_row_and_its_samples(tmp_path, a_group):
    sender = Recorded()
    spool = Spool(
        tmp_path, sender, {"host": "h", "command_line": "a/run.py tracking.root=/x"}, {"plan.txt": "the plan"}
    )
    with spool.open(a_group) as run:
        assert leftovers.scratch_path(run.spool_id).is_dir()
        run.sink.put(Sample(source="host", t_ns=5, values={"load_1min": 1.5}))
        jobs = [
            JobResult(job=job, result=Result.OK, reason="", metrics={"loss": 1.0}, start_ns=7, end_ns=9)
            for job in a_group.jobs
        ]
        run.close(
            GroupResult(group=a_group, result=Result.OK, reason="", jobs=tuple(jobs), metrics={"makespan_s": 2.0})
        )
        folder = run.folder
    assert [what for what, _ in sender.asked] == ["begin", "send"]
    assert not leftovers.scratch_path(run.spool_id).exists()
    record = group_record.read(folder)
    assert (record.is_closed, record.status, record.metrics) == (True, "FINISHED", {"makespan_s": 2.0})
    tags = content.make_group_tags(record)
    assert tags["collocation.host"] == record.facts["host"] == "h" and tags["mlflow.source.name"] == "run.py"
    assert [(c.status, c.start_ns, c.end_ns) for c in record.jobs] == [("FINISHED", 7, 9)] * 2
    assert [content.describe_ending(record, job) for job in record.jobs] == ["ok"] * 2
    assert json.loads((folder / "samples.jsonl").read_text())["values"] == {"load_1min": 1.5}
    assert {p.name for p in (folder / "artifacts").iterdir()} == {"plan.txt", "group.json", "config.yaml"}


def test_a_run_of_a_simulated_gpu_says_so_in_its_line(tmp_path, a_group):
    simulated = dataclasses.replace(a_group, device=dataclasses.replace(a_group.device, kind="simulated"))
    with Spool(tmp_path, Recorded(), {}, {}).open(simulated) as run:
        jobs = tuple(JobResult(job=job, result=Result.OK, reason="") for job in simulated.jobs)
        run.close(GroupResult(group=simulated, result=Result.OK, reason="", jobs=jobs, metrics={"makespan_s": 2.0}))
    record = group_record.read(run.folder)
    notes = [content.describe_ending(record, run) for run in (record, *record.jobs)]
    assert all(note.startswith("ok (simulated GPU)") for note in notes)


def test_a_group_that_is_left_without_a_row_is_closed_as_interrupted_by_the_next_start(tmp_path, a_group):
    spool = Spool(tmp_path, Recorded(), {}, {})
    with pytest.raises(RuntimeError), spool.open(a_group):
        raise RuntimeError("the orchestrator itself broke")
    (folder,) = group_folder.survey(tmp_path / "spool").ready
    record = group_record.read(folder)
    assert [run.status for run in (record, *record.jobs)] == ["KILLED"] * 3


def test_jobs_that_never_ran_are_told_apart(tmp_path, a_group):
    spool = Spool(tmp_path, Recorded(), {}, {})
    with spool.open(a_group) as run:
        run.close(GroupResult(group=a_group, result=Result.SKIPPED, reason="no partition holds this mix"))
        folder = run.folder
    record = group_record.read(folder)
    assert record.reason == "no partition holds this mix"
    assert content.describe_ending(record, record) == "skipped: no partition holds this mix"
    assert [job.reason for job in record.jobs] == ["did not run"] * 2
    # In MLflow, what did not run must not look failed.
    assert [run.status for run in (record, *record.jobs)] == ["FINISHED"] * 3
