"""Progress of a study, shard by shard, and groups whose host is gone."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.domain.tags import Tag
from pipeline.base.system import host_info
from pipeline.base.system.errors import CommandError, TrackingError
from pipeline.record import group_folder, group_record, owner
from pipeline.record.group_record import Clock, GroupRecord
from pipeline.record.shards import overview, shard_states, slurm_arrays
from pipeline.record.shards.slurm_arrays import Submission
from pipeline.record.store import content, results, upload
from pipeline.record.store.local_store import open_store
from tests.support.tracking_cases import SECOND, START, as_running, child, make_spool, record, store_groups
from tests.support.tracking_cases import record as make_record

pytestmark = pytest.mark.store

NOW_S = 1000.0
_FIELDS = {"device", "gpu_uuid", "is_simulated", "later_plans", "spool_id"}


def make_run(shard: int, digest: str, result: str | None = "ok", **facts: Any) -> GroupRecord:
    """A group's run that took 10 s; of one without a result, it runs still. Some facts are fields of the record."""
    fields = {"gpu_uuid": f"GPU-{shard}", "spool_id": f"{shard}-{digest}"}
    fields |= {name: facts.pop(name) for name in _FIELDS & facts.keys()}
    facts = {"plan": "p2", "plan_shards": "2x2,1x1", "boot_id": "b", "host": "h1", "command_line": "run.py"} | facts
    return GroupRecord(
        name=digest,
        experiment="e",
        clock=Clock(wall_ns=0, monotonic_ns=0),
        jobs=(),
        shard=shard,
        digest=digest,
        result=None if result is None else Result(result),
        start_ns=900 * SECOND,
        end_ns=None if result is None else 910 * SECOND,
        facts={name: str(value) for name, value in facts.items()},
        **fields,
    )


@pytest.fixture
def look_at_runs(monkeypatch, tmp_path):
    """The overview of these runs."""

    def look(
        *runs: GroupRecord, queue: overview.Queue | None = None, ends: Callable[..., Mapping[str, str]] = lambda _: {}
    ) -> overview.Overview:
        monkeypatch.setattr(overview.results, "read_groups", lambda *_: list(runs))
        monkeypatch.setattr(overview.squeue, "list_end_states", ends)
        return overview.read_overview(tmp_path, "e", queue)

    return look


@pytest.fixture
def look_at_server(monkeypatch, look_at_runs):
    """The overview of these runs, and of what Slurm was given."""

    def look(submission: Submission, *runs: GroupRecord, **options: Any) -> overview.Overview:
        monkeypatch.setattr(overview, "is_server", lambda _: True)
        monkeypatch.setattr(overview.slurm_arrays, "read", lambda *_: submission)
        return look_at_runs(*runs, **options)

    return look


@pytest.mark.parametrize("sizes", [[12] * 5, [12, 12, 6], [1], [3, 4, 3]])
def test_sizes_of_shards_are_kept_in_few_words(sizes) -> None:
    assert overview.parse_sizes(overview.format_sizes(sizes)) == sizes
    assert overview.format_sizes([12, 12, 6]) == "12x2,6x1"


def test_shards_are_done_running_incomplete_or_not_begun(look_at_runs) -> None:
    again = make_run(1, "a", None, gpu_uuid="GPU-9")  # of a done shard it does not matter
    progress = look_at_runs(
        make_run(1, "a"), make_run(1, "b", "oom"), again, make_run(2, "a", "failed"), make_run(2, "b", None)
    )
    assert [(shard.state, dict(shard.results), shard.group) for shard in progress.shards] == [
        ("done", {"ok": 1, "oom": 1}, ""),
        ("running", {"failed": 1}, "b"),
        ("not begun", {}, ""),
    ]
    assert progress.seconds_left == 3 * 10
    assert not progress.is_done
    assert "shards: 1 done, 1 running, 1 not begun; 2 of 5 groups have a result, about 30 s left" in progress.as_text(
        NOW_S
    )


