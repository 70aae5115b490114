"""Verdicts, winners, tables and the paper's numbers, of studies whose truth is known."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import re

import pytest

from pipeline.base.domain.records import Result
from pipeline.report.evaluate import contrasts, effects, paper, statistics, verdicts
from pipeline.report.evaluate.cells import Cell, make_cells
from pipeline.report.evaluate.contrasts import Contrast, Decision, Quantity
from pipeline.report.evaluate.metrics import SPEEDUP
from pipeline.report.evaluate.paper import Agreement
from pipeline.report.page import study_tables as report_tables
from pipeline.report.page.table_format import Table, escape, to_csv, to_latex
from pipeline.report.read.study_records import Row
from tests.support.report_rows import collocation_study, copies, params, study, table_of


def judged(rows: list[Row]) -> list[Contrast]:
    return contrasts.compare_modes(make_cells(study(*rows)))


def one(
    found: list[Contrast], mode: str, against: str, label: str, degree: int, quantity: Quantity = Quantity.SPEED
) -> Contrast:
    meant = (mode, against, degree, quantity)
    (verdict,) = [
        v for v in found if (v.mode, v.against, v.degree, v.quantity) == meant and v.case.label.startswith(label)
    ]
    return verdict


@pytest.fixture(scope="module")
def whole() -> tuple[list[Cell], list[Contrast], list[verdicts.Winner]]:
    cells = make_cells(study(*collocation_study()))
    found = contrasts.compare_modes(cells)
    return cells, found, verdicts.winners(cells, found)


def test_what_is_faster_is_found_and_said_in_a_sentence(whole) -> None:
    verdict = one(whole[1], "MPS", "serial", "resnet26", 7)
    assert verdict.decision is Decision.BETTER
    assert verdict.p_adjusted is not None and verdict.p is not None and verdict.p < verdict.p_adjusted < 0.05
    assert verdict.ratio is not None and verdict.ratio.median == pytest.approx(1.84, rel=0.03)
    assert re.fullmatch(
        r"7 x resnet26_cifar10 bs128, MPS: 1\.8\d x serial on this host \(1\.\d\d to 1\.\d\d; 5 blocks\)\.",
        verdict.sentence,
    )
    assert one(whole[1], "MPS", "naive", "resnet50", 7).decision is Decision.WORSE
    assert one(whole[1], "naive", "serial", "M+2S", 3).decision is Decision.BETTER


def test_what_was_wrong_or_out_of_memory_is_shown_and_never_ranked(whole) -> None:
    wrong = one(whole[1], "MPS 14 %", "serial", "resnet26", 7)
    assert (wrong.decision, wrong.ratio, wrong.p) == (Decision.NOT_RANKED, None, None)
    assert "computes wrong results in 5 of 5 blocks" in wrong.sentence
    large = one(whole[1], "naive", "serial", "resnet152", 7)
    assert "out of memory in 5 of 5 blocks: why it is oom" in large.sentence
    skipped = one(whole[1], "MIG", "serial", "L+M+3S", 5)
    assert "skipped in 5 of 5 blocks: no partition" in skipped.sentence
    assert all("14 %" not in winner.tied for winner in whole[2])


def test_each_case_has_its_winner(whole) -> None:
    by_case = {(w.case.label.split()[0], w.degree): w for w in whole[2]}
    assert by_case["resnet26_cifar10", 7].mode == "MPS"
    sentence = by_case["resnet26_cifar10", 7].sentence
    assert re.search(
        r"\. MPS: 0\.4\d x CUDA graph alone \(0\.4\d to 0\.4\d\); energy 0\.14 x serial on this host\.$", sentence
    )
    # naive was made 5 % faster than serial: with noise of 1 % that may or may not be proved.
    assert by_case["resnet50_imagenet64", 7].tied[0] == "naive"
    assert by_case["M+2S", 3].mode == "MPS"
    assert ("resnet152_imagenet", 7) not in by_case


def test_less_than_five_blocks_give_no_verdict_and_say_what_would() -> None:
    found = judged(collocation_study(num_blocks=4))
    assert {v.decision for v in found} == {Decision.NO_VERDICT, Decision.NOT_RANKED}
    assert one(found, "MPS", "serial", "resnet26", 7).sentence.endswith("no verdict: about 5 blocks are needed).")
    (single,) = [
        v
        for v in judged(collocation_study(num_blocks=1))
        if (v.mode, v.against, v.degree, v.quantity) == ("MPS", "naive", 2, Quantity.SPEED)
        and v.case.label.startswith("resnet26")
    ]
    assert "(1 block; no interval below 3 blocks, no verdict below 5)." in single.sentence
    assert single.ratio is not None and single.ratio.low is None


def test_equality_is_a_claim_of_its_own() -> None:
    rows = [copies("serial", 1, 1000.0 + block, block) for block in range(1, 7)]
    rows += [copies("naive", 2, 500 * (1 + 0.0004 * (-1) ** block) + block / 2, block) for block in range(1, 7)]
    (verdict,) = judged(rows)
    assert verdict.decision is Decision.EQUAL
    assert "naive: 1.00 x serial, equal within 2 % (1.00 to 1.00; 6 blocks)." in verdict.sentence
    # What is denied is that they differ by 2 %: that they are the same is not denied at all.
    assert verdict.ratio is not None and verdict.p is not None and verdict.p_adjusted is not None
    assert verdict.ratio.low < 1 < verdict.ratio.high and verdict.p == verdict.p_adjusted < 1e-6


def on_gpus(speedups: dict[str, tuple[float, ...]]) -> list[Row]:
    """Two jobs, naive against serial, in blocks on several GPUs."""
    found = [(gpu, speedup) for gpu, several in speedups.items() for speedup in several]
    rows = []
    for block, (gpu, speedup) in enumerate(found, start=1):
        rows.append(copies("serial", 1, 1000.0, block, gpu_uuid=gpu))
        rows.append(copies("naive", 2, 500.0 * speedup, block, gpu_uuid=gpu))
    return rows


def test_of_several_gpus_each_counts_once_and_the_verdict_names_them() -> None:
    several = {"GPU-a": (1.50, 1.51, 1.50, 1.49, 1.50), "GPU-b": (1.52, 1.51), "GPU-c": (1.48, 1.49, 1.48, 1.49)}
    cells = make_cells(study(*on_gpus(several)))
    (verdict,) = contrasts.compare_modes(cells)
    assert (verdict.decision, verdict.num_blocks, verdict.num_gpus) == (Decision.BETTER, 11, 3)
    expected = statistics.estimate([1.50, 1.515, 1.485])
    assert verdict.ratio is not None and verdict.ratio.n == 3
    assert (verdict.ratio.low, verdict.ratio.high) == pytest.approx((expected.low, expected.high))
    assert verdict.ratio == next(cell for cell in cells if cell.mode == "naive").estimates[SPEEDUP]
    assert verdict.sentence.endswith("x serial (1.46 to 1.54; 11 blocks on these 3 GPUs).")
    (winner,) = verdicts.winners(cells, [verdict])
    assert " on these 3 GPUs: naive is fastest" in winner.sentence


def test_blocks_of_gpus_that_differ_do_not_make_a_verdict_together() -> None:
    """Taken as eleven blocks of one kind, they would be 4 % faster and far from chance."""
    differing = {"GPU-a": (1.07, 1.07, 1.071, 1.07, 1.072), "GPU-b": (0.99, 0.991), "GPU-c": (1.04, 1.041, 1.04, 1.04)}
    (verdict,) = judged(on_gpus(differing))
    assert verdict.decision is Decision.NO_VERDICT and verdict.blocks_needed is None
    assert verdict.ratio is not None and verdict.ratio.low < 1 < verdict.ratio.high
    assert verdict.sentence.endswith("each GPU counts once, and more GPUs (or less scatter) are needed).")
    pooled = on_gpus({"GPU-a": tuple(itertools.chain(*differing.values()))})
    assert judged(pooled)[0].decision is Decision.BETTER


def test_two_gpus_have_no_interval_and_no_verdict() -> None:
    (verdict,) = judged(on_gpus({"GPU-a": (1.5, 1.5, 1.51, 1.5, 1.49), "GPU-b": (1.5, 1.51, 1.5, 1.5, 1.49)}))
    assert verdict.decision is Decision.NO_VERDICT
    assert verdict.ratio is not None and (verdict.ratio.low, verdict.ratio.high) == (None, None)
    assert verdict.sentence.endswith(
        "(10 blocks on these 2 GPUs; no verdict: each GPU counts once, and 3 GPUs are needed)."
    )


def test_a_wide_spread_gives_no_verdict() -> None:
    factors = (1.0, 1.3, 0.8, 1.2, 0.9)
    rows = [copies("serial", 1, 1000.0, block) for block in range(1, 6)]
    rows += [copies("naive", 2, 540 * factors[block - 1], block) for block in range(1, 6)]
    (verdict,) = judged(rows)
    assert verdict.decision is Decision.NO_VERDICT
    assert verdict.blocks_needed is not None and verdict.blocks_needed > 10
    assert f"about {verdict.blocks_needed} blocks are needed" in verdict.sentence


def test_without_a_baseline_modes_are_still_compared_with_each_other() -> None:
    rows = [copies("naive", 2, 500.0 + block, block) for block in range(1, 6)]
    rows += [copies("mps", 2, 600.0 + block, block) for block in range(1, 6)]
    (verdict,) = judged(rows)
    assert (verdict.mode, verdict.against, verdict.decision) == ("MPS", "naive", Decision.BETTER)
    assert verdict.metric == "throughput_total_samples_per_s"


def test_a_baseline_that_stood_still_is_compared_with_nothing() -> None:
    stood = "job 0 stood still at the start"
    rows = []
    for block in range(1, 6):
        rows.append(copies("serial", 1, 900.0 + block, block, invalid=stood))
        rows.append(copies("naive", 2, 800.0 + block, block))
        rows.append(copies("mig", 1, 850.0 + block, block))
    assert judged(rows) == []
    cells = make_cells(study(*rows))
    assert not list(effects.steps(cells)) and verdicts.winners(cells, []) == []
    rows += [copies("mps", 2, 900.0 + block, block) for block in range(1, 6)]
    assert {(verdict.mode, verdict.against) for verdict in judged(rows)} == {("MPS", "naive")}


def test_a_verdict_says_what_is_doubtful_about_either_side() -> None:
    rows = []
    for block in range(1, 6):
        rows.append(copies("serial", 1, 1000.0 + block, block))
        rows.append(copies("naive", 2, 600.0 + block, block, note="overlap 0.400 is below 0.95"))
        rows.append(copies("mps", 2, 900.0 - block, block))
    found = {(verdict.mode, verdict.against): verdict.sentence for verdict in judged(rows)}
    assert found["MPS", "naive"].endswith(" (naive: overlap 0.400 is below 0.95)")
    assert found["MPS", "serial"].endswith("5 blocks).")


def test_what_is_invalid_leads_nothing_and_what_is_noted_says_so_wherever_it_leads() -> None:
    rows = []
    for block in range(1, 6):
        rows.append(copies("serial", 1, 1000.0 + block, block))
        rows.append(copies("naive", 2, 600.0 + block, block, note="hot"))
        rows.append(copies("mps", 2, 900.0 + block, block, invalid="suspended"))
        rows.append(copies("mig", 2, 550.0 + block, block, invalid="suspended" if block == 1 else ""))
    cells = make_cells(study(*rows))
    found = contrasts.compare_modes(cells)
    (winner,) = [winner for winner in verdicts.winners(cells, found) if winner.degree == 2]
    assert (
        winner.tied[0] == "naive" and "MPS" not in winner.tied and winner.speedup.median == pytest.approx(1.2, rel=0.01)
    )
    assert winner.marks == " (naive: hot; MPS: 5 of 5 blocks invalid: suspended)" and winner.sentence.endswith(
        winner.marks
    )
    sentences = {(verdict.mode, verdict.against): verdict for verdict in found}
    assert sentences["MPS", "serial"].decision is Decision.NOT_RANKED
    assert sentences["MPS", "serial"].sentence.endswith(": invalid in 5 of 5 blocks: suspended.")
    assert sentences["naive", "serial"].sentence.endswith(" (naive: hot)")
    assert any(mode.startswith("MIG") and verdict.num_blocks == 4 for (mode, _), verdict in sentences.items())


def test_the_winner_is_no_mode_that_another_was_shown_to_be_faster_than() -> None:
    rows = []
    for block in range(1, 12):
        faster = 1.0 if block <= 5 else 1.6  # naive has more blocks, and these are better ones
        rows.append(copies("serial", 1, 1000.0, block))
        rows.append(copies("naive", 2, 520.0 * faster + block, block))
        rows += [copies("mps", 2, 572.0 + block, block)] if block <= 5 else []
    cells = make_cells(study(*rows))
    found = contrasts.compare_modes(cells)
    assert one(found, "MPS", "naive", "resnet26", 2).decision is Decision.BETTER
    (winner,) = [each for each in verdicts.winners(cells, found) if each.degree == 2]
    assert winner.tied[0] == "MPS" and "naive" not in winner.tied
    naive = one(found, "naive", "serial", "resnet26", 2).ratio
    assert naive is not None and naive.high is not None and naive.median <= naive.high


def test_a_loser_without_any_baseline_is_no_part_of_the_winners() -> None:
    rows = []
    for block in range(1, 11):
        rows.append(copies("naive", 2, 600.0 + block, block))
        rows.append(copies("serial", 1, 500.0, block)) if block <= 5 else rows.append(copies("mps", 2, 400.0, block))
    cells = make_cells(study(*rows))
    found = contrasts.compare_modes(cells)
    assert one(found, "MPS", "naive", "resnet26", 2).decision is Decision.WORSE
    (winner,) = [each for each in verdicts.winners(cells, found) if each.degree == 2]
    assert winner.tied == ("naive",)


def test_a_missing_baseline_takes_no_block_from_what_needs_none() -> None:
    rows = []
    for block in range(1, 6):
        result = Result.FAILED if block == 2 else Result.OK
        rows.append(copies("serial", 1, 1000.0, block, result=result))
        rows.append(copies("naive", 2, 600.0 + block, block))
        rows.append(copies("mps", 2, 700.0 - block, block))
    found = one(judged(rows), "MPS", "naive", "resnet26", 2)
    assert (found.num_blocks, found.metric, found.decision) == (5, "throughput_total_samples_per_s", Decision.BETTER)


def test_what_is_simulated_says_so_everywhere() -> None:
    rows = [dataclasses.replace(row, is_simulated=True) for row in collocation_study(num_blocks=2)]
    found = study(*rows)
    cells = make_cells(found)
    judgements = contrasts.compare_modes(cells)
    best = verdicts.winners(cells, judgements)
    assert all(v.sentence.endswith("(simulated)") for v in judgements)
    assert all(w.sentence.endswith("(simulated)") for w in best)
    compared = paper.compare(cells, judgements)
    for table in report_tables.make_tables(found, cells, judgements, best, compared):
        assert table.note.startswith("Simulated GPU")
        assert to_csv(table).startswith("# Simulated GPU")
        assert "Simulated GPU" in to_latex(table)
    assert all("simulated" in c.note for c in compared if c.agreement is not Agreement.NOT_MEASURED)


def test_a_spreadsheet_computes_nothing_of_a_csv() -> None:
    rows = [("=1+1", 1.5), ("@SUM(A1)", -2), ("-1.5 (-2.0 to -1.0)", None), ("--lr", 0), ("plain", 1)]
    rows += [("-2+3+cmd|' /C calc'!A0", 0), ("- 1+1", 0), ("+3.2%", 0), ("-", 0)]
    table = Table(name="t", title="t", columns=("name", "value"), rows=tuple(rows))
    assert to_csv(table).splitlines()[1:] == [
        "'=1+1,1.5",
        "'@SUM(A1),-2",
        "-1.5 (-2.0 to -1.0),",
        "'--lr,0",
        "plain,1",
        "'-2+3+cmd|' /C calc'!A0,0",
        "'- 1+1,0",
        "+3.2%,0",
        "-,0",
    ]


def test_tables_hold_every_cell_and_what_is_missing_is_empty(whole) -> None:
    found = study(*collocation_study())
    table = table_of("results", whole[0])
    lines = list(csv.DictReader(line for line in io.StringIO(to_csv(table)) if not line.startswith("#")))
    assert len(lines) == len(whole[0])
    oom = next(line for line in lines if line["result"] == "oom")
    assert oom["speed-up over serial"] == "" and "0.0" not in oom.values()
    names = [t.name for t in report_tables.make_tables(found, *whole, paper.compare(*whole[:2]))]
    assert names == [
        *("winners", "verdicts", "speed", "fairness", "utilisation", "energy", "results", "endings", "paper"),
        *("drift", "workloads", "mixes", "blocks"),
    ]
    tex = to_latex(next(t for t in report_tables.make_tables(found, *whole, []) if t.name == "speed"))
    assert r"\resizebox{\linewidth}{!}{\begin{tabular}{" in tex and r"\end{tabular}}" in tex
    assert re.search(r"MPS & ok & \d+ \(\d+ to \d+\) & ", tex)
    endings = table_of("endings", whole[0])
    assert [row[3] for row in endings.rows] == ["wrong_results", "oom", "skipped"]
    wrong = next(row for row in endings.rows if row[3] == "wrong_results")
    assert wrong[5] == pytest.approx(7 * 2000 / 12000, rel=0.1)


def test_a_serial_run_with_wrong_results_is_not_among_the_fastest() -> None:
    rows = [copies(mode, 2, rate, block) for block in range(1, 7) for mode, rate in (("naive", 400.0), ("mps", 410.0))]
    endings = [Result.WRONG_RESULTS, *[Result.OK] * 5]
    rows += [copies("serial", 1, 1000.0, block, result=result) for block, result in enumerate(endings, start=1)]
    cells = make_cells(study(*rows))
    (winner,) = verdicts.winners(cells, contrasts.compare_modes(cells))
    assert winner.mode == "MPS" and winner.tied == ("MPS",)


def test_a_baseline_without_samples_has_no_drift() -> None:
    rows = [copies("serial", 1, rate, block) for block, rate in enumerate((0.0, 100.0, 101.0), start=1)]
    (row,) = table_of("drift", study(*rows)).rows
    assert row[2:5] == (2, 2, 3)


def test_each_gpu_has_a_drift_of_its_own() -> None:
    gpus = ("GPU-11111111-a", "GPU-22222222-a", "GPU-11111111-a", "GPU-22222222-a")
    rates = (100.0, 300.0, 101.0, 306.0)
    rows = [
        copies("serial", 1, rate, block, gpu_uuid=gpu, boot_id=gpu)
        for block, (rate, gpu) in enumerate(zip(rates, gpus, strict=True), start=1)
    ]
    found = table_of("drift", study(*rows)).rows
    assert [(str(row[0]).rpartition(" on ")[2], row[5]) for row in found] == [
        ("GPU-11111111", pytest.approx(1.0)),
        ("GPU-22222222", pytest.approx(2.0)),
    ]


def test_drift_is_first_against_last() -> None:
    rows = [copies("serial", 1, rate, block) for block, rate in enumerate((100.0, 101.0, 110.0), start=1)]
    (row,) = table_of("drift", study(*rows)).rows
    assert row[1:6] == ("samples/s", 3, 1, 3, pytest.approx(10.0))
    assert row[7:] == (100.0, 110.0)


def test_latex_prints_text_as_it_stands() -> None:
    assert escape("50 % of a_b & c#$^~{}\\") == (
        r"50 \% of a\_b \& c\#\$\textasciicircum{}\textasciitilde{}\{\}\textbackslash{}"
    )
    table = Table(
        name="a b", title="x_y", columns=("what", "%"), rows=(("[0]", 1.23456), ("two\nlines", None)), note="50 %"
    )
    text = to_latex(table)
    assert r"{[}0] & 1.235 \\" in text and r"two lines & - \\" in text
    assert r"\begin{tabular}{lr}" in text and r"\label{tab:a-b}" in text and r"\toprule" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert all(len(re.findall(r"(?<!\\)&", line)) == 1 for line in body)
    assert not re.search(r"(?<!\\)[%_#]", text.replace("tab:a-b", ""))
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")


def test_csv_has_the_digits_of_numbers_that_are_equal_on_all_machines() -> None:
    table = Table(name="t", title="t", columns=("a,b", "c"), rows=((1 / 3, None), (Result.OK.value, 2)))
    assert to_csv(table) == '"a,b",c\n0.333333333333,\nok,2\n'


def test_what_is_faster_than_the_best_step_mode_is_faster_than_serial() -> None:
    rows = []
    for block, host in enumerate((1.0, 0.7, 1.2, 0.8, 1.15), start=1):
        graph = params(step_mode="cuda_graph")
        rows += [copies("serial", 1, 800.0 * host, block), copies("serial", 1, 1000.0, block, graph)]
        rows += [copies("naive", 2, 550.0, block)]
    cells = make_cells(study(*rows))
    comparisons = contrasts.compare_modes(cells)
    against = {verdict.against: verdict.decision for verdict in comparisons if verdict.mode == "naive"}
    assert against == {"serial": Decision.NO_VERDICT, "CUDA graph alone": Decision.BETTER}
    (winner,) = verdicts.winners(cells, comparisons)
    assert winner.mode == "naive"
