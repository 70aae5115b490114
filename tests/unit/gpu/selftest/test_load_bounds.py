"""What the judgement of a self-test makes of tables of readings, believable ones and broken ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest

from pipeline.gpu.selftest import load_bounds
from pipeline.gpu.selftest.load_bounds import QUANTITIES, Finding, Load, Place, Row, plan_steps

GPU = Place(multiprocessors=132, counted=132, threads_each=2048)
# The instances of an H100 80GB in 3g + 2g + 1g.
LARGE = Place(gi_id=1, multiprocessors=60, counted=60, threads_each=2048, compute_slices=3)
MIDDLE = Place(gi_id=5, multiprocessors=32, counted=32, threads_each=2048, compute_slices=2)
SMALL = Place(gi_id=13, multiprocessors=16, counted=16, threads_each=2048, compute_slices=1)
INSTANCES = (LARGE, MIDDLE, SMALL)
Change = Callable[[Row, dict[str, float]], dict[str, float]]


def table(places: Sequence[Place], change: Change | None = None, source: str = "dcgm") -> list[Row]:
    """What a source that tells the truth reads, 3 % low where something runs; `change` makes something else of it."""
    rows = []
    for step in plan_steps(places):
        for place, load in step.loads:
            row = Row(step=step.name, place=place, load=load)
            right = {quantity: 0.97 * value for quantity, value in row.expected.items()}
            readings = {"gpm": right, source: right if change is None else change(row, dict(right))}
            rows.append(dataclasses.replace(row, readings=readings))
    return rows


def find_findings(places: Sequence[Place], change: Change) -> dict[tuple[str, str], Finding]:
    findings = load_bounds.find_implausible(table(places, change))
    assert {finding.source for finding in findings} == {"dcgm"}
    return {(finding.where, finding.quantity): finding for finding in findings}


def test_the_steps_go_from_nothing_to_all_that_fits() -> None:
    steps = plan_steps([GPU])
    loads = [step.loads[0][1] for step in steps]
    assert [(load.blocks, load.threads) for load in loads] == [
        *((0, 0), (1, 32), (33, 32), (66, 32), (132, 32), (132, 512), (528, 512)),
    ]
    expected = [load.expected(GPU) for load in loads]
    assert [ratios["smact_ratio"] for ratios in expected] == [0, 1 / 132, 0.25, 0.5, 1, 1, 1]
    assert [ratios["gract_ratio"] for ratios in expected] == [0, *[1] * 6]
    assert [ratios["smocc_ratio"] for ratios in expected][-3:] == [1 / 64, 1 / 4, 1]


def test_each_instance_is_full_beside_idle_ones_at_last() -> None:
    assert [step.name for step in plan_steps(INSTANCES)][-3:] == ["only GI 1", "only GI 5", "only GI 13"]
    *_, (_, large), (_, middle), (_, small) = (pair for pair in plan_steps(INSTANCES)[-2].loads)
    assert (large.blocks, middle.blocks, small.blocks) == (0, 128, 0)


@pytest.mark.parametrize("threads_each", [1024, 1536, 2048])
def test_a_full_multiprocessor_is_full_whatever_it_holds(threads_each: int) -> None:
    place = Place(multiprocessors=10, counted=10, threads_each=threads_each)
    assert plan_steps([place])[-1].loads[0][1].expected(place)["smocc_ratio"] == 1


@pytest.mark.parametrize("places", [(GPU,), INSTANCES])
def test_what_can_be_is_believed(places: Sequence[Place]) -> None:
    assert load_bounds.find_implausible(table(places)) == ()


def test_a_low_smact_beside_a_full_gract_is_no_contradiction() -> None:
    """One block of one thread, and 128 such blocks launched again and again, as an A100 is known to show them."""
    rows = [
        Row(step="one", readings={"dcgm": {"gract_ratio": 0.909, "smact_ratio": 0.002, "utilization_ratio": 0.91}}),
        Row(step="many", readings={"dcgm": {"gract_ratio": 0.985, "smact_ratio": 0.226, "smocc_ratio": 0.004}}),
    ]
    assert load_bounds.find_implausible(rows) == ()


def test_smact_above_gract_cannot_be() -> None:
    def swapped(_: Row, right: dict[str, float]) -> dict[str, float]:
        return right | {"gract_ratio": right["smact_ratio"], "smact_ratio": right["gract_ratio"]}

    wrong = find_findings([GPU], swapped)
    assert wrong.keys() == {("GPU", "gract_ratio"), ("GPU", "smact_ratio")}
    smact = wrong["GPU", "smact_ratio"]
    assert smact.what == "SMACT is 0.970, above GRACT, which is 0.007"
    assert smact.steps == ("one block", "a quarter", "a half")
    assert str(smact).endswith("(step `one block` and 2 other steps)")


@pytest.mark.parametrize("factor", [100.0, -1.0])
def test_a_share_outside_0_to_1_cannot_be(factor: float) -> None:
    wrong = find_findings([GPU], lambda _, right: right | {"gract_ratio": right["gract_ratio"] * factor})
    assert "outside 0 to 1" in wrong["GPU", "gract_ratio"].what


def test_a_smact_that_is_not_that_of_the_busy_multiprocessors_cannot_be() -> None:
    """Of half the GPU: as if each block had half a multiprocessor."""
    wrong = find_findings([GPU], lambda _, right: right | {"smact_ratio": right["smact_ratio"] / 2, "smocc_ratio": 0.0})
    smact = wrong["GPU", "smact_ratio"]
    assert "SMACT is 0.485, expected 1.000: 132 blocks of 32 threads ran on 132 SMs" in str(smact)
    assert "one block" not in smact.steps, "one of 132 is as near to 0 as half of that"


def test_what_runs_where_nothing_does_cannot_be() -> None:
    """As if the readings of an instance were those of its neighbour."""

    def read_small_instance(row: Row, right: dict[str, float]) -> dict[str, float]:
        return dict.fromkeys(right, 0.97) if (row.step, row.place) == ("only GI 5", SMALL) else right

    wrong = find_findings(INSTANCES, read_small_instance)
    assert {finding.steps for finding in wrong.values()} == {("only GI 5",)}
    assert wrong["GI 13", "gract_ratio"].what == "GRACT is 0.970, although nothing ran"


def test_an_instance_capped_at_its_neighbours_share_is_said_to_be() -> None:
    """NVIDIA/DCGM#248: in a mixed layout, no instance shows more than the share of the smallest one."""

    def capped(row: Row, right: dict[str, float]) -> dict[str, float]:
        assert row.place is not None and row.place.compute_slices is not None
        limit = 1 / row.place.compute_slices
        return {name: min(value, limit) for name, value in right.items()}

    wrong = find_findings(INSTANCES, capped)
    assert {where for where, _ in wrong} == {"GI 1", "GI 5"}
    assert "capped at the share of GI 13 with 16 SMs" in wrong["GI 1", "gract_ratio"].what
    assert "capped at the share of GI 13 with 16 SMs" in wrong["GI 5", "smact_ratio"].what