def test_shards_that_were_not_begun_have_one_line_a_gpu_model(look_at_runs) -> None:
    h100 = {"plan": "p1", "plan_any_gpu": "s", "plan_models": 2, "device": "H100", "plan_shards": "2x40,1x2"}
    lines = look_at_runs(make_run(1, "a", **h100), make_run(7, "b", **h100)).as_text(NOW_S).splitlines()
    assert [line.split("  ")[0] for line in lines[1:-2]] == ["-", *["H100"] * 4]
    assert [" ".join(line.split()[1:7]) for line in lines[1:-2]] == [
        "1 to 42 not begun 0/82",
        "1 incomplete 1/2 1 ok h1",
        "2 to 6 not begun 0/10",
        "7 incomplete 1/2 1 ok h1",
        "8 to 42 not begun 0/68",
    ]


def test_of_two_attempts_the_complete_one_counts_and_an_older_plan_does_not(look_at_runs) -> None:
    old = make_run(3, "z", plan="p1", plan_shards="9x9")
    progress = look_at_runs(
        old,
        make_run(1, "a"),
        make_run(1, "b"),
        make_run(1, "a", gpu_uuid="GPU-9", host="h2"),
        make_run(2, "a", "interrupted"),
    )
    assert [(shard.state, shard.host) for shard in progress.shards] == [
        ("done", "h1"),
        ("incomplete", "h1"),
        ("not begun", ""),
    ]
    other_driver = look_at_runs(make_run(1, "a", driver_version="580"), make_run(1, "b", driver_version="590"))
    assert (other_driver.shards[0].state, dict(other_driver.shards[0].results)) == ("incomplete", {"ok": 1})
    again = look_at_runs(make_run(1, "a", "failed"), make_run(1, "a"), make_run(1, "b"))
    assert dict(again.shards[0].results) == {"ok": 2}


@pytest.mark.parametrize(
    ("later", "states", "results"),
    [
        ([], "done", {"ok": 1, "skipped": 1}),
        ([make_run(1, "b", None)], "running", {"ok": 1}),
        ([make_run(1, "b", "timeout")], "incomplete", {"ok": 1, "timeout": 1}),
        ([make_run(1, "b", "timeout"), make_run(1, "b", "skipped")], "done", {"ok": 1, "skipped": 1}),
        ([make_run(1, "b", "failed", gpu_uuid="GPU-9")], "incomplete", {"ok": 1}),
        ([make_run(1, "b", "skipped", gpu_uuid="GPU-9")], "done", {"ok": 1, "skipped": 1}),
    ],
)
def test_a_group_that_was_skipped_has_no_answer_once_it_could_begin(look_at_runs, later, states, results) -> None:
    progress = look_at_runs(make_run(1, "a"), make_run(1, "b", "skipped"), *later)
    assert (progress.shards[0].state, dict(progress.shards[0].results)) == (states, results)
    message = "\n1 group skipped: resume=true runs the groups that can run now\n"
    assert (message in progress.as_text(NOW_S)) == ("skipped" in results)


def test_what_a_plan_measured_counts_in_each_plan_that_has_it(root) -> None:
    def record_group(digest: str, shard: int = 1, **facts: str) -> GroupRecord:
        facts = {"plan": "p1", "plan_shards": "1x2", "boot_id": "b", "command_line": "run.py", **facts}
        return make_record((), digest=digest, experiment="e", shard=shard, facts=facts, gpu_uuid=f"GPU-{shard}")

    of_new_plan = {"plan": "p2", "plan_shards": "2x1,1x1"}
    last = replace(record_group("c", 2, **of_new_plan, command_line="run.py degree=2"), start_ns=START + SECOND)
    groups = store_groups(root, record_group("a"), record_group("b"), last)
    *old, newest = (group.run_id for group in groups)
    store = open_store(root)
    assert [shard.state for shard in overview.read_overview(root, "e").shards] == ["not begun", "done"]
    shard_states.take_over(store, dict.fromkeys(old, 1), {**of_new_plan, "command_line": "run.py degree=2"})
    progress = overview.read_overview(root, "e")
    assert [(shard.state, dict(shard.results)) for shard in progress.shards] == [
        ("done", {"ok": 2}),
        ("done", {"ok": 1}),
    ]
    plans = [[facts["plan"] for facts in group.plan_facts] for group in results.find_finished(store, "e")]
    assert sorted(plans) == [["p1", "p2"], ["p1", "p2"], ["p2"]]
    of_one_group = {"plan": "p3", "plan_shards": "1x1", "command_line": "x" * content.MAX_TAG}
    shard_states.take_over(store, {old[0]: 1}, {**of_one_group, "command_line": "run.py only=[a]"})
    assert [shard.num_found for shard in overview.read_overview(root, "e").shards] == [2, 1]
    shard_states.take_over(store, {newest: 1}, of_one_group)  # a tag has no room for it
    progress = overview.read_overview(root, "e")
    assert progress.is_done and (progress.plan, progress.command) == ("p3", of_one_group["command_line"])
    assert store.client.get_run(newest).data.tags["mlflow.collocation.taken_over_by"].endswith(content.CUT)


