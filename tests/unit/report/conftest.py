"""Reports without PDFs, which take longer to draw than their SVGs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline.report.figures import drawing


@pytest.fixture(scope="module", autouse=True)
def _draw_no_pdf(request: pytest.FixtureRequest) -> Iterator[None]:
    """Write `%PDF` for the PDF of each figure; `test_figure_style.py` and `tests/flow` draw them."""
    save = drawing._save
    with pytest.MonkeyPatch.context() as patch:
        if not request.module.__name__.endswith("test_figure_style"):
            patch.setattr(drawing, "_save", lambda figure, kind: save(figure, kind) if kind == "svg" else b"%PDF")
        yield
