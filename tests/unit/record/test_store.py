"""The local store: created once, migrated safely, moved with its artifacts, read as tables and on MLflow's pages."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import sqlalchemy

from pipeline import tracking
from pipeline.base.domain.layout import DATABASE, STORE_LOCK
from pipeline.base.domain.records import Result
from pipeline.base.domain.tags import Tag, fact_tag, stored_name
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.system.errors import ConfigError, StoreError, TrackingError
from pipeline.record import group_record
from pipeline.record.group_record import GroupRecord
from pipeline.record.store import database_schema, pages, results
from pipeline.record.store.local_store import is_local, is_ready, open_store
from pipeline.record.store.portable_paths import relocate
from pipeline.record.store.store_access import open_if_there
from pipeline.report.__main__ import main as report
from tests.support.tracking_cases import (
    EXPERIMENT,
    PROJECT,
    SECOND,
    START,
    as_running,
    child,
    client,
    make_spool,
    record,
    runs_of,
    store_groups,
)

pytestmark = pytest.mark.store


def query(database: Path, statement: str, *values: object) -> list[tuple]:
    with closing(sqlite3.connect(database)) as connection, connection:
        return connection.execute(statement, values).fetchall()


def log_a_file(root: Path, tmp_path: Path, experiment: str = EXPERIMENT) -> str:
    store = open_store(root)
    run_id = store.client.create_run(store.open_experiment(experiment)).info.run_id
    (tmp_path / "note.txt").write_text("kept")
    store.client.log_artifact(run_id, str(tmp_path / "note.txt"))
    return run_id


@pytest.mark.slow
def test_a_fresh_store_keeps_everything_in_its_folder(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "a b#%é" / "mlruns", tmp_path / "cwd"
    elsewhere.mkdir()
    code = (
        "import sys; from pathlib import Path; from pipeline.record.store.local_store import open_store\n"
        "store = open_store(Path(sys.argv[1])); run = store.client.create_run(store.open_experiment('a/b'))\n"
        "store.client.log_text(run.info.run_id, 'kept', 'note.txt')\n"
    )
    environ = {"PYTHONPATH": str(PROJECT), "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, "-c", code, str(root)], cwd=elsewhere, env=environ, check=True, capture_output=True)
    locations = dict(query(root / DATABASE, "SELECT name, artifact_location FROM experiments"))
    assert locations == {
        "Default": (root / "artifacts").as_uri() + "/0",
        "a/b": (root / "artifacts" / "a_b").as_uri(),
    }
    assert [path.read_text() for path in root.glob("artifacts/a_b/*/artifacts/note.txt")] == ["kept"]
    assert list(elsewhere.iterdir()) == []
    on_local_disk = is_local(root.resolve())
    assert query(root / DATABASE, "PRAGMA journal_mode") == [("wal" if on_local_disk else "delete",)]


@pytest.mark.parametrize(("mode", "synchronous"), [("wal", 1), ("delete", 2)])
def test_only_a_database_that_is_written_ahead_waits_seldom_for_the_disk(
    mode: str, synchronous: int, root: Path, tmp_path: Path
) -> None:
    open_store(root)
    other = tmp_path / "other.db"
    query(other, f"PRAGMA journal_mode={mode}")
    with sqlalchemy.create_engine(f"sqlite:///{other}").connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == synchronous


@pytest.mark.slow
def test_a_store_half_built_by_a_killed_process_is_built_again(tmp_path: Path) -> None:
    (tmp_path / f".{DATABASE}.new").write_text("half a database")
    assert open_store(tmp_path).open_experiment(EXPERIMENT) == "1"


@pytest.mark.slow
def test_what_was_written_ahead_of_a_database_that_was_removed_is_not_taken_for_the_new_ones(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.client._tracking_client.store.engine.dispose()
    insert = "INSERT INTO experiments (name, lifecycle_stage) VALUES ('of the old one', 'active')"
    # A process that is killed leaves what it has written ahead.
    code = f"""import os, sqlite3; c = sqlite3.connect({str(tmp_path / DATABASE)!r}); c.execute({insert!r}); c.commit()
