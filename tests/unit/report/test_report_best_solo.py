"""The best step mode alone as a baseline: in every kind of steady window, in sentences and in figures."""

from __future__ import annotations

import dataclasses
import re

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.domain.window import WindowKind
from pipeline.report.evaluate.cells import Cell, make_cells
from pipeline.report.evaluate.contrasts import compare_modes
from pipeline.report.evaluate.metrics import BEST_SOLO, ENERGY_VS_BEST_SOLO
from pipeline.report.evaluate.verdicts import winners
from pipeline.report.figures import bar_charts, curves
from pipeline.report.figures.drawing import NO_INTERVAL
from pipeline.report.page.key_findings import write_answer
from pipeline.report.page.study_tables import make_group_table
from pipeline.report.read.study_records import Row
from tests.support.report_rows import copies, params, study, table_of

GRAPH = params(step_mode="cuda_graph")
FACTORS = (1.0, 1.02, 0.98, 1.01, 0.99)


def replace_window(row: Row, kind: WindowKind, text: str) -> Row:
    settings = tuple((key, text if key == "window" else value) for key, value in row.settings)
    facts = {key: value for key, value in row.facts.items() if not key.startswith("window")}
    changed = dataclasses.replace(row, window=kind, settings=settings, facts=facts, key=f"{row.key} {text}")
    return dataclasses.replace(changed, run_id=f"{row.run_id} {text}", metrics={**row.metrics, "window_s": 10.0})


def interleaved(row: Row) -> Row:
    return replace_window(row, WindowKind.INTERLEAVED, "interleaved, 10 x 1 s, each after 0.3 s")


def run(scenario: str, degree: int, rate: float, energy_j: float, block: int = 1, own: dict[str, str] | None = None):
    figures = {"energy_per_sample_j": energy_j, "energy_j": energy_j * 10 * degree * rate}
    return copies(scenario, degree, rate, block, own, metrics=figures)


def several_blocks(num_blocks: int) -> list[Row]:
    """Jobs that were interleaved, and a CUDA graph alone in a steady window, because it could not be paused."""
    rows = []
    for block, factor in zip(range(1, num_blocks + 1), FACTORS, strict=False):
        rows.append(interleaved(run("serial", 1, 1000.0 * factor, 0.1, block)))
        rows.append(run("serial", 1, 4000.0, 0.04, block, GRAPH))
        rows.append(interleaved(run("naive", 2, 700.0 * factor, 0.08, block)))
        rows.append(interleaved(run("mps", 2, 1500.0, 0.05 * factor, block)))
    return rows


def cell_of(cells: list[Cell], mode: str, degree: int) -> Cell:
    (cell,) = [
        cell for cell in cells if (cell.mode, cell.degree, cell.case.params[0]["step_mode"]) == (mode, degree, "eager")
    ]
    return cell


def test_a_graph_in_a_steady_window_is_a_baseline_of_interleaved_groups() -> None:
    cells = make_cells(study(*several_blocks(1)))
    naive = cell_of(cells, "naive", 2)
    assert naive.values[BEST_SOLO] == {1: pytest.approx(0.35)}
    assert naive.values[ENERGY_VS_BEST_SOLO] == {1: pytest.approx(2.0)}
    assert naive.best_solo == "CUDA graph"
    assert cell_of(cells, "serial", 1).values[BEST_SOLO] == {1: pytest.approx(0.25)}


def test_the_window_of_the_group_is_preferred_and_fixed_work_is_no_rate() -> None:
    rows = [*several_blocks(1), interleaved(run("serial", 1, 2000.0, 0.04, own=GRAPH))]
    assert cell_of(make_cells(study(*rows)), "naive", 2).values[BEST_SOLO] == {1: pytest.approx(0.7)}
    work = [
        row if row.jobs[0].params == GRAPH else replace_window(row, WindowKind.WORK, "work, 2 epochs")
        for row in several_blocks(1)
    ]
    assert not any(BEST_SOLO in cell.values for cell in make_cells(study(*work)))


def test_several_runs_alone_in_one_step_mode_count_with_their_mean() -> None:
    twice = dataclasses.replace(run("serial", 1, 2000.0, 0.04, own=GRAPH), key="again", run_id="again")
    cells = make_cells(study(*several_blocks(1), twice))
    assert cell_of(cells, "naive", 2).values[BEST_SOLO] == {1: pytest.approx(1400 / 3000)}