def test_of_the_plans_that_have_a_result_the_last_one_counts(look_at_runs) -> None:
    """As when a study stopped after one of two shards, and goes on for a narrower precision goal."""
    shorter, longer_plan = ({"plan": plan, "plan_shards": sizes} for plan, sizes in (("p1", "1x1"), ("p2", "1x2")))
    stopped = make_run(1, "a", plan="p2", plan_shards="1x2", later_plans=[shorter])
    assert look_at_runs(stopped).is_done
    resumed = make_run(1, "a", plan="p2", plan_shards="1x2", later_plans=[shorter, longer_plan])
    assert [shard.state for shard in look_at_runs(resumed).shards] == ["done", "not begun"]


def test_plans_of_one_study_for_several_gpu_models_are_one_overview(look_at_runs) -> None:
    old = make_run(1, "z", plan="p0", plan_any_gpu="another", device="L40S", plan_shards="9x9")
    h100 = {"plan": "p1", "plan_any_gpu": "s", "plan_models": 2, "device": "H100"}
    a100 = h100 | {"plan": "p2", "device": "A100"}
    begun = [
        old,
        make_run(1, "a", **h100),
        make_run(1, "b", **h100),
        make_run(2, "a", **h100),
        make_run(2, "b", **h100),
        make_run(3, "a", **h100),
    ]
    progress = look_at_runs(*begun)
    assert [(shard.model, shard.number, shard.state) for shard in progress.shards] == [
        *(("", number, "not begun") for number in (1, 2, 3)),
        *(("H100", number, "done") for number in (1, 2, 3)),
    ]
    assert not progress.is_done and progress.seconds_left is None
    progress = look_at_runs(*begun, make_run(1, "c", **a100), make_run(1, "d", None, **a100))
    assert [(shard.model, shard.number, shard.state) for shard in progress.shards][:4] == [
        ("A100", 1, "running"),
        ("A100", 2, "not begun"),
        ("A100", 3, "not begun"),
        ("H100", 1, "done"),
    ]
    assert progress.seconds_left == 4 * 10
    text = progress.as_text(NOW_S)
    assert "shards: 3 done, 1 running, 2 not begun; 6 of 10 groups have a result, about 40 s left" in text
    assert text.startswith("GPU model  shard")


STUDY_OF_TASKS = {"plan_shards": "2x9", "user": host_info.user_name()}


def make_task(shard: int, digest: str, result: str | None = "ok", **facts: Any) -> GroupRecord:
    """A group that a task of job array 7 ran."""
    return make_run(shard, digest, result, **{"slurm_task": f"c1/7_{shard}", **STUDY_OF_TASKS, **facts})


def test_shards_are_running_waiting_or_lost_as_their_slurm_tasks_are(look_at_runs) -> None:
    queries = []

    def queue(cluster: str, arrays: Collection[str]) -> Mapping[str, str]:
        queries.append((cluster, set(arrays)))
        return {"7_1": "RUNNING", "7_3": "PENDING Resources", "7_5": "PENDING Resources", "7_6": "RUNNING"}

    began = [
        *(make_task(1, "a"), make_task(1, "b", None)),
        *(make_task(2, "a"), make_task(2, "b", None)),
        make_task(3, "a", None),
        *(make_task(4, digest) for digest in "ab"),
        *(make_task(7, "a", None), make_run(7, "a", None, gpu_uuid="GPU-9", **STUDY_OF_TASKS)),
        make_run(8, "a", None, slurm_task="c0/3_8", **STUDY_OF_TASKS),
    ]
    progress = look_at_runs(
        *began, make_run(1, "z", plan="p0", slurm_task="c1/5_1", plan_shards="1x1"), make_task(1, "a"), queue=queue
    )
    assert queries == [("c1", {"7"})]  # neither of an older plan nor of another cluster
    assert [(shard.state, shard.group or shard.reason) for shard in progress.shards] == [
        ("running", "b"),
        ("lost", "b"),
        ("waiting", "Resources"),
        ("done", ""),
        ("waiting", "Resources"),
        ("running", ""),
        ("running", "a"),
        ("running", "a"),
        ("not begun", ""),
    ]
    assert "shards: 1 done, 4 running, 2 waiting, 1 lost, 1 not begun; " in progress.as_text(NOW_S)
    assert look_at_runs(make_run(1, "a", None), queue=queue).shards[0].state == "running" and len(queries) == 1


