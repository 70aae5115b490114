"""The figures of a paper's form: mixes by work, modes in the paper's order, one case over time in every mode."""

from __future__ import annotations

import dataclasses
import itertools

import matplotlib as mpl
import pytest

from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import MIG, MPS, NAIVE
from pipeline.base.domain.window import WindowKind
from pipeline.report.evaluate.cells import Cell, list_cases, make_cells
from pipeline.report.figures import bar_charts, bars, drawing, over_time
from pipeline.report.read.group_series import GroupSeries, JobSpan, Line, choose_other_modes
from pipeline.report.read.study_records import Row
from tests.support.report_rows import collocation_study, copies, job, params, row, study, table_of

NAMES = {"S": "robroek_small", "M": "robroek_medium", "L": "robroek_large"}
ALL_MIXES = ["LMSSS", "LMSS", "LMM", "LMS", "LM", "LSSS", "LSS", "LS", "MMMS", "MMSS", "MMS", "MSSS", "MSS", "MS"]
BY_WORK = [
    "M+S",
    "M+2S",
    "M+3S",
    "2M+S",
    "2M+2S",
    "3M+S",
    "L+S",
    "L+2S",
    "L+3S",
    "L+M",
    "L+M+S",
    "L+M+2S",
    "L+M+3S",
    "L+2M",
]
FITS = 7


def mix_rows(sizes: str) -> list[Row]:
    """Return a mix in sequence, naive, under MPS, and on MIG with L on 4g and on 3g; without a layout it is skipped."""
    rows = []
    for scenario, large in [("serial", ""), ("naive", ""), ("mps", ""), ("mig", "4g"), ("mig", "3g")][
        : 4 + ("L" in sizes)
    ]:
        profile_of = {"S": "1g", "M": "2g", "L": large or "4g"}
        fits = sum(int(profile_of[size][0]) for size in sizes) <= FITS
        places = [
            {"mig_profile": f"{profile_of[size]}.10gb", "gi_id": str(index)} if large and fits else {}
            for index, size in enumerate(sizes)
        ]
        jobs = tuple(
            job(index, params(NAMES[size], source="synthetic_files"), None, size=size, place=place)
            for index, (size, place) in enumerate(zip(sizes, places, strict=True))
        )
        is_skipped = bool(large) and not fits
        rows.append(
            row(
                scenario,
                jobs,
                result=Result.SKIPPED if is_skipped else Result.OK,
                window=WindowKind.WORK,
                options={"profile": "auto", "size_profile": profile_of} if large else {},
                metrics={"makespan_s": 1000.0 * len(sizes)},
            )
        )
    return rows


@pytest.fixture(scope="module")
def mix_cells() -> list[Cell]:
    return make_cells(study(*itertools.chain(*map(mix_rows, ALL_MIXES))))


def test_mixes_are_in_the_order_of_their_work(mix_cells):
    assert [case.label for case in list_cases(mix_cells)] == BY_WORK


def test_a_layout_that_does_not_fit_is_named_by_what_was_requested(mix_cells):
    modes = {cell.mode: cell.finding for cell in mix_cells if cell.case.label == "L+2M" and cell.sharing == MIG}
    assert modes == {"MIG 3g+2g+2g": Result.OK, "MIG 4g+2g+2g": Result.SKIPPED}


def test_bars_of_mixes_name_the_instance_in_which_their_layouts_differ(mix_cells):
    shown = bars.group_by_case(bar_charts._shorten_details(mix_cells), bars.make_bar)
    by_label = {label: [bar.detail for bar in of_mix if bar.sharing == MIG] for label, of_mix in shown}
    assert by_label["L+M+2S"] == ["4g", "3g"] and by_label["M+2S"] == [""]