def test_a_graph_that_runs_together_has_its_own_baseline_and_no_second_comparison() -> None:
    rows = [*several_blocks(5)]
    rows += [run("naive", 2, 2100.0, 0.04, block, GRAPH) for block in range(1, 6)]
    comparisons = compare_modes(make_cells(study(*rows)))
    pairs = [(v.against, v.quantity.value) for v in comparisons if v.case.params[0]["step_mode"] == "cuda_graph"]
    assert pairs == [("serial", "speed"), ("serial", "energy")]


def test_tables_and_sentences_have_both_gains() -> None:
    of = study(*several_blocks(5))
    cells = make_cells(of)
    best = winners(cells, compare_modes(cells))
    answer, energy_answer, *_ = write_answer(of, cells, best)
    interval = r"\(\d\.\d\d to \d\.\d\d\)"
    assert re.fullmatch(
        rf"For the same work, their energy is 0\.50 times {interval} that of serial and 1\.25 times {interval} that of "
        r"CUDA graph alone\.",
        energy_answer,
    )
    assert " 2 resnet26_cifar10 bs128 under MPS reach 3.00 times " in answer  # no label has the kind of window
    assert " and 0.75 times the speed of one job at a time in the best step mode (CUDA graph)" in answer
    (line,) = table_of("winners", cells).rows
    assert line[3] == pytest.approx(3.0) and line[6:10] == (pytest.approx(0.75), *line[7:9], "CUDA graph")
    table = make_group_table(cells, "energy", "Energy", ("energy_vs_alone_ratio", ENERGY_VS_BEST_SOLO))
    assert table.columns[-1] == "energy against the same work in the best step mode alone"
    assert "property of the GPU and the programs" in table.note


def legend_of(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_figure_of_gains_has_a_panel_against_the_best_step_mode() -> None:
    (sketch,) = curves.sketch_gains(make_cells(study(*several_blocks(5))), None)
    figure = sketch.paint()
    assert [axes.get_ylabel() for axes in figure.axes] == ["speed-up over\nserial", "speed-up over\nCUDA graph alone"]
    assert sorted(legend_of(figure)) == ["MPS", "alone, CUDA graph", "alone, eager", "ideal", "naive"]
    over_best = {line.get_label(): line.lines[0].get_ydata().tolist() for line in figure.axes[1].containers}
    assert over_best == {"naive": [pytest.approx(0.35)], "MPS": [pytest.approx(0.75)]}
    assert "property of the GPU and the programs" in sketch.caption


def test_the_figure_of_energy_has_the_level_of_the_best_step_mode() -> None:
    (sketch,) = bar_charts.sketch_metrics(make_cells(study(*several_blocks(5))), None)
    figure = sketch.paint()
    assert "alone, CUDA graph" in legend_of(figure)
    (level,) = [line for line in figure.axes[0].lines if line.get_label() == "alone, CUDA graph"]
    assert level.get_ydata()[0] == pytest.approx(0.04)


def test_points_and_bars_without_an_interval_are_hollow() -> None:
    rows = [row for row in several_blocks(5) if row.scenario != "mps" or row.block < 3]
    cells = make_cells(study(*rows))
    (sketch,) = curves.sketch_gains(cells, None)
    figure = sketch.paint()
    hollow = [line for line in figure.axes[0].lines if line.get_label() == NO_INTERVAL]
    assert [line.get_ydata().tolist() for line in hollow] == [[pytest.approx(3.0, rel=0.02)]]
    assert legend_of(figure)[-1] == NO_INTERVAL
    (sketch,) = bar_charts.sketch_metrics(cells, None)
    figure = sketch.paint()
    bars = {bar.get_label(): len(bar) for bar in figure.axes[0].containers if bar.get_label() == NO_INTERVAL}
    assert bars == {NO_INTERVAL: 1} and legend_of(figure)[-1] == NO_INTERVAL


def test_a_figure_says_which_speed_up_exceeds_the_number_of_jobs() -> None:
    cells = make_cells(study(*several_blocks(5)))
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
    mps = cell_of(cells, "MPS", 2)
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
            for row in several_blocks(5)
        ]

    whole = cell_of(make_cells(study(*keep())), "naive", 2)
    without_eager = cell_of(make_cells(study(*keep(("eager", 3)))), "naive", 2)
    assert 3 not in without_eager.values["speedup_vs_serial_ratio"]
    assert without_eager.values[BEST_SOLO] == whole.values[BEST_SOLO]
    # Without the fastest step mode, the best one of the block is unknown.
    without_graph = cell_of(make_cells(study(*keep(("cuda_graph", 3)))), "naive", 2)
    assert sorted(without_graph.values[BEST_SOLO]) == [1, 2, 4, 5]