def test_a_shard_with_skipped_groups_waits_if_its_task_does(look_at_runs) -> None:
    skipped = [make_task(1, "a"), make_task(1, "b", "skipped")]
    progress = look_at_runs(
        *skipped, make_task(2, "a", "skipped"), make_task(2, "b"), queue=lambda *_: {"7_1": "PENDING Priority"}
    )
    assert [(shard.state, shard.tasks) for shard in progress.shards[:2]] == [("waiting", ("7_1",)), ("done", ())]


def make_submission(*arrays: str, command_line: str = "run.py hydra/launcher=slurm", time_ms: int = 0) -> Submission:
    return Submission(command_line=command_line, num_shards=3, cluster="c1", arrays=arrays, time_ms=time_ms)


def test_tasks_of_arrays_that_only_wait_are_seen(look_at_server) -> None:
    def queue(_: str, arrays: Collection[str]) -> Mapping[str, str]:
        return {f"{array}_{number}": "PENDING Priority" for array in arrays for number in (2, 3) if array == "9"}

    none_begun = look_at_server(make_submission("9"), queue=queue)
    assert [(shard.state, shard.reason, shard.num_groups) for shard in none_begun.shards] == [
        ("not begun", "", 0),
        ("waiting", "Priority", 0),
        ("waiting", "Priority", 0),
    ]
    assert none_begun.as_text(NOW_S).endswith("started by: run.py hydra/launcher=slurm")
    # Submitted again, after the first array has ended.
    began = [make_task(1, "a"), make_task(1, "b"), make_task(2, "a", "failed")]
    began = [replace(run, facts={**run.facts, "command_line": "run.py hydra/launcher=slurm"}) for run in began]
    assert "\nto run the rest: " in look_at_server(make_submission("7"), *began, queue=queue).as_text(NOW_S)
    again = look_at_server(
        make_submission("7", "9", command_line="run.py hydra/launcher=slurm resume=true"), *began, queue=queue
    )
    assert [shard.state for shard in again.shards[:3]] == ["done", "waiting", "waiting"]
    launched = "run.py hydra/launcher=slurm hydra.launcher.partition=other resume=true"
    again = look_at_server(make_submission("7", "9", command_line=launched), *began, queue=queue)
    assert [shard.tasks for shard in again.shards[:3]] == [(), ("9_2",), ("9_3",)]
    other = look_at_server(
        make_submission("7", "9", command_line="run.py degree=2 hydra/launcher=slurm"), *began, queue=queue
    )
    assert [shard.state for shard in other.shards[:3]] == ["done", "incomplete", "not begun"]
    newer = make_submission("9", command_line="run.py degree=2 hydra/launcher=slurm", time_ms=2_000_000)
    assert [shard.state for shard in look_at_server(newer, *began, queue=queue).shards] == [
        "not begun",
        *["waiting"] * 2,
    ]


def test_a_study_whose_program_has_changed_is_not_done_while_its_new_tasks_wait(look_at_server) -> None:
    command = "run.py hydra/launcher=slurm"
    facts = {"plan_any_gpu": "old", "plan_shards": "1x2", "command_line": command}
    began = [make_task(1, "a", **facts), make_task(2, "b", **facts)]
    new = replace(make_submission("7", "9", time_ms=2_000_000), plan_any_gpu="new")

    def read_states(last: Submission, *tasks: str) -> tuple[str, list[str]]:
        progress = look_at_server(last, *began, queue=lambda *_: dict.fromkeys(tasks, "PENDING Priority"))
        return progress.plan_any_gpu, [shard.state for shard in progress.shards[:2]]

    assert read_states(new, "9_1", "9_2") == ("new", ["waiting", "waiting"])
    assert read_states(new) == read_states(replace(new, time_ms=0), "9_1") == ("old", ["done", "done"])