@pytest.mark.slow
@pytest.mark.parametrize("width", [drawing.WIDEST, 3.3])
def test_labels_of_fourteen_mixes_do_not_collide(mix_cells, width, monkeypatch):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    monkeypatch.setattr(bar_charts, "WIDEST", width)
    (sketch,) = bar_charts.sketch_mixes(mix_cells, None)
    with mpl.rc_context(drawing._STYLE):
        figure = sketch.paint()
        figure.get_layout_engine().execute(figure)
        renderer = FigureCanvasAgg(figure).get_renderer()
        for axes in figure.axes:
            labels = [label for label in axes.xaxis.get_ticklabels(which="both") if label.get_text()]
            boxes = [label.get_window_extent(renderer).padded(-0.5) for label in labels]
            assert len(boxes) >= 6
            assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_bars_are_in_the_order_of_the_paper():
    def on(profile: str, degree: int) -> Row:
        jobs = tuple(job(i, params(), 9.0, place={"mig_profile": profile, "gi_id": str(i)}) for i in range(degree))
        return row("mig", jobs, options={"profile": profile.partition(".")[0]})

    rows = [on("4g.20gb", 1), on("7g.40gb", 1), *(copies(mode, 1, 9.0) for mode in ("mps", "naive", "serial"))]
    ((label, shown),) = bars.group_by_degree(make_cells(study(*rows)), bars.make_bar)
    assert label == "1 job"
    assert [f"{bar.sharing.label} {bar.detail}".strip() for bar in shown] == [
        *("serial", "naive", "MPS", "MIG 7g.40gb", "MIG 4g.20gb")
    ]


def series(sharing, end_s: float, instances: tuple[str, ...] = ("",), gract: float = 0.5) -> GroupSeries:
    times = (0.0, 1.0, end_s)
    return GroupSeries(
        name=f"{sharing.name}-M+S",
        mode=sharing.label,
        sharing=sharing,
        block=1,
        activity=tuple(
            Line(label="GRACT", instance=name, t_s=times, values=(gract / (number + 1),) * 3)
            for number, name in enumerate(instances)
        ),
        memory_mib=(Line(label="memory in use", t_s=times, values=(900.0, 900.0, 400.0)),),
        spans=(
            JobSpan(label="0 M", start_s=0.0, end_s=end_s, result="ok"),
            JobSpan(label="1 S", start_s=0.0, end_s=1.0, result="ok"),
        ),
        thinned_to=0,
    )


def test_one_figure_has_the_case_in_every_mode_over_time():
    modes = series(NAIVE, 12.0), series(MIG, 20.0, ("2g.10gb (1)", "1g.5gb (2)"), 0.9)
    both, alone = over_time.sketches([], dataclasses.replace(series(MPS, 10.0), other_modes=modes))
    assert (both.title, alone.title) == (
        "Utilisation and memory over time in 3 sharing modes",
        "Utilisation and memory over time: mps-M+S",
    )
    assert "weighted by compute slices" in both.caption and "naive-M+S, mps-M+S, mig-M+S" in both.caption
    activity, memory = both.paint().axes
    assert activity.get_xlim() == (-2.0, 22.0) and activity.get_ylabel() == "GRACT"
    lines = [line for line in activity.lines if len(line.get_xdata()) == 3]
    assert [line.get_color() for line in lines] == [mode.colour for mode in (NAIVE, MPS, MIG)]
    assert len({line.get_linestyle() for line in lines}) == 3
    assert lines[-1].get_ydata()[0] == pytest.approx((2 * 0.9 + 1 * 0.45) / 3)
    ends = [line for line in memory.lines if len(line.get_xdata()) == 1]
    assert [(*line.get_xdata(), *line.get_ydata()) for line in ends] == [(1.0, 900.0)] * 3


def test_the_other_modes_of_a_group_have_its_jobs_and_if_possible_its_block():
    found = study(*collocation_study(2))
    chosen = next(row for row in found.rows if row.block == 2 and (row.scenario, row.name) == ("mps", "mps-M+S+S"))
    assert [(row.name, row.block) for row in choose_other_modes(found, chosen)] == [("naive-M+S+S", 2)]
    without = dataclasses.replace(found, rows=tuple(r for r in found.rows if (r.block, r.scenario) != (2, "naive")))
    assert [(row.name, row.block) for row in choose_other_modes(without, chosen)] == [("naive-M+S+S", 1)]


def test_a_table_has_model_data_set_and_size_of_each_workload_once():
    large = params("robroek_large", model="resnet152", **{"job.parameters": 60_192_808})
    small = params("robroek_small", model="resnet26", **{"job.parameters": 15_995_176})
    script = {"workload": "script"}
    table = table_of("workloads", study(*(copies("naive", 2, 9.0, own=own) for own in (large, small, script))))
    assert table.columns == ("workload", "model", "data set", "batch size", "parameters", "samples per epoch")
    assert [values[:2] for values in table.rows] == [
        ("robroek_small bs128", "resnet26"),
        ("robroek_large bs128", "resnet152"),
    ]
    assert table.rows[0][3:] == (128, 15_995_176, 49_920)