def test_a_low_reading_is_not_called_capped_where_no_neighbour_explains_it() -> None:
    def low(row: Row, right: dict[str, float]) -> dict[str, float]:
        return {name: value * 0.45 if row.place is LARGE else value for name, value in right.items()}

    assert "capped" not in find_findings(INSTANCES, low)["GI 1", "gract_ratio"].what


@pytest.mark.parametrize("value", [0.0, 0.4, 1.0])
def test_a_counter_that_never_moves_is_one_finding(value: float) -> None:
    wrong = find_findings([GPU], lambda _, right: right | {"utilization_ratio": value})
    stuck = wrong.pop(("GPU", "utilization_ratio"))
    assert (stuck.what, stuck.steps, wrong) == (
        f"utilisation is constant: {value:.3f} in 7 steps, from idle to full",
        (),
        {},
    )


def test_an_instance_of_which_a_source_says_nothing_is_named() -> None:
    wrong = find_findings(INSTANCES, lambda row, right: {} if row.place is MIDDLE else right)
    assert {where for where, _ in wrong} == {"GI 5"}
    assert wrong["GI 5", "gract_ratio"].what == "no GRACT, which the source reports for GI 1, GI 13"


def test_a_source_that_does_not_offer_a_counter_is_not_accused() -> None:
    def without(_: Row, right: dict[str, float]) -> dict[str, float]:
        return {"utilization_ratio": right["utilization_ratio"]}

    assert load_bounds.find_implausible(table([GPU], without)) == ()


def test_of_a_part_of_an_instance_only_time_is_judged_unless_its_size_is_known() -> None:
    """1c.3g: its counters are those of the 3g, of whose multiprocessors it has a third."""
    unknown = Place(gi_id=1, multiprocessors=20, counted=None, threads_each=2048)
    assert Load(blocks=20, threads=32).expected(unknown).keys() == {"gract_ratio", "utilization_ratio"}
    known = dataclasses.replace(unknown, counted=60)
    assert Load(blocks=20, threads=32).expected(known)["smact_ratio"] == pytest.approx(1 / 3)


def test_the_whole_gpu_under_mig_is_judged_by_itself_only() -> None:
    rows = [Row(step="full", readings={"gpm": dict.fromkeys(QUANTITIES, 0.82)})]
    assert load_bounds.find_implausible(rows) == ()
    (wrong,) = load_bounds.find_implausible(
        [Row(step="full", readings={"gpm": {"gract_ratio": 0.3, "smact_ratio": 0.8}})]
    )
    assert (wrong.where, wrong.quantity) == ("GPU", "smact_ratio")