def test_arrays_of_one_study_are_noted_together_and_those_of_another_in_their_place(root) -> None:
    store = open_store(root)
    for new in (make_submission("7"), make_submission("9", command_line="run.py hydra/launcher=slurm resume=true")):
        slurm_arrays.note(store, "e", new)
    submission = slurm_arrays._read(store, "e")
    assert submission is not None and list(submission.arrays) == ["7", "9"]
    slurm_arrays.note(store, "e", make_submission("12", command_line="run.py degree=2 hydra/launcher=slurm"))
    submission = slurm_arrays._read(store, "e")
    assert submission is not None and list(submission.arrays) == ["12"]
    store.client.set_experiment_tag(store.open_experiment("e"), slurm_arrays.TAG, '{"of": "another version"}')
    assert slurm_arrays._read(store, "e") is slurm_arrays._read(store, "absent") is None


def test_a_task_that_ends_while_it_is_asked_for_is_not_lost(look_at_runs, monkeypatch) -> None:
    def queue(*_: object) -> Mapping[str, str]:
        monkeypatch.setattr(overview.results, "read_groups", lambda *_: [make_task(1, "a"), make_task(1, "b")])
        return {}

    assert look_at_runs(make_task(1, "a"), make_task(1, "b", None), queue=queue).shards[0].state == "done"


def test_what_slurm_may_hide_is_not_lost(look_at_runs, monkeypatch) -> None:
    groups = [make_task(1, "a", None, user="somebody"), make_task(2, "a", None)]
    assert [shard.state for shard in look_at_runs(*groups, queue=lambda *_: {}).shards[:2]] == ["lost", "lost"]
    monkeypatch.setattr(shard_states.os, "getuid", lambda: 1000)
    monkeypatch.setattr(shard_states.host_info, "user_name", lambda: STUDY_OF_TASKS["user"])
    assert [shard.state for shard in look_at_runs(*groups, queue=lambda *_: {}).shards[:2]] == ["running", "lost"]


def test_without_an_answer_of_slurm_the_store_alone_counts(look_at_runs) -> None:
    def queue(*_: object) -> Mapping[str, str]:
        raise CommandError(["scontrol"], 0, "this is not cluster c1")

    progress = look_at_runs(make_task(1, "a", None), queue=queue)
    assert progress.shards[0].state == "running"
    assert re.search(
        "^states are from the store only; Slurm's queue is unknown: .*not cluster c1$",
        progress.as_text(NOW_S),
        re.MULTILINE,
    )


def test_simulated_gpus_are_named(look_at_runs) -> None:
    assert "simulated" not in look_at_runs(make_run(1, "a", device="H100")).as_text(NOW_S)
    progress = look_at_runs(make_run(1, "a", device="H100"), make_run(1, "b", device="A100", is_simulated=True))
    assert "\nsimulated: A100\n" in progress.as_text(NOW_S)


def test_groups_in_the_spool_have_ended_and_are_not_whole_before_they_are_sent(
    look_at_runs, monkeypatch, tmp_path
) -> None:
    def record(name: str, result: Result, experiment: str = "e") -> GroupRecord:
        return make_record((), spool_id=name, experiment=experiment, result=result)

    ended = [record("s1", Result.INTERRUPTED), record("s2", Result.OK), record("s3", Result.OK, "other")]
    monkeypatch.setattr(overview.group_folder, "read_ended", lambda _: ended)
    waiting = [make_run(number, "a", None, spool_id=f"s{number}", plan_shards="1x3") for number in (1, 2, 3)]
    progress = look_at_runs(*waiting)
    assert [(shard.state, dict(shard.results)) for shard in progress.shards] == [
        ("incomplete", {"interrupted": 1}),
        ("done", {"ok": 1}),
        ("running", {}),
    ]
    assert progress.num_unsent == 2
    assert not look_at_runs(make_run(1, "a", None, spool_id="s2", plan_shards="1x1")).is_done


