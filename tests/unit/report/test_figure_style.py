"""The style of figures: readable in a journal's column, without colours, and small as files."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from pipeline.base.domain.sharing_modes import MODES, SharingMode, modes_of
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.figures import bar_charts, curves, drawing
from pipeline.report.figures.catalogue import draw_figures
from pipeline.report.figures.drawing import COLUMN, LEAST_FONT, STAMP, WIDEST, Drawn, has_overlaps, make_bar_style
from tests.support.report_rows import collocation_study, copies, study

ALL_MODES = [*MODES.values(), *(modes_of(["a", "b", "c"])[name] for name in "abc")]
_LEAST_CONTRAST = 0.1


def luminance(mode: SharingMode) -> float:
    """Return the brightness of a mode's colour in grey print, from 0 to 1 (ITU-R 601, as Pillow converts)."""
    red, green, blue = (int(mode.colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue


def test_every_mode_has_its_colour_and_is_told_apart_in_grey() -> None:
    assert len({mode.colour for mode in ALL_MODES}) == len({mode.marker for mode in ALL_MODES}) == len(ALL_MODES)
    for one, other in itertools.combinations(ALL_MODES, 2):
        contrast = abs(luminance(one) - luminance(other))
        assert one.hatch != other.hatch or contrast >= _LEAST_CONTRAST, (one.label, other.label, contrast)
    styles = [(mode, make_bar_style(mode)) for mode in ALL_MODES]
    assert all((style["hatch"] or "") == mode.hatch for mode, style in styles)


@pytest.fixture(scope="module")
def figures() -> list[Drawn]:
    of = study(*collocation_study(1))
    return draw_figures(of, make_cells(of), None, has_columns=True)


def widths(pdf: bytes) -> set[float]:
    return {round(float(width) / 72, 2) for width in re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ", pdf)}


@pytest.mark.slow
def test_figures_have_the_width_of_a_text_or_of_a_column_and_embed_their_fonts(figures: list[Drawn]) -> None:
    for figure in figures:
        assert widths(figure.pdf) == {WIDEST} and widths(figure.column_pdf) == {COLUMN}
        for pdf in (figure.pdf, figure.column_pdf):
            assert pdf.startswith(b"%PDF") and b"CreationDate" not in pdf
            assert b"/Subtype /Type0" in pdf and b"/FontFile2" in pdf and b"/Type3" not in pdf
            assert len(pdf) < 60_000
        assert len(figure.svg) < 150_000
    (of_gain,) = [figure for figure in figures if figure.name == "gain"]
    num_panels = len([part for part in of_gain.parts if part.height > 72])
    assert of_gain.column_pdf.count(b"/MediaBox") == num_panels > 1


@pytest.mark.slow
def test_no_text_is_smaller_than_journals_want(figures: list[Drawn]) -> None:
    for figure in figures:
        sizes = {float(size) for size in re.findall(r"font-size: ([\d.]+)px", figure.svg)}
        assert sizes and min(sizes) >= LEAST_FONT, figure.name


def draw_gain(**options: Any) -> Drawn:
    cells = make_cells(study(*(copies(m, n, 10.0, b) for b in (1, 2, 3) for m, n in (("serial", 1), ("naive", 2)))))
    (sketch,) = curves.sketch_gains(cells, None)
    return drawing.draw(sketch, "gain", **{"is_simulated": False, "has_columns": True, **options})


@pytest.mark.slow
def test_a_single_panel_is_one_page_in_column_width_with_the_stamp() -> None:
    assert draw_gain().column_pdf.count(b"/MediaBox") == 1
    assert draw_gain(has_columns=False).column_pdf == b""
    simulated = draw_gain(is_simulated=True)
    assert STAMP in simulated.svg and len(simulated.column_pdf) > len(draw_gain().column_pdf)
    again = draw_gain(is_simulated=True)
    assert (simulated.pdf, simulated.column_pdf) == (again.pdf, again.column_pdf)


@pytest.mark.slow
def test_panels_whose_labels_would_overlap_in_a_column_are_left_out() -> None:
    energies = {"energy_per_sample_j": 0.1}
    rows = [copies("serial", 1, 10.0, metrics=energies)]
    rows += [copies("mig", degree, 10.0, metrics=energies) for degree in range(2, 42)]
    (sketch,) = bar_charts.sketch_metrics(make_cells(study(*rows)), None)
    assert drawing.draw(sketch, "energy", is_simulated=False, has_columns=True).column_pdf == b""


def test_overlapping_labels_are_found() -> None:
    figure = drawing.new_figure(COLUMN, 2)
    axes = figure.subplots()
    axes.set_xticks([0, 0.5, 1], ["one", "two", "three"])
    figure.draw_without_rendering()
    assert not has_overlaps(figure)
    axes.set_xticks([0, 0.5, 1], [8 * "long", 8 * "long", ""])
    figure.draw_without_rendering()
    assert has_overlaps(figure)


def test_a_panel_without_space_for_its_axes_is_left_out() -> None:
    figure = drawing.new_figure(COLUMN, 2)
    figure.subplots().set_ylabel("two inches of height are too few\n" * 40)
    assert not drawing._fits(figure)
