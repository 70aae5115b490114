"""Spool folders: folders that no two starts share, whole rows, samples, requests, and the folders of others."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.base.domain.layout import SAMPLE_TABLE
from pipeline.base.domain.records import PackSettings, Result, Slot
from pipeline.base.domain.samples import Sample
from pipeline.base.system.errors import TrackingError
from pipeline.clean import leftovers
from pipeline.launch.job_state import Ending
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.record import group_folder, group_record, sample_series
from pipeline.record.group_record import Clock
from pipeline.record.sample_series import About, Series, SeriesKey
from pipeline.record.spool import Spool
from pipeline.record.store import content
from pipeline.record.store.content import RunContent
from tests.support.rows import group, make_row
from tests.support.tracking_cases import (
    CLOCK,
    SECOND,
    START,
    Recorded,
    as_running,
    child,
    make_spool,
    record,
    sample,
)
from workloads import client


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
        run.close(make_row(a_group))
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
        run.close(make_row(simulated, metrics={"makespan_s": 2.0}))
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
        run.close(make_row(a_group, result=Result.SKIPPED, reason="no partition holds this mix", jobs=()))
        folder = run.folder
    record = group_record.read(folder)
    assert record.reason == "no partition holds this mix"
    assert content.describe_ending(record, record) == "skipped: no partition holds this mix"
    assert [job.reason for job in record.jobs] == ["did not run"] * 2
    # In MLflow, what did not run must not look failed.
    assert [run.status for run in (record, *record.jobs)] == ["FINISHED"] * 3


def test_recover_closes_what_a_dead_owner_left(tmp_path: Path) -> None:
    running = {"result": None, "end_ns": None}
    open_record = record((child(0, **running), child(1, result=Result.FAILED)))
    open_record = replace(open_record, **running)
    folder = make_spool(tmp_path, open_record)
    events = folder / "jobs" / "0" / "events.jsonl"
    events.write_text(f'{{"event":"step","t_ns":{START + 9 * SECOND}}}\n{{"event":"st')
    (folder / "samples.jsonl").write_text(sample("nvml", 100, {"power_w": 1.0}))
    os.utime(folder / "record.json", ns=(0, CLOCK.wall_ns + 2 * SECOND))

    assert group_folder.survey(tmp_path / "spool").ready == (folder,)

    closed = group_record.read(folder)
    assert (closed.is_closed, closed.status, closed.end_ns) == (True, "KILLED", START + 100 * SECOND)
    first, second = closed.jobs
    assert (first.status, first.end_ns, first.result) == (
        "KILLED",
        START + 9 * SECOND,
        "interrupted",
    )
    assert second == open_record.jobs[1]
    assert group_folder.survey(tmp_path / "spool").ready == (folder,)
    assert group_record.read(folder) == closed


def test_a_trial_of_a_pack_that_ended_before_its_killed_orchestrator_could_record_it_has_ended(tmp_path: Path) -> None:
    running = {"result": None, "end_ns": None}
    trials = tuple(child(index, **running) for index in range(4))
    for params, results in (({group_record.PACK: "3"}, "oiii"), ({}, "iiii")):
        folder = make_spool(tmp_path, replace(record(trials), params=params, **running), f"pack-{len(params)}")
        events = [[("process_ended", 0)], [("process_ended", 3)], [("process_ended", 0), ("error", 1)], [("phase", 0)]]
        for index, lines in enumerate(events):
            rows = [{"event": kind, "t_ns": START + SECOND, "status": status, "name": "x"} for kind, status in lines]
            text = "".join(f"{json.dumps(row)}\n" for row in rows)
            (folder / "jobs" / str(index) / "events.jsonl").write_text(text)
        group_folder.survey(tmp_path / "spool")
        assert "".join(job.result[0] for job in group_record.read(folder).jobs if job.result) == results


def test_a_trial_is_on_disk_from_its_begin_and_its_end_at_once(tmp_path):
    a_pack = group("a", "b", "c", pack=PackSettings(most=2, check_share=0.0))
    with pytest.raises(RuntimeError), Spool(tmp_path, Recorded(), {}, {}).open(a_pack) as run:
        assert group_record.read(run.folder).jobs == ()
        for index in (0, 1):
            run.begin_trial(index, Slot(visible_devices="GPU-1"))
        run.end_trial(1, Ending(Result.FAILED, "exited with 3"), 3)
        raise RuntimeError("the orchestrator itself broke")
    (folder,) = group_folder.survey(tmp_path / "spool").ready
    jobs = group_record.read(folder).jobs
    assert [(job.result, job.exit_status) for job in jobs] == [(Result.INTERRUPTED, None), (Result.FAILED, 3)]


def test_recover_leaves_the_living_alone_and_takes_the_oldest_first(tmp_path: Path) -> None:
    def make_folder_at(second: int, name: str) -> Path:
        clock = replace(CLOCK, wall_ns=CLOCK.wall_ns + second * SECOND)
        return make_spool(tmp_path, record((child(0),), clock=clock, result=None, end_ns=None), name)

    late, early, living = make_folder_at(2, "0001-a"), make_folder_at(1, "0002-b"), make_folder_at(3, "0003-c")
    (damaged := make_folder_at(4, "0004-d") / "record.json").write_text('{"version": 1, "st')
    (tmp_path / "spool" / "study" / ".sent-0000-z").mkdir()
    (tmp_path / "spool" / "study" / ".sent-0000-z" / "record.json").write_text("{}")
    with (living / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        survey = group_folder.survey(tmp_path / "spool")
        assert not group_record.read(living).is_closed
    assert (survey.ready, survey.busy) == ((early, late), (living,))
    assert list(survey.unreadable) == [damaged.parent]
    assert not (tmp_path / "spool" / "study" / ".sent-0000-z").exists()


def test_what_has_ended_is_told_without_a_change(tmp_path: Path) -> None:
    running = as_running(record((child(0, result=None, end_ns=None),)))
    dead, living, elsewhere, done = (
        make_spool(tmp_path, written, name)
        for name, written in (
            ("0001-dead", running),
            ("0002-living", replace(running, spool_id="living")),
            ("0003-elsewhere", replace(running, spool_id="elsewhere", host="another", boot_id="", machine_id="")),
            ("0004-done", replace(record((child(0),)), spool_id="done")),
        )
    )
    (sent := tmp_path / "spool" / "study" / ".sent-0000-z").mkdir()
    (sent / "record.json").write_text("{}")
    before = {path: path.read_bytes() for path in (tmp_path / "spool").rglob("*") if path.is_file()}
    with (living / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        first, second = group_folder.read_ended(tmp_path / "spool")
    assert {path: path.read_bytes() for path in (tmp_path / "spool").rglob("*") if path.is_file()} == before
    assert (second, elsewhere.is_dir()) == (group_record.read(done), True)
    group_folder.survey(tmp_path / "spool")
    assert first == group_record.read(dead)


def test_a_spool_that_others_made_removes_and_ends_nothing_of_ours(tmp_path: Path, monkeypatch) -> None:
    cleared: list[str] = []
    monkeypatch.setattr(group_folder.leftovers, "clear", lambda spool_id: cleared.append(spool_id) or 0)
    running = as_running(record(()))
    forged = make_spool(tmp_path, replace(running, spool_id="a/../other"), "0001-forged")
    foreign_folder = make_spool(tmp_path, replace(running, spool_id="b"), "0002-theirs")
    monkeypatch.setattr(os, "geteuid", lambda: foreign_folder.stat().st_uid + 1)
    (elsewhere := tmp_path / "elsewhere" / "folder").mkdir(parents=True)
    (elsewhere / "lock").touch()
    os.utime(elsewhere / "lock", (0, 0))
    (tmp_path / "spool" / "link").symlink_to(elsewhere.parent)
    survey = group_folder.survey(tmp_path / "spool")
    assert survey.ready == (foreign_folder,) and list(survey.unreadable) == [forged]
    assert "spool_id 'a/../other' is not an id" in survey.unreadable[forged]
    assert elsewhere.is_dir() and not cleared


@pytest.mark.parametrize("line", ['{"t_ns": Infinity}', '{"t_ns": 1e300}', "[" * 50_000, f'{{"t_ns": {10**30}}}'])
def test_what_a_killed_job_wrote_last_may_be_anything(tmp_path: Path, line: str) -> None:
    folder = make_spool(tmp_path, as_running(record((child(0, result=None, end_ns=None),))))
    (folder / "jobs" / "0" / "events.jsonl").write_text(f"{line}\n")
    os.utime(folder / "record.json", ns=(0, CLOCK.wall_ns + 2 * SECOND))
    assert group_folder.survey(tmp_path / "spool").ready == (folder,)
    assert group_record.read(folder).jobs[0].end_ns == CLOCK.monotonic_ns + 2 * SECOND


def test_what_is_made_below_the_spool_survives_whoever_removes_its_empty_folders(tmp_path: Path) -> None:
    tries = []

    def make() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise FileNotFoundError

    group_folder.create_below_spool(make)
    assert len(tries) == 3


def test_a_record_of_another_version_is_not_guessed_at(tmp_path: Path) -> None:
    folder = make_spool(tmp_path, record((child(0),)))
    raw = json.loads((folder / "record.json").read_text()) | {"version": 1}
    (folder / "record.json").write_text(json.dumps(raw))
    with pytest.raises(
        TrackingError, match=r"could not read .*record.json: : unknown key 'version'|unknown key 'version'"
    ):
        group_record.read(folder)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = record((child(0, gi_id=2), child(1)), number=7)
    assert group_record.read(make_spool(tmp_path, written)) == written


def test_what_a_full_disk_left_without_a_record_goes_once_it_is_old(tmp_path: Path) -> None:
    for name, age_s in (("old", 7200), ("young", 0)):
        folder = tmp_path / "spool/study" / name
        (folder / "artifacts").mkdir(parents=True)
        (folder / "lock").touch()
        os.utime(folder / "lock", (time.time() - age_s,) * 2)
    survey = group_folder.survey(tmp_path / "spool")
    assert (survey.ready, survey.unreadable) == ((), {})
    assert [path.name for path in (tmp_path / "spool/study").iterdir()] == ["young"]


POWER, MEMORY, OF_JOB, OF_INSTANCE = (
    SeriesKey("nvml", None, None, "power_w"),
    SeriesKey("nvml", None, None, "memory_used_mib"),
    SeriesKey("nvml", 1, None, "memory_used_mib"),
    SeriesKey("dcgm", None, 3, "memory_used_mib"),
)


@pytest.fixture
def samples(tmp_path: Path) -> dict[SeriesKey, Series]:
    path = tmp_path / "samples.jsonl"
    lines = [sample("nvml", second, {"power_w": 70.5 + second, "memory_used_mib": 512.0}) for second in range(4)]
    lines.append(sample("nvml", 2, {"memory_used_mib": 128.0}, job=1))
    lines.append(sample("dcgm", 3, {"memory_used_mib": 256.0}, gi_id=3))
    path.write_text("".join(lines))
    return sample_series.read_samples(path)


def test_the_table_gives_back_what_was_sampled(samples, tmp_path):
    about = About(device="NVIDIA H100 80GB HBM3", instances={3: "1g.10gb"}, is_simulated=True)
    path = sample_series.write_table(samples, CLOCK, tmp_path, about)
    metadata = pq.read_schema(path).metadata[b"collocation"]
    assert json.loads(metadata) == {"device": about.device, "instances": {"3": "1g.10gb"}, "is_simulated": True}
    assert path.name == SAMPLE_TABLE
    assert sample_series.read_table(path, {origin.field for origin in samples}) == samples
    assert sample_series.read_table(path, set()) == {}
    of_memory = sample_series.read_table(path, {"memory_used_mib"})
    assert set(of_memory) == {MEMORY, OF_JOB, OF_INSTANCE}
    assert list(sample_series.read_table(path, {"power_w"})[POWER].t_ns) == [
        START + second * SECOND for second in range(4)
    ]


def test_a_thinned_series_keeps_its_ends(samples):
    long = Series()
    for index in range(1001):
        long.append(index, index / 2)
    points = list(long.thin(100))
    assert len(points) <= 100 and points[0] == (0, 0, 0.0) and points[-1] == (1000, 1000, 500.0)
    assert [value for *_, value in samples[POWER].thin(100)] == [70.5, 71.5, 72.5, 73.5]


def test_the_table_has_every_whole_record_and_what_never_came_is_missing(tmp_path):
    import pandas as pd

    clock, file = Clock(wall_ns=10**18, monotonic_ns=1000), tmp_path / client.REQUESTS_FILE
    records = [(2000, 2001, 2005, 2007, 2010, 3, 4), (3000, 3001, 0, 0, 0, 0, 1)]
    file.write_bytes(b"".join(client.REQUEST.pack(*record) for record in records) + b"torn")
    path = sample_series.write(file, clock, tmp_path)
    assert path is not None
    table = pd.read_parquet(path)
    assert table["wall_time"].astype("int64").tolist() == [10**18 + 1000, 10**18 + 2000]
    first, second = table.drop(columns="wall_time").to_dict("records")
    assert tuple(first.values()) == records[0]
    assert pd.isna([second["begun_ns"], second["first_token_ns"], second["done_ns"]]).all()
    assert (second["sent_ns"], second["tokens"], second["batch"]) == (3001, 0, 1)


def test_a_job_without_requests_has_no_table(tmp_path):
    assert sample_series.write(tmp_path / client.REQUESTS_FILE, Clock(wall_ns=1, monotonic_ns=1), tmp_path) is None