def test_a_study_alone_and_in_company_is_done_when_both_are(look_at_runs) -> None:
    command = "run.py -m repeats=1 hydra/launcher=beside"

    def make_measured_run(plan: str, beside: int, **facts: str) -> GroupRecord:
        study = {"plan": plan, "plan_any_gpu": plan, "plan_shards": "1x1", "command_line": command, "device": "H100"}
        group_run = make_run(1, plan, other_gpus=beside, **{**study, **facts})
        return replace(group_run, facts={**group_run.facts, "shard": "1"})

    progress = look_at_runs(make_measured_run("p1", 0))
    assert [(shard.model, shard.state) for shard in progress.shards] == [("", "not begun"), ("H100 alone", "done")]
    assert not progress.is_done and "to run the rest: " in progress.as_text(NOW_S)
    two = {"plan_shards": "1x2"}
    assert (
        look_at_runs(make_measured_run("p1", 0, **two), make_measured_run("p2", 1, **two)).seconds_left == 20
    )  # one after the other
    progress = look_at_runs(
        make_measured_run("p1", 0), make_measured_run("p2", 1, command_line=f"{command} resume=true")
    )
    assert [(shard.model, shard.state) for shard in progress.shards] == [
        ("H100 alone", "done"),
        ("H100 in company", "done"),
    ]
    assert progress.is_done
    with pytest.raises(TrackingError, match="contains only groups that load the other GPUs"):
        look_at_runs(make_run(1, "a", other_gpus=1, command_line=command))


def test_rows_of_the_same_plan_that_say_nothing_of_other_models_count(look_at_runs) -> None:
    progress = look_at_runs(make_run(1, "a"), make_run(1, "b", plan_any_gpu="s", plan_models=1))
    assert [shard.state for shard in progress.shards] == ["done", "not begun", "not begun"]
    assert progress.as_text(NOW_S).startswith("shard")


@pytest.mark.parametrize(
    ("recorded", "last_line"),
    [
        (
            "run.py -m a=1,2 hydra/launcher=gpus",
            "to run the rest: PYTHON run.py -m a=1,2 hydra/launcher=gpus resume=true",
        ),
        (
            "run.py shard=1 resume=true -- train.py shard=1",
            "to run the rest, with each unfinished K: PYTHON run.py shard=K resume=true -- train.py shard=1",
        ),
        (
            "run.py ++shard=2 hydra/launcher=slurm x.HF_TOKEN='<hidden>'",
            "to run the rest, with each unfinished K, unless one of its job arrays is pending, with your own "
            "values for <hidden>: PYTHON run.py hydra/launcher=slurm 'x.HF_TOKEN=<hidden>' shard=K resume=true",
        ),
        (f"run.py only='[a{content.CUT}", f"started by: run.py only='[a{content.CUT}"),
    ],
)
def test_it_says_how_to_run_what_is_left_once_nothing_runs(look_at_runs, recorded: str, last_line: str) -> None:
    text = look_at_runs(make_run(1, "a", command_line=recorded)).as_text(NOW_S)
    assert text.splitlines()[-1] == last_line.replace("PYTHON", "python")
    still_runs = look_at_runs(
        make_run(1, "a", command_line=recorded), make_run(2, "a", None, command_line=recorded)
    ).as_text(NOW_S)
    assert still_runs.splitlines()[-1] == f"started by: {recorded}"


def test_a_study_of_one_shard_is_called_the_study(look_at_runs) -> None:
    sizes = {"plan_shards": "2x1"}
    groups = [make_run(1, "a"), make_run(1, "b")]
    progress = look_at_runs(*(replace(group, facts={**group.facts, **sizes}) for group in groups))
    head, line, summary, *_ = progress.as_text(NOW_S).splitlines()
    assert head.split()[0] == "state" and line.split()[:2] == ["done", "2/2"]
    assert summary == "study: done; 2 of 2 groups have a result"