os._exit(0)"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / f"{DATABASE}-wal").stat().st_size
    (tmp_path / DATABASE).unlink()
    store = open_store(tmp_path)
    assert store.client.get_experiment_by_name("of the old one") is None


@pytest.mark.slow
def test_four_processes_open_a_fresh_root_at_once(tmp_path: Path, serve) -> None:
    processes = [serve("--root", tmp_path / "mlruns") for _ in range(4)]
    for process in processes:
        process.tell("open", experiment=EXPERIMENT)
    answers = [process.ask("open", experiment=EXPERIMENT) for process in processes]
    assert [answer["experiment_id"] for answer in answers] == ["1"] * 4
    assert query(tmp_path / "mlruns" / DATABASE, "SELECT count(*) FROM alembic_version") == [(1,)]


def test_an_experiment_has_the_view_that_links_open_whoever_made_it(root: Path) -> None:
    store = open_store(root)
    store.client.create_experiment("made by hand")
    for name in ("made by hand", "ours"):
        store.open_experiment(name)
        tags = store.client.get_experiment_by_name(name).tags
        view = json.loads(tags["mlflow.sharedViewState.collocation"])
        assert "metrics.`speedup_vs_serial_ratio`" in view["selectedColumns"]
        assert len(tags["mlflow.sharedViewState.collocation"]) <= 5000  # what MLflow takes


def test_a_deleted_experiment_is_refused_with_the_way_out(root: Path) -> None:
    store = open_store(root)
    experiment_id = store.open_experiment(EXPERIMENT)
    store.client.delete_experiment(experiment_id)
    with pytest.raises(TrackingError, match=f"restore --experiment-id {experiment_id}"):
        open_store(root).open_experiment(EXPERIMENT)


def test_a_store_is_ready_only_as_it_was_left_and_with_an_experiment_that_can_be_used(root: Path) -> None:
    assert not is_ready(root / "absent", "test")
    store = open_store(root)
    experiment_id = store.open_experiment("test")
    assert is_ready(root, "test") and is_ready(root, "another")
    store.client.delete_experiment(experiment_id)
    assert not is_ready(root, "test")
    store.client.restore_experiment(experiment_id)
    moved = root.rename(root.with_name("moved"))
    assert not is_ready(moved, "test")
    query(moved / DATABASE, f"UPDATE alembic_version SET version_num = '{NEWER}'")
    assert not is_ready(moved, "another")


NEWER, OLDER, OPTUNA = "fedcba987654", "b7e2c1a4d9f3", "v3.2.0.a"
SHARED = [f"INSERT INTO alembic_version VALUES ('{OPTUNA}')"]
NO_MLFLOW = ["DROP TABLE runs", "DROP TABLE experiments"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("statements", "words"),
    [
        ([f"UPDATE alembic_version SET version_num = '{NEWER}'"], rf"written by a newer MLflow than .* {NEWER}\);"),
        ([f"UPDATE alembic_version SET version_num = '{OLDER}'"], rf"older MLflow than .* {OLDER}\); .*upgrade "),
        (SHARED, rf"shared with Optuna \(alembic_version: .*, {OPTUNA}\);"),
        ([f"UPDATE alembic_version SET version_num = '{OPTUNA}'"], rf"shared with Optuna \(.*: {OPTUNA}\);"),
        (["INSERT INTO alembic_version VALUES ('ours')"], r"shared with another program \(.*: .*, ours\);"),
        (["CREATE TABLE studies (a)", "CREATE TABLE trials (a)", f"UPDATE alembic_version SET version_num = '{NEWER}'"],
         r"shared with Optuna \("),
        ([f"INSERT INTO alembic_version VALUES ('{OLDER}')"], rf"has 2 schema versions \({OLDER}, "),
        (["DELETE FROM alembic_version"], "has no schema version; "),
        (["DROP TABLE alembic_version"], "has no schema version; "),
        ([*NO_MLFLOW, "CREATE TABLE studies (a)", "CREATE TABLE trials (a)"], "a database of Optuna, not of MLflow; "),
        (NO_MLFLOW, "a database of another program, not of MLflow; "),
    ],
)  # fmt: skip
def test_a_database_that_cannot_be_used_is_told_and_left_alone(root: Path, statements, words: str) -> None:
    for statement in statements:
        query(root / DATABASE, statement)
    before = "\n".join(sqlite3.connect(root / DATABASE).iterdump())
    assert not is_ready(root, EXPERIMENT)
    for open_it in (open_store, open_if_there, lambda root: open_store(root, f"sqlite:///{root / DATABASE}")):
        with pytest.raises(StoreError, match=f"{words}.") as error:
            open_it(root)
        assert "\n" not in str(error.value)
    assert "\n".join(sqlite3.connect(root / DATABASE).iterdump()) == before
    assert not list(root.glob("*.before-*"))


