"""What is used of other libraries beyond their documented interfaces still has the effect that it is used for."""

from __future__ import annotations

import importlib
import io
import re
import sys
import zlib

import matplotlib
import pynvml
import pytest
from fontTools.ttLib import TTFont
from matplotlib.figure import Figure

from pipeline.base import library_internals


class _Library:
    """Counts the devices of a machine, for `nvmlDeviceGetCount`."""

    def __init__(self, count: int) -> None:
        self.nvmlDeviceGetCount_v2 = lambda pointer: setattr(pointer._obj, "value", count) or 0


def test_nvml_is_answered_by_another_library_and_then_as_before():
    with library_internals.nvml_answered_by(_Library(3)):
        assert pynvml.nvmlDeviceGetCount() == 3
        with library_internals.nvml_answered_by(_Library(5)):
            assert pynvml.nvmlDeviceGetCount() == 5
        assert pynvml.nvmlDeviceGetCount() == 3


def test_modules_are_hidden_or_empty_while_others_are_imported():
    unused = ("this", "antigravity", "wsgiref.validate", "wsgiref.validate.below")
    assert not set(unused) & set(sys.modules)
    with library_internals.without(["this", "pytest"], stand_ins=["antigravity", "wsgiref.validate", "re"]):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("this")
        assert issubclass(importlib.import_module("antigravity").Flight, Exception)
        assert not hasattr(importlib.import_module("wsgiref.validate"), "__all__")
        assert importlib.import_module("wsgiref.validate.below").Any is not None
        assert importlib.import_module("pytest") is pytest  # in use already
        assert importlib.import_module("re") is re
    assert not set(unused) & set(sys.modules)
    assert not hasattr(importlib.import_module("wsgiref"), "validate")
    assert callable(importlib.import_module("wsgiref.validate").validator)


def fonts_of(pdf: bytes) -> list[TTFont]:
    """The fonts that lie in a PDF."""
    streams = [zlib.decompress(each) for each in re.findall(rb"FlateDecode.*?stream\n(.*?)\nendstream", pdf, re.DOTALL)]
    return [TTFont(io.BytesIO(each)) for each in streams if each.startswith(b"\0\1\0\0") and b"glyf" in each[:512]]


def test_fonts_of_a_pdf_go_without_what_lays_text_out():
    def drawn() -> TTFont:
        figure = Figure()
        figure.text(0.5, 0.5, "Speed-up")
        with matplotlib.rc_context({"pdf.fonttype": 42, "font.sans-serif": ["DejaVu Sans"]}):
            figure.savefig(target := io.BytesIO(), format="pdf")
        (font,) = fonts_of(target.getvalue())
        return font

    whole = drawn()
    with library_internals.fonts_without_layout():
        bare = drawn()
    assert not {"GDEF", "GPOS", "GSUB"} & set(bare.keys())
    shapes = bare["glyf"].glyphs
    assert len(shapes) > len(set("Speed-up")) - 1
    assert all(shapes[name] == whole["glyf"].glyphs[name] for name in shapes)
    assert "GSUB" in drawn()  # as before
