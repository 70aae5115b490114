"""Names of groups and of sharing modes, and how modes are drawn."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from pipeline.base.domain import group_names
from pipeline.base.domain.group_names import GroupFacts, JobFacts
from pipeline.base.domain.machine_state import MachineState, merge_same
from pipeline.base.domain.marks import merge, merge_notes
from pipeline.base.domain.sharing_modes import MODES, SPARE_COLOURS, mode_of, modes_of
from pipeline.base.domain.workload import fill_placeholders, refuse_unknown_placeholders
from pipeline.base.system.errors import ConfigError
from pipeline.report.evaluate import contrasts
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.figures import catalogue
from pipeline.report.figures.drawing import THEME
from tests.conftest import GPU
from tests.support.report_rows import copies, study

SETTINGS = {"device": "H100", "window": "work, until the jobs end", "seed": "0"}


def job(workload: str = "train", size: str | None = None, **params: str) -> JobFacts:
    options = {key.replace("_", "-").replace("flags-", "flags."): value for key, value in params.items()}
    return JobFacts(size=size, workload=workload, params=options, digest=repr((workload, sorted(options.items()))))


def group(
    *jobs: JobFacts, scenario: str = "naive", settings: dict[str, str] = SETTINGS, **options: object
) -> GroupFacts:
    return GroupFacts(scenario=scenario, jobs=jobs, options=options, settings=settings)


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        pytest.param([group(job("tiny", model="x"))], ["naive-1x-tiny"], id="alone"),
        pytest.param(
            [group(job("tiny", batch="16")), group(*[job("tiny", batch="32")] * 2, scenario="serial")],
            ["naive-1x-tiny-batch=16", "serial-2x-tiny-batch=32"],
            id="options of the workload in which groups differ",
        ),
        pytest.param(
            [group(job("a", model="x")), group(job("b", model="y"))],
            ["naive-1x-a", "naive-1x-b"],
            id="workloads of other names need no more",
        ),
        pytest.param(
            [group(job(flags_lr="0.1", flags_amp="true", script="train.py"))],
            ["naive-1x-train-lr=0.1-amp"],
            id="flags always",
        ),
        pytest.param(
            [group(job(args="--lr 1 --bs 2")), group(job(args="--lr 1 --bs 3 data.txt")), group(job(args="-v --lr=1"))],
            ["naive-1x-train-bs=2", "naive-1x-train-bs=3_data.txt", "naive-1x-train-v"],
            id="arguments where they differ",
        ),
        pytest.param(
            [group(job(size="S", batch="1"), job(size="M")), group(job(size="S", batch="2"), job(size="M"))],
            ["naive-S[batch=1]+M", "naive-S[batch=2]+M"],
            id="a mix",
        ),
        pytest.param(
            [group(job(args="--lr 1"), job(args="--lr 2"), job("eval"))],
            ["naive-train[lr=1]+train[lr=2]+eval"],
            id="one script twice in a mix",
        ),
        pytest.param(
            [group(job("tiny", size="S")), group(job("other", size="S"))],
            ["naive-1x-S-workload=tiny", "naive-1x-S-workload=other"],
            id="one size for two workloads",
        ),
        pytest.param(
            [group(job(), scenario="mps", pinned_mem_limit="1G"), group(job(), scenario="mps", exclusive_process=True)],
            ["mps-1x-train-pinned_mem_limit=1G", "mps-1x-train-exclusive_process=true"],
            id="options of the mode",
        ),
        pytest.param(
            [group(job(), scenario="mig_mps", profile="auto", num_instances=n) for n in (2, 3)],
            ["mig_mps-1x-train-num_instances=2", "mig_mps-1x-train-num_instances=3"],
            id="an option that the label says mostly",
        ),
        pytest.param(
            [group(job(), settings=SETTINGS | {"window": f"steady, {n} s after 2 s"}) for n in (5, 20)]
            + [group(job("other"))],
            [*(f"naive-1x-train-window=steady_{n}_s_after_2_s" for n in (5, 20)), "naive-1x-other"],
            id="settings in which the same jobs differ",
        ),
        pytest.param(
            [group(job(), profiler=("nsys", ("options", ("-t", "cuda")))), group(job())],
            ["naive-1x-train-nsys", "naive-1x-train"],
            id="a profiler",
        ),
    ],
)  # fmt: skip
def test_a_name_says_what_tells_a_group_from_the_others(groups, names):
    assert group_names.name_groups(groups) == names


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        pytest.param(
            [group(job(flags_lr="3"), scenario=mode) for mode in ("serial", "naive")],
            ["serial-1x-train", "naive-1x-train"],
            id="a flag of every program",
        ),
        pytest.param(
            [group(job(flags_lr="3")), group(job(flags_lr="4"))],
            ["naive-1x-train-lr=3", "naive-1x-train-lr=4"],
            id="a flag that differs",
        ),
    ],
)
def test_a_short_name_lacks_what_all_groups_share(groups, names):
    assert group_names.shorten_names(groups) == names


def test_a_short_name_has_the_window_if_it_alone_tells_two_groups_apart():
    graph, eager = job(mode="graph"), job(mode="eager")
    windows = [SETTINGS | {"window": window} for window in ("steady", "interleaved")]
    confounded = [group(graph, settings=windows[0]), group(eager, settings=windows[1])]
    assert group_names.shorten_names(confounded) == ["naive-1x-train-mode=graph", "naive-1x-train-mode=eager"]
    assert "window=steady" in group_names.name_groups(confounded)[0]
    assert group_names.shorten_names([*confounded, group(graph, settings=windows[1])]) == [
        "naive-1x-train-mode=graph-window=steady",
        "naive-1x-train-mode=eager-window=interleaved",
        "naive-1x-train-mode=graph-window=interleaved",
    ]


def test_groups_that_differ_in_nothing_that_is_said_have_names_of_their_own():
    one = job(environment_digest="a" * 64)
    other = dataclasses.replace(one, params={"environment-digest": "b" * 64}, digest="another")
    changed = dataclasses.replace(one, digest="third")
    first, second, again = group_names.name_groups([group(one), group(changed), group(one)])
    assert first != second and first == again and first.startswith("naive-1x-train-")
    assert (
        group_names.name_groups([group(one), group(other)])[0] != group_names.name_groups([group(one), group(other)])[1]
    )


def test_of_many_options_the_usual_values_go_without_saying():
    usual = {"source": "synthetic_device", "precision": "tf32", "recipe": "published", "tuning": "each_by_itself"}
    variants = [usual, *({key: "other"} for key in usual), {"recipe": "other", "tuning": "other"}]
    assert group_names.name_groups([group(job(**usual | variant)) for variant in variants]) == [
        "naive-1x-train",
        *(f"naive-1x-train-{key}=other" for key in usual),
        "naive-1x-train-recipe=other-tuning=other",
    ]


def test_a_long_name_is_cut_and_still_its_own():
    names = group_names.name_groups([group(job(args=f"--path {'x' * 300}{n}")) for n in (1, 2)])
    assert len(set(names)) == 2 and max(map(len, names)) < 200


@pytest.mark.parametrize(
    ("texts", "merged"),
    [
        (["a", "b", "a"], {"a": 2, "b": 1}),
        (["made 13 steps", "made 9 steps", "made 11.5 steps"], {"made 9 to 13 steps": 3}),
        (["2 jobs, such as 0-a,", "2 jobs, such as 1-a,"], {"2 jobs, such as 0-a or 1-a,": 2}),
        (["job 0-a", "job 1-a", "job 2-a"], {"job 0-a or others": 3}),
        (["about 5 s are needed", "about 50.5 s are needed"], {"about 5 to 50.5 s are needed": 2}),
        (["below 4 (3 to 5)", "below 6 (2.5 to 7)"], {"below 4 to 6 (2.5 to 7)": 2}),
        (["resnet18 bs8", "resnet50 bs8"], {"resnet18 bs8": 1, "resnet50 bs8": 1}),
        (["v1.2.3 failed", "v1.2.4 failed"], {"v1.2.3 failed": 1, "v1.2.4 failed": 1}),
    ],
)
def test_texts_that_differ_only_in_numbers_are_merged(texts: list[str], merged: dict[str, int]) -> None:
    assert merge(texts) == merged


def test_each_reason_of_several_rows_is_one_note() -> None:
    notes = ["few 13 steps; raise it", "", "few 15 steps; raise it; late 3 s; raise it", "few 11 steps; raise it"]
    assert merge_notes(notes, "block") == ["few 11 to 15 steps (3 blocks)", "raise it", "late 3 s", "raise it"]
    assert merge_notes(["few 13 steps"] * 2, "block") == ["few 13 steps"]


VALUES = {"output_dir": "/out put", "job": 1, "degree": 3}


@pytest.mark.parametrize(
    ("argument", "filled"),
    [
        ("--out={output_dir}/x", "--out=/out put/x"),
        ("{job}of{degree}", "1of3"),
        ("{{job}}-{{epoch}}", "{job}-{epoch}"),
        ('{"a": 1}', '{"a": 1}'),
        ("{epoch:02d} {} ${HOME} {0}", "{epoch:02d} {} ${HOME} {0}"),
    ],
)
def test_placeholders_are_filled_in_and_other_braces_left(argument, filled):
    refuse_unknown_placeholders("train", [argument])
    assert fill_placeholders(argument, VALUES) == filled


def test_a_placeholder_that_does_not_exist_is_refused_by_name():
    with pytest.raises(
        ConfigError, match=r"--out=\{outdir\}: \{outdir\} is not a placeholder.*\{output_dir\}.*\{\{outdir\}\}"
    ):
        refuse_unknown_placeholders("train", ["--fine={job}", "--out={outdir}"])


def test_modes_have_colours_and_markers_of_their_own() -> None:
    modes = modes_of(["turns", "mps", "another"])
    assert list(modes)[: len(MODES)] == list(MODES)
    assert (
        len({mode.colour for mode in modes.values()}) == len({mode.label for mode in modes.values()}) == len(MODES) + 2
    )
    assert {mode.colour for mode in modes.values()} <= THEME.keys()
    assert (
        len({mode.marker for mode in modes.values() if mode.name != "serial"}) == len(MODES) + 1
    )  # that one has no line


def test_options_tell_groups_apart_unless_they_say_where_a_program_lies_or_what_the_label_says() -> None:
    options = [
        ("profile", "2g"),
        ("size_profile", ()),
        ("program", "/bin/x"),
        ("mps_program", "/bin/y"),
        ("slice_ms", 2),
    ]
    assert [key for key, _ in mode_of("mig").naming(options)] == ["profile", "slice_ms"]
    assert [key for key, _ in mode_of("turns").naming(options)] == ["profile", "size_profile", "slice_ms"]


def test_a_mode_that_is_in_no_table_is_planned_by_its_name_and_options(make_plan) -> None:
    mode = ["scenario=mps", "scenario.name=turns", "scenario.priority=1"]
    assert [group.name for group in make_plan(mode, device=GPU).groups] == ["turns-2x-tiny-priority=1"]


@pytest.mark.slow
def test_a_mode_that_is_in_no_table_is_judged_and_drawn_like_the_others() -> None:
    def turns(rate: float, block: int):
        added = copies("naive", 2, rate, block, options={"slice_ms": "2"})
        mode = mode_of("turns")
        return dataclasses.replace(added, scenario=mode.name, sharing=mode, key="turns")

    rows = [copies("serial", 1, 1000.0 + block, block) for block in range(1, 6)]
    rows += [copies("mps", 2, 600.0 + block, block) for block in range(1, 6)]
    rows += [turns(700.0 + block, block) for block in range(1, 6)]
    judged = study(*rows)
    cells = make_cells(judged)
    assert [cell.mode for cell in cells] == ["serial", "serial", "MPS", "turns slice_ms=2"]
    sentences = [verdict.sentence for verdict in contrasts.compare_modes(cells)]
    assert [sentence.split(" (")[0] for sentence in sentences if "turns" in sentence] == [
        "2 x resnet26_cifar10 bs128, turns slice_ms=2: 1.40 x serial",
        "2 x resnet26_cifar10 bs128, turns slice_ms=2: 1.17 x MPS",
    ]
    drawn = {figure.name: figure.svg for figure in catalogue.draw_figures(judged, cells, None)}
    spare, _ = SPARE_COLOURS[0]
    assert all(spare in svg for svg in drawn.values()) and len(drawn) == 2
    assert ">turns<" in drawn["gain"] and ">slice_ms=2<" in drawn["workload-resnet26-cifar10-bs128"]


def state(**facts: str) -> MachineState:
    return MachineState.from_facts({"gpu_uuid": "GPU-1", "boot_id": "b", **facts})


def test_facts_that_decide_nothing_and_empty_ones_are_no_part_of_a_state():
    assert state(compute_mode="default", power_limit_w="") == state()
    assert dict(state(ecc_mode="enabled").facts) == {"gpu_uuid": "GPU-1", "boot_id": "b", "ecc_mode": "enabled"}


def test_states_are_merged_alike_in_whatever_order_they_are_met():
    little, cool, hot = state(), state(power_limit_w="500"), state(power_limit_w="700", ecc_mode="enabled")
    more = state(ecc_mode="enabled", driver_version="580")
    results = [merge_same(order) for order in itertools.permutations((little, cool, hot, more))]
    assert all(states == results[0] for states in results)
    merged = results[0]
    assert merged[cool] != merged[hot] and merged[little] in merged.values()
    assert merged[more] == merged[hot] and dict(merged[hot].facts)["driver_version"] == "580"


def test_a_change_is_told_with_its_unit():
    old, new = state(power_limit_w="700", driver_version="580"), state(power_limit_w="500", driver_version="590")
    assert new.changes(old) == "driver 590, was 580; power limit 500 W, was 700 W"
    assert new.difference(old) == "driver and power limit"
    assert MachineState.from_facts({"boot_id": "c"}).changes(old) == "the machine was restarted"
    assert state().changes(old) == ""