@pytest.mark.parametrize("content", [b"", b"no database\n" * 100])
def test_a_file_that_is_no_database_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / DATABASE).write_bytes(content)
    with pytest.raises(TrackingError, match=r"is empty; remove it|file is not a database; "):
        open_store(tmp_path)
    assert (tmp_path / DATABASE).read_bytes() == content


def test_every_command_ends_with_2_on_a_database_that_cannot_be_used(root: Path, capsys) -> None:
    query(root / DATABASE, SHARED[0])
    assert tracking.main(["upgrade", "--root", str(root)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    make_spool(root, record(()))
    assert tracking.main(["flush", "--root", str(root)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and "shared with Optuna" in err and err.count("\n") == 1
    assert report(["--root", str(root), "--experiment", "e"]) == 2
    assert "shared with Optuna" in capsys.readouterr().err


@pytest.mark.slow
def test_an_upgrade_that_fails_changes_nothing_and_leaves_no_copy(root: Path, capsys, monkeypatch) -> None:
    """A half-migrated database has tables that the upgrade makes again."""
    query(root / DATABASE, f"UPDATE alembic_version SET version_num = '{OLDER}'")
    before = "\n".join(sqlite3.connect(root / DATABASE).iterdump())
    assert tracking.main(["upgrade", "--root", str(root)]) == 2
    err = capsys.readouterr().err
    assert "could not be upgraded for MLflow" in err and "and is unchanged (" in err
    assert "Background on this error" not in err and err.count("\n") == 1
    assert "\n".join(sqlite3.connect(root / DATABASE).iterdump()) == before
    assert {file.name for file in root.iterdir()} - {f"{DATABASE}-wal", f"{DATABASE}-shm"} == {DATABASE, STORE_LOCK}
    (copy := root / f"{DATABASE}.before-3.0").touch()
    failed = SimpleNamespace(returncode=1, stderr="Traceback\nValueError: of 2.0\n(Background)\n")
    monkeypatch.setattr(database_schema.subprocess, "run", lambda *_, **__: failed)
    assert tracking.main(["upgrade", "--root", str(root)]) == 2
    err = capsys.readouterr().err
    assert "(ValueError: of 2.0)" in err and f"after an interrupted upgrade, restore {copy}\n" in err


@pytest.mark.slow
def test_an_older_store_is_upgraded_when_asked_and_not_before(tmp_path: Path, capsys) -> None:
    from alembic import command
    from mlflow.store.db.utils import _get_alembic_config, create_sqlalchemy_engine
    from mlflow.store.tracking.dbmodels.initial_models import Base

    older = "0584bdc529eb"  # before the tables of MLflow 3
    uri = f"sqlite:///{tmp_path / DATABASE}"
    engine = create_sqlalchemy_engine(uri)
    Base.metadata.create_all(engine)
    config = _get_alembic_config(uri)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, older)
    engine.dispose()
    columns = "name, artifact_location, lifecycle_stage"
    query(tmp_path / DATABASE, f"INSERT INTO experiments ({columns}) VALUES ('old', '/elsewhere', 'active')")
    query(tmp_path / DATABASE, "PRAGMA journal_mode=wal")
    before = "\n".join(sqlite3.connect(tmp_path / DATABASE).iterdump())
    for open_it in (open_store, open_if_there, lambda _: open_store(tmp_path, uri)):
        with pytest.raises(StoreError, match="older MLflow"):
            open_it(tmp_path)
    assert "\n".join(sqlite3.connect(tmp_path / DATABASE).iterdump()) == before

    reader = sqlite3.connect(tmp_path / DATABASE)  # as of MLflow's UI
    reader.execute("SELECT * FROM experiments").fetchall()
    assert tracking.main(["upgrade", "--root", str(tmp_path)]) == 0
    assert "upgraded " in capsys.readouterr().out
    assert tracking.main(["upgrade", "--root", str(tmp_path)]) == 0
    assert "is up to date" in capsys.readouterr().out

    assert reader.execute("SELECT name FROM experiments").fetchall() == [("old",)]
    store = open_store(tmp_path)
    assert store.client.get_experiment_by_name("old").artifact_location == "/elsewhere"
    [copy] = tmp_path.glob(f"{DATABASE}.before-*")
    assert query(copy, "SELECT version_num FROM alembic_version") == [(older,)]
    assert query(copy, "SELECT name FROM experiments WHERE name = 'old'") == [("old",)]
    assert not list(tmp_path.glob("*.upgrade*"))


@pytest.mark.parametrize(
    ("mounts", "local"),
    [
        ("/ ext4", True),
        ("/ overlay", True),
        ("/ ext4;/data nfs4", False),
        ("/ ext4;/data/runs fuse.sshfs", False),
        ("/ ext4;/dat nfs4", True),
        ("/ nfs4;/data xfs", True),
        ("/ ext4;/data nfs4;/data tmpfs", True),
        ("/ ext4;/data/runs2 lustre", True),
        ("/ something_new", False),
        ("/ 9p", False),
    ],
)
def test_the_mount_that_holds_the_path_decides(mounts: str, local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = [SimpleNamespace(mountpoint=point, fstype=kind) for point, kind in map(str.split, mounts.split(";"))]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: partitions)
    assert is_local(Path("/data/runs")) is local


def test_of_this_machine_every_kind_of_mount_is_seen() -> None:
    assert not is_local(Path("/proc/self"))


def test_a_copied_store_asks_to_be_relocated_and_then_has_its_artifacts(root: Path, tmp_path: Path) -> None:
    run_id = log_a_file(root, tmp_path)
    moved = tmp_path / "new place" / "mlruns"
    shutil.copytree(root, moved)
    shutil.rmtree(root)
    with pytest.raises(TrackingError, match=r"relocate --root '.*/new place/mlruns'`"):
        open_store(moved).open_experiment(EXPERIMENT)

    assert relocate(moved)["runs.artifact_uri"] == 1

    assert Path(client(moved).download_artifacts(run_id, "note.txt")).read_text() == "kept"
    assert open_store(moved).open_experiment(EXPERIMENT) == runs_of(client(moved))[0].info.experiment_id
    assert relocate(moved) == {}


def test_an_old_place_may_be_named_from_the_working_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    assert relocate(root, Path("mlruns")) == {}


def test_relocating_leaves_other_places_alone(root: Path, tmp_path: Path) -> None:
    log_a_file(root, tmp_path)
    open_store(root).client.create_experiment("bucket", artifact_location="s3://bucket/artifacts/x")
    neighbour = f"{root}-neighbour/thing"
    open_store(root).client.create_experiment("neighbour", artifact_location=neighbour)
    moved = tmp_path / "moved"
    root.rename(moved)
    relocate(moved)
    locations = dict(query(moved / DATABASE, "SELECT name, artifact_location FROM experiments"))
    assert locations["bucket"] == "s3://bucket/artifacts/x"
    assert locations["neighbour"] == neighbour
    assert locations[EXPERIMENT] == (moved / "artifacts" / EXPERIMENT).as_uri()


def test_relocating_refuses_what_it_cannot_tell(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tracking store"):
        relocate(tmp_path / "nothing")
    log_a_file(root, tmp_path, "one")
    moved = tmp_path / "moved"
    root.rename(moved)
    query(moved / DATABASE, "UPDATE experiments SET artifact_location = '/other/artifacts/one' WHERE name = 'one'")
    with pytest.raises(TrackingError, match="--from"):
        relocate(moved)
    assert relocate(moved, Path("/other")) == {"experiments.artifact_location": 1}
    assert relocate(moved, root)["runs.artifact_uri"] == 1
    assert relocate(moved, root) == {}


def test_a_place_that_is_mistyped_is_an_error(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_a_file(root, tmp_path, "one")
    assert tracking.main(["status", "--uri", "localhost:5000", "--root", str(root)]) == 2
    assert "is not a tracking server; use --uri http://HOST:PORT" in capsys.readouterr().err
    moved = tmp_path / "moved"
    root.rename(moved)
    assert tracking.main(["relocate", "--from", "/wrong", "--root", str(moved)]) == 1
    assert f"no artifact path begins with /wrong; choose another folder for --from: {root}" in capsys.readouterr().err


def test_a_store_reached_through_a_link_is_in_its_place(root: Path, tmp_path: Path) -> None:
    log_a_file(root, tmp_path)
    link = tmp_path / "link"
    link.symlink_to(root)
    assert open_store(link).open_experiment(EXPERIMENT)


@pytest.mark.parametrize(
    "tag", [Tag.DIGEST, Tag.PLANNED, Tag.FIGURES, fact_tag("plan"), fact_tag("environment_0_digest")]
)
def test_mlflow_shows_no_digest_and_no_json(tag: str) -> None:
    tags = {stored_name(tag): "x", Tag.RESULT: "ok"}
    assert all(name.startswith("mlflow.") for name in tags if name != Tag.RESULT)


@pytest.mark.parametrize("tag", [Tag.RESULT, Tag.DEVICE, Tag.STUDY, fact_tag("git_commit"), Tag.PARENT_RUN])
def test_what_people_read_keeps_its_name(tag: str) -> None:
    assert stored_name(tag) == tag


def test_tags_say_what_the_record_has(root: Path) -> None:
    facts = {"plan": "p", "host": "h", "program_commit": "abc", "command_line": "/x/run.py degree=1"}
    job = child(0, size="S", is_co_runner=True, pid=7, placement={"mig_profile": "1g"}, notes={"left_out": "a"})
    options = {"profile": "auto"}
    (group,) = store_groups(root, record((job,), facts=facts, note="slow", options=options, baseline_run=2))
    tags = open_store(root).client.get_run(group.run_id).data.tags
    assert json.loads(tags["mlflow.collocation.planned"]) == {"settings": group.settings, "options": options}
    assert (tags["mlflow.collocation.plan"], tags["mlflow.source.git.commit"]) == ("p", "abc")
    assert (tags["mlflow.source.name"], tags["collocation.flag"], tags["collocation.baseline_run"]) == (
        "run.py",
        "slow",
        "2",
    )
    run = open_store(root).client.get_run(group.jobs[0].run_id)
    job_tags = {
        name: run.data.tags[f"collocation.{name}"] for name in ("size", "co_runner", "pid", "host", "left_out", "index")
    }
    assert job_tags == {"size": "S", "co_runner": "true", "pid": "7", "host": "h", "left_out": "a", "index": "0"}
    assert run.data.params["placement.mig_profile"] == "1g"
    table = results.load(root, EXPERIMENT)
    assert table[f"group.tags.{Tag.DIGEST}"].tolist() == ["digest1"] and table["tags.collocation.pid"].tolist() == ["7"]
    (read_group,) = results.read_groups(root, EXPERIMENT)
    assert read_group.facts.items() >= {"plan": "p", "host": "h"}.items()
    assert (read_group.result, read_group.digest) == ("ok", "digest1")
    assert results.recall(root, group.jobs[0].run_id).group == group


@pytest.mark.parametrize(
    ("params", "settings", "shown"),
    [
        ({"work_unit": "steps"}, {}, "serial-1x-it's; 5% (work_unit=steps)"),
        ({"flags.amp": "true"}, {}, "serial-1x-it's; 5% (--amp)"),
        ({}, {"window": "work"}, "serial-1x-it's; 5% (window=work)"),
        ({}, {"device": "Other"}, "serial-1x-it's; 5%"),
        ({}, {}, "serial-1x-it's; 5% (digest key2)"),
    ],
    ids=["an option", "a flag", "a setting", "a device with a column of its own", "other code"],
)
def test_mlflow_tells_groups_of_one_name_apart(root: Path, params, settings, shown) -> None:
    def group(number: int, second: int, params: dict[str, str], settings: dict[str, str]) -> GroupRecord:
        job = child(0, params={"workload": "script", "work_unit": "samples"} | params)
        all_settings = {"device": "GPU", "window": "steady"} | settings
        device = all_settings["device"]
        start_ns = START + second
        return record(
            (job,), number, name="serial-1x-it's; 5%", settings=all_settings, device=device, start_ns=start_ns
        )

    groups = [group(1, 0, {}, {}), group(2, 1, params, settings), group(1, 2, {}, {}), group(2, 3, params, settings)]
    stored = store_groups(root, *groups)
    client = open_store(root).client
    assert [client.get_run(one.run_id).info.run_name for one in stored] == ["serial-1x-it's; 5%", shown] * 2
    assert {one.name for one in stored} == {"serial-1x-it's; 5%"}  # the stored name stays


@pytest.mark.parametrize("marks", [{}, {"note": "slow"}, {"invalid": "the GPU was hot"}])
def test_the_description_of_a_marked_row_begins_with_a_sign(root: Path, marks: dict[str, str]) -> None:
    (group,) = store_groups(root, record((child(0),), **marks))
    described = open_store(root).client.get_run(group.run_id).data.tags[Tag.DESCRIPTION]
    assert described.startswith("\u26a0 ok* (" if marks else "ok")


def test_an_experiment_that_is_not_there_is_named_with_those_that_are(root: Path) -> None:
    store = open_store(root)
    for name in ("study-rehearsal", "other"):
        store.open_experiment(name)
    with pytest.raises(TrackingError, match=r"has no experiment 'nothing'; available: 'other', 'study-rehearsal'$"):
        results.load_groups(root, "nothing")
    with pytest.raises(TrackingError, match=r": 'study' has only a rehearsal; use study-rehearsal$"):
        results.load_groups(root, "study")


@pytest.mark.slow
def test_the_page_shows_each_unit_that_any_study_of_the_experiment_counts(root: Path) -> None:
    def columns() -> list[str]:
        experiment = open_store(root).client.get_experiment_by_name("e")
        return list(json.loads(experiment.tags[pages.VIEW_TAG])["selectedColumns"])

    open_store(root).open_experiment("e", {"samples"})
    assert "metrics.`throughput_total_samples_per_s`" in columns()
    assert not any("requests" in column for column in columns())
    store = open_store(root)
    assert store.open_experiment("e", {"requests"}) == store.open_experiment("e")
    both = ["samples", "requests"]
    assert {f"metrics.`throughput_total_{unit}_per_s`" for unit in both} <= set(columns())
    assert {"metrics.`energy_per_sample_j`", "metrics.`energy_per_request_j`"} <= set(columns())


def test_a_page_that_somebody_else_made_shows_no_unit() -> None:
    assert pages.units_in_view("") == pages.units_in_view("[1]") == pages.units_in_view('{"compareRunCharts": 3}')
    assert pages.units_in_view(pages.view_as_json(frozenset({"particle_turns"}))) == {"particle_turns"}


def test_more_units_than_a_tag_has_room_for_are_not_all_shown() -> None:
    state = pages.view_as_json(frozenset(f"units_{number:03}" for number in range(100)))
    assert len(state) <= 5000 and len(pages.units_in_view(state)) > 2


def test_the_view_is_of_groups_by_name_with_their_marks_and_first_figures_in_sight() -> None:
    state = json.loads(pages.view_as_json(frozenset({"samples"})))
    assert state["selectedColumns"][:4] == [
        "attributes.`Description`",  # begins with the mark
        *(f"metrics.`{name}`" for name in ("throughput_total_samples_per_s", "speedup_vs_serial_ratio")),
        "metrics.`slowdown_worst_ratio`",
    ]
    # MLflow leaves 700 pixels to the columns of a page of 1,400 while its menu and its assistant are open.
    assert sum(state["columnWidths"][name] for name in state["columnOrder"][:6]) <= 700
    assert {"tags.`collocation.device`", "tags.`collocation.simulated`"} < set(state["selectedColumns"])
    assert (state["orderByKey"], state["orderByAsc"]) == ("tags.`mlflow.runName`", True)
    assert state["searchFilter"] == "tags.`collocation.role` = 'group'"  # neither reports nor jobs between them


@pytest.fixture
def filled_root(root: Path) -> Path:
    """Two groups that ended, the later one sent first, and one that runs."""
    facts = {"boot_id": "boot", "power_limit_w": "500", "ecc_mode": ""}
    metrics = {"makespan_s": 1.0, "speedup_vs_serial_ratio": 1.5}
    jobs = [
        child(index, params={"batch_size": str(index)}, metrics={"throughput_samples_per_s": float(index)})
        for index in (0, 1, 2)
    ]
    store_groups(
        root,
        record(
            (replace(jobs[2], result=Result.OOM),),
            2,
            start_ns=START + SECOND,
            result=Result.OOM,
            metrics={"makespan_s": 2.0},
        ),
        record((jobs[0], jobs[1]), 1, facts=facts, gpu_uuid="GPU-1", metrics=metrics),
        as_running(record((), 3, start_ns=START + 2 * SECOND)),
    )
    return root


def test_finished_groups_say_what_resume_needs_and_nothing_that_is_unknown(filled_root: Path) -> None:
    first, second = results.find_finished(filled_root, EXPERIMENT)
    assert (first.digest, first.result) == ("digest1", Result.OK)
    assert dict(first.machine_state.facts) == {"gpu_uuid": "GPU-1", "boot_id": "boot", "power_limit_w": "500"}
    assert first.metrics == {"makespan_s": 1.0, "speedup_vs_serial_ratio": 1.5}
    assert (second.digest, second.result, second.machine_state.facts) == ("digest2", Result.OOM, ())


def test_a_group_whose_run_was_deleted_is_not_read(filled_root: Path) -> None:
    first, _ = results.find_finished(filled_root, EXPERIMENT)
    open_store(filled_root).client.delete_run(first.run_id)
    assert [group.digest for group in results.find_finished(filled_root, EXPERIMENT)] == ["digest2"]
    open_store(filled_root).client.restore_run(first.run_id)
    assert len(results.find_finished(filled_root, EXPERIMENT)) == 2


def test_a_store_of_an_earlier_version_is_refused_in_a_line_that_names_the_script(filled_root: Path) -> None:
    for file in filled_root.glob("artifacts/*/*/artifacts/record.json"):
        (file.parent / "group.json").write_text("{}")
        file.unlink()
    for read in (results.find_finished, results.load_groups, results.read_groups):
        with pytest.raises(
            TrackingError, match=rf"^{filled_root} was .*: python benchmarks/convert_bundle.py {filled_root} "
        ) as e:
            read(filled_root, EXPERIMENT)
        assert "\n" not in str(e.value)


def test_nothing_is_finished_where_there_is_no_store_and_looking_makes_none(root: Path, tmp_path: Path) -> None:
    assert results.find_finished(tmp_path / "absent", EXPERIMENT) == []
    assert not (tmp_path / "absent").exists()
    assert results.find_finished(root, "never heard of") == []


def test_groups_are_one_row_each_and_missing_stays_missing(filled_root: Path) -> None:
    table = results.load_groups(filled_root, EXPERIMENT)
    assert table["metrics.makespan_s"].tolist()[:2] == [1.0, 2.0]
    assert table["metrics.speedup_vs_serial_ratio"].isna().tolist() == [False, True, True]
    assert table["tags.collocation.result"].tolist()[:2] == ["ok", "oom"]
    assert table["end_time"].isna().tolist() == [False, False, True]


def test_jobs_have_their_group_beside_them(filled_root: Path) -> None:
    table = results.load(filled_root, EXPERIMENT)
    assert table["metrics.throughput_samples_per_s"].tolist() == [0.0, 1.0, 2.0]
    assert table["params.batch_size"].tolist() == ["0", "1", "2"]
    assert table["group.tags.collocation.result"].tolist() == ["ok", "ok", "oom"]
    assert table["group.metrics.makespan_s"].tolist() == [1.0, 1.0, 2.0]


def test_tables_of_nothing(root: Path, tmp_path: Path) -> None:
    for where, experiment in ((tmp_path / "absent", EXPERIMENT), (root, "never heard of")):
        with pytest.raises(TrackingError, match=r"no (store|experiment)"):
            results.load(where, experiment)
    open_store(root).open_experiment("empty")
    assert len(results.load(root, "empty")) == len(results.load_groups(root, "empty")) == 0


@pytest.mark.slow
def test_a_thousand_groups_are_read_in_seconds(root: Path) -> None:
    """1,000 groups of 2 jobs, with 40 metrics and 40 params each."""
    values = {
        "params": {f"param{k}": str(k) for k in range(40)},
        "metrics": {f"metric{k}": float(k) for k in range(40)},
    }
    (stored,) = store_groups(root, record((child(0, **values), child(1, **values)), **values))
    (folder,) = root.glob("artifacts/*")
    for number in range(1, 1000):
        copy = replace(stored, run_id=f"{number:032x}", start_ns=stored.start_ns + number)
        (folder / copy.run_id / "artifacts").mkdir(parents=True)
        (folder / copy.run_id / "artifacts" / "record.json").write_text(group_record.encode(copy))
    began = time.process_time()  # not the clock: other tests may run beside this one
    assert len(results.find_finished(root, EXPERIMENT)) == 1000
    assert len(results.load(root, EXPERIMENT)) == 2000
    assert time.process_time() - began < 20


def test_a_group_that_ran_says_of_which_program_with_which_arguments() -> None:
    facts = {"jobs": "train+train", "args": "--epochs 3", "flags.lr": "0.1", "flags.fast": "true", "degree": "2"}
    assert results._describe_programs(facts) == "train --epochs 3 --lr 0.1 --fast"
    assert results._describe_programs({"jobs": "train+eval+train"}) == "train+eval"


def test_the_time_of_a_window_by_need_beyond_its_shortest_length_is_part_of_the_estimate(root: Path) -> None:
    window = Window(kind=WindowKind.STEADY, seconds=1, most_s=10)
    metrics = {"time_launch_s": 3.0, "time_window_s": 16.0, "window_s": 11.5}
    params = {"scenario": "serial", "degree": "2", "jobs": "a+b"}
    store_groups(root, record((), window=window, scenario="serial", params=params, metrics=metrics))
    assert [group.on_top_s for group in results.find_past_groups(root)] == [3.0 + 11.5 - 2 * 1.0]