def test_a_task_that_ended_without_a_result_says_why_and_one_that_waits_for_whom(look_at_server, tmp_path) -> None:
    held = "error: CPU is in use by another study of bob (pid {})"
    for name, line in {
        "7_2": held.format(1),
        "9_2": held.format(22),
        "9_3": held.format(3),
        "9_4": "waiting for CPU, which is held by bob; at most 40 s, Ctrl-C ends it",
        "9_5": "[1/1] a",
    }.items():
        (tmp_path / f"{name}.log").write_text(f"{line}\n")
    began = [make_task(1, "a"), make_task(1, "b", "failed"), make_task(5, "a", None)]
    began = [replace(run, facts={**run.facts, "command_line": "run.py hydra/launcher=slurm"}) for run in began]
    noted = replace(make_submission("7", "9"), folder=str(tmp_path))
    ends = {"9_1": "OUT_OF_MEMORY", "9_2": "FAILED NonZeroExitCode", "9_5": "NODE_FAIL", "9_6": "CANCELLED"}
    ends |= {"9_7": "FAILED NonZeroExitCode"}
    progress = look_at_server(noted, *began, queue=lambda *_: {"9_4": "RUNNING"}, ends=lambda _: ends)
    assert [(shard.state, shard.message) for shard in progress.shards] == [
        ("incomplete", "OUT_OF_MEMORY"),
        ("ended", held.format(22)),
        ("ended", held.format(3)),
        ("running", "waits for CPU, which is held by bob"),
        ("lost", "NODE_FAIL: no error in its output, which ends with: [1/1] a"),
        ("not begun", ""),
        ("ended", "FAILED NonZeroExitCode; its output is empty"),
        *[("not begun", "")] * 2,
    ]
    text = progress.as_text(NOW_S)
    assert f"\nshards 2, 3: {held.format(22)} (output: {tmp_path}/9_2.log)\n" in text
    assert f"\nshard 4: waits for CPU, which is held by bob (output: {tmp_path}/9_4.log)\n" in text

    def silent(_: Collection[str]) -> Mapping[str, str]:
        raise CommandError(["squeue"], 1, "timed out")

    progress = look_at_server(noted, *began, queue=lambda *_: {}, ends=silent)
    assert [shard.message for shard in progress.shards[:2]] == ["", held.format(22)]


def test_many_messages_are_counted(look_at_server, tmp_path) -> None:
    for number in range(1, 14):
        (tmp_path / f"9_{number}.log").write_text(f"error: of {'x' * number}\n")
    noted = replace(make_submission("9"), folder=str(tmp_path), num_shards=13)
    text = look_at_server(noted, queue=lambda *_: {}).as_text(NOW_S)
    assert text.count("error: of ") == 10 and "\n3 more shards with other messages; see --json\n" in text


def test_a_store_that_says_nothing_of_shards_is_an_error(look_at_runs) -> None:
    with pytest.raises(TrackingError, match="has no planned group"):
        look_at_runs()


def test_running_groups_are_read_and_deleted_ones_are_not(root) -> None:
    facts = {"plan": "p"}
    groups = [make_record((), number, experiment="e", facts=facts) for number in (1, 2, 3)]
    store_groups(root, groups[0], as_running(replace(groups[1], start_ns=START + SECOND)), groups[2])
    store = open_store(root)
    store.client.delete_run(results.find_finished(store, "e")[1].run_id)
    first, second = results.read_groups(root, "e")
    assert (first.status, first.end_ms is None, first.facts["plan"], first.result) == (
        "FINISHED",
        False,
        "p",
        Result.OK,
    )
    assert (second.name, second.status, second.end_ms, second.result) == ("group 2", "RUNNING", None, None)
    with pytest.raises(TrackingError, match="no experiment 'f'"):
        results.read_groups(root, "f")


@pytest.fixture
def store(root):
    """A store with three groups of two units, each with a job; the last one has ended."""
    groups = []
    for number, (unit, name) in enumerate([(1, "first"), (2, "second"), (1, "ended")]):
        facts = {"plan": "p", "slurm_task": f"c1/9_{unit}", "user": host_info.user_name()}
        job = child(0, name=f"job of {name}", metrics={})
        group = record((job,), experiment="e", name=name, shard=unit, program_digest=f"of {name}", facts=facts)
        group = dataclasses.replace(group, start_ns=group.start_ns + number * SECOND)
        running = dataclasses.replace(job, result=None, end_ns=None)
        groups.append(group if name == "ended" else dataclasses.replace(as_running(group), jobs=(running,)))
    store_groups(root, *groups)
    return open_store(root)


