"""Contrasts and verdicts: of sharing modes, of the best step mode alone, and of any two cells."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import re

import pytest

from pipeline.base.domain.normalisation import SLOWDOWN
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import SERIAL
from pipeline.base.domain.window import WindowKind
from pipeline.report.evaluate import contrasts, effects, paper, statistics, verdicts
from pipeline.report.evaluate.cells import Cell, make_cells
from pipeline.report.evaluate.contrasts import (
    Contrast,
    Decision,
    Quantity,
    compare_modes,
    contrast,
    contrast_cells,
    contrast_per_job,
    contrast_with_alone,
)
from pipeline.report.evaluate.metrics import BEST_SOLO, ENERGY_VS_BEST_SOLO, SPEEDUP, TOTAL_TIME
from pipeline.report.evaluate.paper import Agreement
from pipeline.report.evaluate.verdicts import describe_cases, winners
from pipeline.report.figures import bar_charts, curves
from pipeline.report.figures.drawing import NO_INTERVAL
from pipeline.report.page import study_tables as report_tables
from pipeline.report.page.study_tables import make_group_table
from pipeline.report.page.table_format import Table, escape, to_csv, to_latex
from pipeline.report.read.study_records import Row
from tests.support.report_rows import collocation_study, copies, job, params, row, study, table_of


def compare_rows(rows: list[Row]) -> list[Contrast]:
    return contrasts.compare_modes(make_cells(study(*rows)))


def find_verdict(
    comparisons: list[Contrast], mode: str, against: str, label: str, degree: int, quantity: Quantity = Quantity.SPEED
) -> Contrast:
    meant = (mode, against, degree, quantity)
    (verdict,) = [
        v for v in comparisons if (v.mode, v.against, v.degree, v.quantity) == meant and v.case.label.startswith(label)
    ]
    return verdict


@pytest.fixture(scope="module")
def full_verdicts() -> tuple[list[Cell], list[Contrast], list[verdicts.Winner]]:
    cells = make_cells(study(*collocation_study()))
    comparisons = contrasts.compare_modes(cells)
    return cells, comparisons, verdicts.winners(cells, comparisons)


def test_what_is_faster_is_found_and_said_in_a_sentence(full_verdicts) -> None:
    verdict = find_verdict(full_verdicts[1], "MPS", "serial", "resnet26", 7)
    assert verdict.decision is Decision.BETTER
    assert verdict.p_adjusted is not None and verdict.p is not None and verdict.p < verdict.p_adjusted < 0.05
    assert verdict.ratio is not None and verdict.ratio.median == pytest.approx(1.84, rel=0.03)
    assert re.fullmatch(
        r"7 x resnet26_cifar10 bs128, MPS: 1\.8\d x serial on this host \(1\.\d\d to 1\.\d\d; 5 blocks\)\.",
        verdict.sentence,
    )
    assert find_verdict(full_verdicts[1], "MPS", "naive", "resnet50", 7).decision is Decision.WORSE
    assert find_verdict(full_verdicts[1], "naive", "serial", "M+2S", 3).decision is Decision.BETTER


def test_what_was_wrong_or_out_of_memory_is_shown_and_never_ranked(full_verdicts) -> None:
    wrong = find_verdict(full_verdicts[1], "MPS 14 %", "serial", "resnet26", 7)
    assert (wrong.decision, wrong.ratio, wrong.p) == (Decision.NOT_RANKED, None, None)
    assert "computes wrong results in 5 of 5 blocks" in wrong.sentence
    large = find_verdict(full_verdicts[1], "naive", "serial", "resnet152", 7)
    assert "out of memory in 5 of 5 blocks: why it is oom" in large.sentence
    skipped = find_verdict(full_verdicts[1], "MIG", "serial", "L+M+3S", 5)
    assert "skipped in 5 of 5 blocks: no partition" in skipped.sentence
    assert all("14 %" not in winner.tied for winner in full_verdicts[2])


def test_each_case_has_its_winner(full_verdicts) -> None:
    by_case = {(w.case.label.split()[0], w.degree): w for w in full_verdicts[2]}
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
    comparisons = compare_rows(collocation_study(num_blocks=4))
    assert {v.decision for v in comparisons} == {Decision.NO_VERDICT, Decision.NOT_RANKED}
    four = find_verdict(comparisons, "MPS", "serial", "resnet26", 7)
    assert four.sentence.endswith("; 4 blocks).") and four.blocks_needed == 5
    (single,) = [
        v
        for v in compare_rows(collocation_study(num_blocks=1))
        if (v.mode, v.against, v.degree, v.quantity) == ("MPS", "naive", 2, Quantity.SPEED)
        and v.case.label.startswith("resnet26")
    ]
    assert "(1 block)." in single.sentence
    assert single.ratio is not None and single.ratio.low is None


def test_equality_is_a_claim_of_its_own() -> None:
    rows = [copies("serial", 1, 1000.0 + block, block) for block in range(1, 7)]
    rows += [copies("naive", 2, 500 * (1 + 0.0004 * (-1) ** block) + block / 2, block) for block in range(1, 7)]
    (verdict,) = compare_rows(rows)
    assert verdict.decision is Decision.EQUAL
    assert "naive: 1.00 x serial, equal within 2 % (1.00 to 1.00; 6 blocks)." in verdict.sentence
    # What is denied is that they differ by 2 %: that they are the same is not denied at all.
    assert verdict.ratio is not None and verdict.p is not None and verdict.p_adjusted is not None
    assert verdict.ratio.low < 1 < verdict.ratio.high and verdict.p == verdict.p_adjusted < 1e-6


def make_gpu_rows(speedups: dict[str, tuple[float, ...]]) -> list[Row]:
    """Two jobs, naive against serial, in blocks on several GPUs."""
    gpu_speedups = [(gpu, speedup) for gpu, several in speedups.items() for speedup in several]
    rows = []
    for block, (gpu, speedup) in enumerate(gpu_speedups, start=1):
        rows.append(copies("serial", 1, 1000.0, block, gpu_uuid=gpu))
        rows.append(copies("naive", 2, 500.0 * speedup, block, gpu_uuid=gpu))
    return rows


def test_of_several_gpus_each_counts_once_and_the_verdict_names_them() -> None:
    several = {"GPU-a": (1.50, 1.51, 1.50, 1.49, 1.50), "GPU-b": (1.52, 1.51), "GPU-c": (1.48, 1.49, 1.48, 1.49)}
    cells = make_cells(study(*make_gpu_rows(several)))
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
    (verdict,) = compare_rows(make_gpu_rows(differing))
    assert verdict.decision is Decision.NO_VERDICT and verdict.blocks_needed is None
    assert verdict.ratio is not None and verdict.ratio.low < 1 < verdict.ratio.high
    assert verdict.sentence.endswith("each GPU counts once, and more GPUs (or less scatter) are needed).")
    pooled = make_gpu_rows({"GPU-a": tuple(itertools.chain(*differing.values()))})
    assert compare_rows(pooled)[0].decision is Decision.BETTER


def test_two_gpus_have_no_interval_and_no_verdict() -> None:
    (verdict,) = compare_rows(
        make_gpu_rows({"GPU-a": (1.5, 1.5, 1.51, 1.5, 1.49), "GPU-b": (1.5, 1.51, 1.5, 1.5, 1.49)})
    )
    assert verdict.decision is Decision.NO_VERDICT
    assert verdict.ratio is not None and (verdict.ratio.low, verdict.ratio.high) == (None, None)
    assert verdict.sentence.endswith(
        "(10 blocks on these 2 GPUs; no verdict: each GPU counts once, and 3 GPUs are needed)."
    )


def test_a_wide_spread_gives_no_verdict() -> None:
    factors = (1.0, 1.3, 0.8, 1.2, 0.9)
    rows = [copies("serial", 1, 1000.0, block) for block in range(1, 6)]
    rows += [copies("naive", 2, 540 * factors[block - 1], block) for block in range(1, 6)]
    (verdict,) = compare_rows(rows)
    assert verdict.decision is Decision.NO_VERDICT
    assert verdict.blocks_needed is not None and verdict.blocks_needed > 10
    assert f"about {verdict.blocks_needed} blocks are needed" in verdict.sentence


def test_without_a_baseline_modes_are_still_compared_with_each_other() -> None:
    rows = [copies("naive", 2, 500.0 + block, block) for block in range(1, 6)]
    rows += [copies("mps", 2, 600.0 + block, block) for block in range(1, 6)]
    (verdict,) = compare_rows(rows)
    assert (verdict.mode, verdict.against, verdict.decision) == ("MPS", "naive", Decision.BETTER)
    assert verdict.metric == "throughput_total_samples_per_s"


def test_a_baseline_that_stood_still_is_compared_with_nothing() -> None:
    stood = "job 0 stood still at the start"
    rows = []
    for block in range(1, 6):
        rows.append(copies("serial", 1, 900.0 + block, block, invalid=stood))
        rows.append(copies("naive", 2, 800.0 + block, block))
        rows.append(copies("mig", 1, 850.0 + block, block))
    assert compare_rows(rows) == []
    cells = make_cells(study(*rows))
    assert not list(effects.steps(cells)) and verdicts.winners(cells, []) == []
    rows += [copies("mps", 2, 900.0 + block, block) for block in range(1, 6)]
    assert {(verdict.mode, verdict.against) for verdict in compare_rows(rows)} == {("MPS", "naive")}


def test_a_verdict_has_a_star_if_either_side_is_doubtful() -> None:
    rows = []
    for block in range(1, 6):
        rows.append(copies("serial", 1, 1000.0 + block, block))
        rows.append(copies("naive", 2, 600.0 + block, block, note="overlap 0.400 is below 0.95"))
        rows.append(copies("mps", 2, 900.0 - block, block))
    sentences = {(verdict.mode, verdict.against): verdict.sentence for verdict in compare_rows(rows)}
    assert "1.49* x naive" in sentences["MPS", "naive"]
    assert "* x" not in sentences["MPS", "serial"]


def test_what_is_invalid_leads_nothing_and_what_is_noted_says_so_wherever_it_leads() -> None:
    rows = []
    for block in range(1, 6):
        rows.append(copies("serial", 1, 1000.0 + block, block))
        rows.append(copies("naive", 2, 600.0 + block, block, note="hot"))
        rows.append(copies("mps", 2, 900.0 + block, block, invalid="suspended"))
        rows.append(copies("mig", 2, 550.0 + block, block, invalid="suspended" if block == 1 else ""))
    cells = make_cells(study(*rows))
    comparisons = contrasts.compare_modes(cells)
    (winner,) = [winner for winner in verdicts.winners(cells, comparisons) if winner.degree == 2]
    assert (
        winner.tied[0] == "naive" and "MPS" not in winner.tied and winner.speedup.median == pytest.approx(1.2, rel=0.01)
    )
    sentences = {(verdict.mode, verdict.against): verdict for verdict in comparisons}
    assert sentences["MPS", "serial"].decision is Decision.NOT_RANKED
    assert sentences["MPS", "serial"].sentence.endswith(": invalid in 5 of 5 blocks: suspended.")
    assert "naive: 1.20* x serial (" in sentences["naive", "serial"].sentence
    assert any(mode.startswith("MIG") and verdict.num_blocks == 4 for (mode, _), verdict in sentences.items())


def test_the_winner_is_no_mode_that_another_was_shown_to_be_faster_than() -> None:
    rows = []
    for block in range(1, 12):
        faster = 1.0 if block <= 5 else 1.6  # naive has more blocks, and these are better ones
        rows.append(copies("serial", 1, 1000.0, block))
        rows.append(copies("naive", 2, 520.0 * faster + block, block))
        rows += [copies("mps", 2, 572.0 + block, block)] if block <= 5 else []
    cells = make_cells(study(*rows))
    comparisons = contrasts.compare_modes(cells)
    assert find_verdict(comparisons, "MPS", "naive", "resnet26", 2).decision is Decision.BETTER
    (winner,) = [best for best in verdicts.winners(cells, comparisons) if best.degree == 2]
    assert winner.tied[0] == "MPS" and "naive" not in winner.tied
    naive = find_verdict(comparisons, "naive", "serial", "resnet26", 2).ratio
    assert naive is not None and naive.high is not None and naive.median <= naive.high


def test_a_loser_without_any_baseline_is_no_part_of_the_winners() -> None:
    rows = []
    for block in range(1, 11):
        rows.append(copies("naive", 2, 600.0 + block, block))
        rows.append(copies("serial", 1, 500.0, block)) if block <= 5 else rows.append(copies("mps", 2, 400.0, block))
    cells = make_cells(study(*rows))
    comparisons = contrasts.compare_modes(cells)
    assert find_verdict(comparisons, "MPS", "naive", "resnet26", 2).decision is Decision.WORSE
    (winner,) = [best for best in verdicts.winners(cells, comparisons) if best.degree == 2]
    assert winner.tied == ("naive",)


def test_a_missing_baseline_takes_no_block_from_what_needs_none() -> None:
    rows = []
    for block in range(1, 6):
        result = Result.FAILED if block == 2 else Result.OK
        rows.append(copies("serial", 1, 1000.0, block, result=result))
        rows.append(copies("naive", 2, 600.0 + block, block))
        rows.append(copies("mps", 2, 700.0 - block, block))
    verdict = find_verdict(compare_rows(rows), "MPS", "naive", "resnet26", 2)
    assert (verdict.num_blocks, verdict.metric, verdict.decision) == (
        5,
        "throughput_total_samples_per_s",
        Decision.BETTER,
    )


def test_what_is_simulated_says_so_everywhere() -> None:
    rows = [dataclasses.replace(row, is_simulated=True) for row in collocation_study(num_blocks=2)]
    simulated_study = study(*rows)
    cells = make_cells(simulated_study)
    judgements = contrasts.compare_modes(cells)
    best = verdicts.winners(cells, judgements)
    assert all(v.sentence.endswith("(simulated)") for v in judgements)
    assert all(w.sentence.endswith("(simulated)") for w in best)
    compared = paper.compare(cells, judgements)
    for table in report_tables.make_tables(simulated_study, cells, judgements, best, compared):
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


def test_tables_hold_every_cell_and_what_is_missing_is_empty(full_verdicts) -> None:
    full_study = study(*collocation_study())
    table = table_of("results", full_verdicts[0])
    lines = list(csv.DictReader(line for line in io.StringIO(to_csv(table)) if not line.startswith("#")))
    assert len(lines) == len(full_verdicts[0])
    oom = next(line for line in lines if line["result"] == "oom")
    assert oom["speed-up over serial"] == "" and "0.0" not in oom.values()
    names = [t.name for t in report_tables.make_tables(full_study, *full_verdicts, paper.compare(*full_verdicts[:2]))]
    assert names == [
        *("winners", "verdicts", "speed", "fairness", "utilisation", "energy", "results", "endings", "paper"),
        *("drift", "workloads", "mixes", "blocks"),
    ]
    tex = to_latex(next(t for t in report_tables.make_tables(full_study, *full_verdicts, []) if t.name == "speed"))
    assert r"\resizebox{\linewidth}{!}{\begin{tabular}{" in tex and r"\end{tabular}}" in tex
    assert re.search(r"MPS & ok & \d+ \(\d+ to \d+\) & ", tex)
    endings = table_of("endings", full_verdicts[0])
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
    drift_rows = table_of("drift", study(*rows)).rows
    assert [(str(row[0]).rpartition(" on ")[2], row[5]) for row in drift_rows] == [
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


GRAPH = params(step_mode="cuda_graph")
FACTORS = (1.0, 1.02, 0.98, 1.01, 0.99)


def replace_window(row: Row, kind: WindowKind, text: str) -> Row:
    settings = tuple((key, text if key == "window" else value) for key, value in row.settings)
    facts = {key: value for key, value in row.facts.items() if not key.startswith("window")}
    changed = dataclasses.replace(row, window=kind, settings=settings, facts=facts, key=f"{row.key} {text}")
    return dataclasses.replace(changed, run_id=f"{row.run_id} {text}", metrics={**row.metrics, "window_s": 10.0})


def interleave_row(row: Row) -> Row:
    return replace_window(row, WindowKind.INTERLEAVED, "interleaved, 10 x 1 s, each after 0.3 s")


def run(
    scenario: str, degree: int, rate: float, energy_j: float, block: int = 1, job_params: dict[str, str] | None = None
):
    figures = {"energy_per_sample_j": energy_j, "energy_j": energy_j * 10 * degree * rate}
    return copies(scenario, degree, rate, block, job_params, metrics=figures)


def make_blocks(num_blocks: int) -> list[Row]:
    """Jobs that were interleaved, and a CUDA graph alone in a steady window, because it could not be paused."""
    rows = []
    for block, factor in zip(range(1, num_blocks + 1), FACTORS, strict=False):
        rows.append(interleave_row(run("serial", 1, 1000.0 * factor, 0.1, block)))
        rows.append(run("serial", 1, 4000.0, 0.04, block, GRAPH))
        rows.append(interleave_row(run("naive", 2, 700.0 * factor, 0.08, block)))
        rows.append(interleave_row(run("mps", 2, 1500.0, 0.05 * factor, block)))
    return rows


def find_cell(cells: list[Cell], mode: str, degree: int) -> Cell:
    (cell,) = [
        cell for cell in cells if (cell.mode, cell.degree, cell.case.params[0]["step_mode"]) == (mode, degree, "eager")
    ]
    return cell


def test_a_graph_in_a_steady_window_is_a_baseline_of_interleaved_groups() -> None:
    cells = make_cells(study(*make_blocks(1)))
    naive = find_cell(cells, "naive", 2)
    assert naive.values[BEST_SOLO] == {1: pytest.approx(0.35)}
    assert naive.values[ENERGY_VS_BEST_SOLO] == {1: pytest.approx(2.0)}
    assert naive.best_solo == "CUDA graph"
    assert find_cell(cells, "serial", 1).values[BEST_SOLO] == {1: pytest.approx(0.25)}


def test_the_window_of_the_group_is_preferred_and_fixed_work_is_no_rate() -> None:
    rows = [*make_blocks(1), interleave_row(run("serial", 1, 2000.0, 0.04, job_params=GRAPH))]
    assert find_cell(make_cells(study(*rows)), "naive", 2).values[BEST_SOLO] == {1: pytest.approx(0.7)}
    work = [
        row if row.jobs[0].params == GRAPH else replace_window(row, WindowKind.WORK, "work, 2 epochs")
        for row in make_blocks(1)
    ]
    assert not any(BEST_SOLO in cell.values for cell in make_cells(study(*work)))


def test_several_runs_alone_in_one_step_mode_count_with_their_mean() -> None:
    twice = dataclasses.replace(run("serial", 1, 2000.0, 0.04, job_params=GRAPH), key="again", run_id="again")
    cells = make_cells(study(*make_blocks(1), twice))
    assert find_cell(cells, "naive", 2).values[BEST_SOLO] == {1: pytest.approx(1400 / 3000)}


def test_a_graph_that_runs_together_has_its_own_baseline_and_no_second_comparison() -> None:
    rows = [*make_blocks(5)]
    rows += [run("naive", 2, 2100.0, 0.04, block, GRAPH) for block in range(1, 6)]
    comparisons = compare_modes(make_cells(study(*rows)))
    pairs = [(v.against, v.quantity.value) for v in comparisons if v.case.params[0]["step_mode"] == "cuda_graph"]
    assert pairs == [("serial", "speed"), ("serial", "energy")]


def test_tables_and_sentences_have_both_gains() -> None:
    of = study(*make_blocks(5))
    cells = make_cells(of)
    best = winners(cells, compare_modes(cells))
    (sentence,) = describe_cases(cells, compare_modes(cells), best)
    interval = r"\(\d\.\d\d to \d\.\d\d(; 5 blocks)?\)"
    assert re.fullmatch(  # no label has the kind of window
        rf"2 x resnet26_cifar10 bs128, MPS: 3\.00\* x serial on this host {interval}\. MPS: 0\.75 x CUDA graph alone; "
        rf"energy 0\.50 x serial on this host {interval}, 1\.25 x CUDA graph alone {interval}\.",
        sentence,
    )
    (line,) = table_of("winners", cells).rows
    assert line[3] == pytest.approx(3.0) and line[6:10] == (pytest.approx(0.75), *line[7:9], "CUDA graph")
    table = make_group_table(cells, "energy", "Energy", ("energy_vs_alone_ratio", ENERGY_VS_BEST_SOLO))
    assert table.columns[-1] == "energy against the same work in the best step mode alone"
    assert "property of the GPU and the programs" in table.note


def read_legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_figure_of_gains_has_a_panel_against_the_best_step_mode() -> None:
    (sketch,) = curves.sketch_gains(make_cells(study(*make_blocks(5))), None)
    figure = sketch.paint()
    assert [axes.get_ylabel() for axes in figure.axes] == ["speed-up over\nserial", "speed-up over\nCUDA graph alone"]
    assert sorted(read_legend(figure)) == ["MPS", "alone, CUDA graph", "alone, eager", "ideal", "naive"]
    over_best = {line.get_label(): line.lines[0].get_ydata().tolist() for line in figure.axes[1].containers}
    assert over_best == {"naive": [pytest.approx(0.35)], "MPS": [pytest.approx(0.75)]}
    assert "property of the GPU and the programs" in sketch.caption


def test_the_figure_of_energy_has_the_level_of_the_best_step_mode() -> None:
    (sketch,) = bar_charts.sketch_metrics(make_cells(study(*make_blocks(5))), None)
    figure = sketch.paint()
    assert "alone, CUDA graph" in read_legend(figure)
    (level,) = [line for line in figure.axes[0].lines if line.get_label() == "alone, CUDA graph"]
    assert level.get_ydata()[0] == pytest.approx(0.04)


def test_points_and_bars_without_an_interval_are_hollow() -> None:
    rows = [row for row in make_blocks(5) if row.scenario != "mps" or row.block < 3]
    cells = make_cells(study(*rows))
    (sketch,) = curves.sketch_gains(cells, None)
    figure = sketch.paint()
    hollow = [line for line in figure.axes[0].lines if line.get_label() == NO_INTERVAL]
    assert [line.get_ydata().tolist() for line in hollow] == [[pytest.approx(3.0, rel=0.02)]]
    assert read_legend(figure)[-1] == NO_INTERVAL
    (sketch,) = bar_charts.sketch_metrics(cells, None)
    figure = sketch.paint()
    bars = {bar.get_label(): len(bar) for bar in figure.axes[0].containers if bar.get_label() == NO_INTERVAL}
    assert bars == {NO_INTERVAL: 1} and read_legend(figure)[-1] == NO_INTERVAL


def test_a_figure_says_which_speed_up_exceeds_the_number_of_jobs() -> None:
    cells = make_cells(study(*make_blocks(5)))
    (sketch,) = curves.sketch_gains(cells, None)
    over_serial, over_best = sketch.paint().axes
    assert "2: MPS* more than ideal" in over_serial.get_xlabel()
    assert [text.get_text() for text in over_serial.texts] == ["*"]
    assert over_best.get_xlabel() == "jobs" and not over_best.texts
    assert "*: doubtful" in sketch.caption


def test_a_noisy_baseline_of_single_blocks_puts_no_note_on_a_speed_up() -> None:
    """At a true gain of exactly the number of jobs, half of the blocks are above it."""
    rows = []
    factors = ((0.9, 0.97), (1.1, 1.04), (0.95, 1.0), (1.05, 1.03), (0.92, 0.98))
    for block, (alone, together) in enumerate(factors, start=1):
        rows += [copies("serial", 1, 1000.0 * alone, block), copies("mps", 2, 1000.0 * together, block)]
    cells = make_cells(study(*rows))
    mps = find_cell(cells, "MPS", 2)
    assert mps.estimates["speedup_vs_serial_ratio"].median > 2 and mps.notes_on_gain == ()
    (sketch,) = curves.sketch_gains(cells, None)
    (axes,) = sketch.paint().axes
    assert axes.get_xlabel() == "jobs" and not axes.texts


def test_a_block_needs_the_run_of_the_best_step_mode_only() -> None:
    def keep(*lost: tuple[str, int]) -> list[Row]:
        return [
            dataclasses.replace(row, result=Result.FAILED, metrics={})
            if row.is_sequential and (row.jobs[0].params["step_mode"], row.block) in lost
            else row
            for row in make_blocks(5)
        ]

    full_cell = find_cell(make_cells(study(*keep())), "naive", 2)
    without_eager = find_cell(make_cells(study(*keep(("eager", 3)))), "naive", 2)
    assert 3 not in without_eager.values["speedup_vs_serial_ratio"]
    assert without_eager.values[BEST_SOLO] == full_cell.values[BEST_SOLO]
    # Without the fastest step mode, the best one of the block is unknown.
    without_graph = find_cell(make_cells(study(*keep(("cuda_graph", 3)))), "naive", 2)
    assert sorted(without_graph.values[BEST_SOLO]) == [1, 2, 4, 5]


def make_pair(gains: dict[int, float], *, degree: int = 2) -> tuple[Cell, Cell]:
    """Return the cells of naive sharing and of one serial job, with a gain of each block of naive sharing."""
    serial = [copies("serial", 1, 1000.0, block) for block in range(1, 5)]
    naive = [copies("naive", degree, 1000.0 * gain / degree, block) for block, gain in gains.items()]
    cells = {cell.mode: cell for cell in make_cells(study(*serial, *naive)) if not cell.is_derived}
    return cells["naive"], cells["serial"]


def test_pairs_the_blocks_that_both_cells_have() -> None:
    naive, serial = make_pair({2: 1.2, 3: 1.3, 4: 1.4, 5: 9.0})
    pair = contrast_cells(naive, serial)
    assert pair is not None and pair.ratio is not None
    assert pair.ratios == pytest.approx({2: 1.2, 3: 1.3, 4: 1.4})
    assert (pair.ratio.median, pair.ratio.n, pair.num_blocks, pair.num_gpus) == (pytest.approx(1.3), 3, 3, 1)
    assert (pair.case, pair.degree, pair.mode, pair.against) == (naive.case, 2, "naive", "serial")
    assert (pair.metric, pair.decision) == ("throughput_total_samples_per_s", Decision.NO_VERDICT)


def test_has_no_contrast_without_a_common_block_or_quantity() -> None:
    naive, serial = make_pair({7: 1.2})
    assert contrast_cells(naive, serial) is None
    naive, serial = make_pair({1: 1.2})
    assert contrast_cells(naive, serial, "power_mean_w") is None
    assert contrast_with_alone(naive, "power_mean_w") is None


def test_a_ratio_of_times_is_one_of_speeds() -> None:
    job_params = params()
    times = {"serial": 20.0, "naive": 10.0}
    rows = [
        row(mode, (job(0, job_params, None),), metrics={TOTAL_TIME: time_s}, window=WindowKind.WORK)
        for mode, time_s in times.items()
    ]
    naive, serial = sorted(make_cells(study(*rows)), key=lambda cell: cell.mode)
    pair = contrast_cells(naive, serial, TOTAL_TIME)
    assert pair is not None and pair.ratios == {1: 2.0}


def test_selects_cells_and_their_references() -> None:
    rows = [copies(mode, degree, 1000.0 / degree) for mode, degree in itertools.product(("serial", "naive"), (1, 2))]
    cells = make_cells(study(*rows))
    alone = next(cell for cell in cells if (cell.degree, cell.sharing) == (1, SERIAL))
    pairs = contrast(cells, lambda cell: cell.mode == "naive", lambda cell: alone if cell.degree > 1 else None)
    assert [(pair.degree, pair.mode, pair.other) for pair in pairs] == [(2, "naive", alone)]


def test_one_job_of_several_is_compared_by_its_part_of_the_throughput() -> None:
    naive, serial = make_pair({1: 1.5}, degree=3)
    pair = contrast_per_job(naive, serial)
    assert pair is not None and pair.ratios == pytest.approx({1: 0.5})


@pytest.mark.parametrize(("is_inverted", "ratio"), [(False, 2 / 1.6), (True, 1.6 / 2)])
def test_a_slowdown_is_a_contrast_by_itself_and_its_inverse_the_throughput_kept(
    is_inverted: bool, ratio: float
) -> None:
    naive, _ = make_pair({1: 1.6})
    pair = contrast_with_alone(naive, SLOWDOWN, subject="a", is_inverted=is_inverted)
    assert pair is not None and pair.ratio is not None
    assert (pair.ratio.median, pair.subject, pair.against) == (pytest.approx(ratio), "a", "alone")


def test_an_estimate_does_not_depend_on_the_order_of_blocks() -> None:
    gains = {1: 1.2, 2: 1.5, 3: 1.3, 4: 1.1}
    estimates = set()
    for order in itertools.permutations(gains):
        pair = contrast_cells(*make_pair({block: gains[block] for block in order}))
        assert pair is not None
        estimates.add(pair.ratio)
    assert len(estimates) == 1


def test_comparisons_of_modes_are_contrasts_with_a_decision() -> None:
    serial = [copies("serial", 1, 1000.0 + block, block) for block in range(1, 7)]
    naive = [copies("naive", 2, 900.0 + block, block) for block in range(1, 7)]
    (pair,) = [pair for pair in compare_modes(make_cells(study(*serial, *naive))) if pair.degree == 2]
    assert (pair.decision, pair.against, pair.blocks_needed) == (Decision.BETTER, "serial", None)
    assert pair.p is not None and pair.p_adjusted is not None and pair.p <= pair.p_adjusted
    assert pair.sentence.startswith("2 x resnet26_cifar10 bs128, naive: 1.80 x serial (1.80 to 1.80; 6 blocks)")