def read_tags(store) -> dict[str, tuple[str, str | None, str | None]]:
    """Status, result and description of every run, by name."""
    (experiment,) = [experiment for experiment in store.client.search_experiments() if experiment.name == "e"]
    runs = store.client.search_runs([experiment.experiment_id])
    tags = {run.info.run_name: (run.info.status, run.data.tags) for run in runs}
    return {
        name: (status, of_run.get(Tag.RESULT), of_run.get(Tag.DESCRIPTION)) for name, (status, of_run) in tags.items()
    }


def read_endings(store):
    return {name: ending[:2] for name, ending in read_tags(store).items()}


def test_the_next_attempt_closes_what_earlier_ones_of_its_unit_left(store):
    assert shard_states.close_shard(store, "e", "p", 1, ["of first"]) == ["first"]
    assert read_endings(store) == {
        **dict.fromkeys(["first", "job of first"], ("KILLED", "interrupted")),
        **dict.fromkeys(["second", "job of second"], ("RUNNING", None)),
        **dict.fromkeys(["ended", "job of ended"], ("FINISHED", "ok")),
    }
    assert shard_states.close_shard(store, "e", "p", 1, ["of first"]) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("queue", "closed"),
    [({}, ["second"]), ({"9_1": "RUNNING"}, ["second"]), ({"9_2": "RUNNING"}, []), (None, [])],
)
def test_a_group_of_another_plan_is_closed_only_if_its_task_has_left_the_queue(store, monkeypatch, queue, closed):
    def read_states(cluster, arrays):
        assert (cluster, arrays) == ("c1", {"9"})
        if queue is None:
            raise CommandError(["squeue"], 1, "Socket timed out")
        return queue

    monkeypatch.setattr(shard_states.squeue, "read_cluster_states", read_states)
    assert shard_states.close_shard(store, "e", "of more repeats", 2, ["of second", "of another group"]) == closed
    killed = {name for name, (status, _) in read_endings(store).items() if status == "KILLED"}
    assert killed == {run for name in closed for run in (f"job of {name}", name)}


def test_a_group_that_lived_on_after_all_does_not_say_that_it_was_lost(root, store):
    ended = record((), experiment="e", spool_id="alive", metrics={})
    folder = make_spool(root, as_running(ended))
    begun = upload.begin(lambda _: store, folder)
    name = ended.name
    assert name in shard_states.close_silent(store, "e", 3600)
    assert "host was lost" in read_tags(store)[name][2]
    group_folder.write(folder, ended)
    upload.send(lambda _: store, folder, series_points=10, begun_runs=begun)
    assert (read_endings(store)[name][0], read_tags(store)[name][2]) == ("FINISHED", "ok")


def test_what_is_silent_is_closed_when_asked(store):
    assert shard_states.close_silent(store, "e", silent_s=1e12) == []
    assert shard_states.close_silent(store, "e", silent_s=3600) == ["first", "second"]
    assert shard_states.close_silent(store, "no such experiment", silent_s=0) == []


def test_a_group_of_another_host_is_not_closed_by_its_lock(tmp_path, monkeypatch):
    folder = make_spool(tmp_path, as_running(record((), host="another", boot_id="", machine_id="")))
    assert group_folder.survey(folder.parents[1]).elsewhere == {folder: "another"}
    assert not group_record.read(folder).is_closed
    monkeypatch.setattr(owner.platform, "node", lambda: "another")
    assert group_folder.survey(folder.parents[1]).ready == (folder,)
    assert group_record.read(folder).is_closed


@pytest.mark.sampled(1)
@pytest.mark.parametrize("reply", ["BAD_REQUEST: (sqlite3.IntegrityError) UNIQUE constraint failed: tags.key", "no"])
def test_a_tag_that_another_attempt_sets_at_the_same_moment_is_set_again(store, monkeypatch, reply):
    from mlflow.exceptions import MlflowException

    set_tag, replies = store.client.set_tag, [reply]

    def refuse_once(run_id, key, value):
        if replies:
            raise MlflowException(replies.pop())
        set_tag(run_id, key, value)

    monkeypatch.setattr(store.client, "set_tag", refuse_once)
    if reply == "no":
        with pytest.raises(MlflowException, match="no"):
            shard_states.close_shard(store, "e", "p", 1, [])
    else:
        assert shard_states.close_shard(store, "e", "p", 1, []) == ["first"]
        assert read_endings(store)["first"] == ("KILLED", "interrupted")
