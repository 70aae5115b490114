"""The figures of a report: their style, those of the papers, and those against a swept parameter."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from typing import Any

import matplotlib as mpl
import pytest

from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import MIG, MODES, MPS, NAIVE, SharingMode, modes_of
from pipeline.base.domain.window import WindowKind
from pipeline.report.evaluate.cells import Cell, list_cases, make_cells
from pipeline.report.figures import bar_charts, curves, drawing, over_time, parameters
from pipeline.report.figures.catalogue import draw_figures
from pipeline.report.figures.drawing import COLUMN, LEAST_FONT, STAMP, WIDEST, Drawn, has_overlaps, make_bar_style
from pipeline.report.read.group_series import GroupSeries, JobSpan, Line, choose_other_modes
from pipeline.report.read.study_records import Row
from tests.support.report_rows import collocation_study, copies, job, params, row, study, table_of

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
    shown = bar_charts.group_by_case(bar_charts._shorten_details(mix_cells), bar_charts.make_bar)
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
    def make_mig_row(profile: str, degree: int) -> Row:
        jobs = tuple(job(i, params(), 9.0, place={"mig_profile": profile, "gi_id": str(i)}) for i in range(degree))
        return row("mig", jobs, options={"profile": profile.partition(".")[0]})

    rows = [
        make_mig_row("4g.20gb", 1),
        make_mig_row("7g.40gb", 1),
        *(copies(mode, 1, 9.0) for mode in ("mps", "naive", "serial")),
    ]
    ((label, shown),) = bar_charts.group_by_degree(make_cells(study(*rows)), bar_charts.make_bar)
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


def test_bars_of_trials_have_the_words_that_differ():
    words = "train_timm --model resnetv2_50 --epochs 20"
    labels = [f"{number} {words} --lr 0.1 --seed {number + 1}" for number in range(3)]
    spans = tuple(JobSpan(label=label, start_s=0.0, end_s=1.0, result="ok") for label in labels)
    (sketch,) = over_time.sketches([], dataclasses.replace(series(MPS, 10.0), spans=spans))
    bars = sketch.paint().axes[-1]
    assert [label.get_text() for label in bars.get_yticklabels()] == ["0 --seed 1", "1 --seed 2", "2 --seed 3"]


def test_the_other_modes_of_a_group_have_its_jobs_and_if_possible_its_block():
    full_study = study(*collocation_study(2))
    chosen = next(row for row in full_study.rows if row.block == 2 and (row.scenario, row.name) == ("mps", "mps-M+S+S"))
    assert [(row.name, row.block) for row in choose_other_modes(full_study, chosen)] == [("naive-M+S+S", 2)]
    without = dataclasses.replace(
        full_study, rows=tuple(r for r in full_study.rows if (r.block, r.scenario) != (2, "naive"))
    )
    assert [(row.name, row.block) for row in choose_other_modes(without, chosen)] == [("naive-M+S+S", 1)]


def test_a_table_has_model_data_set_and_size_of_each_workload_once():
    large = params("robroek_large", model="resnet152", **{"job.parameters": 60_192_808})
    small = params("robroek_small", model="resnet26", **{"job.parameters": 15_995_176})
    script = {"workload": "script"}
    table = table_of(
        "workloads", study(*(copies("naive", 2, 9.0, job_params=job_params) for job_params in (large, small, script)))
    )
    assert table.columns == ("workload", "model", "data set", "batch size", "parameters", "samples per epoch")
    assert [values[:2] for values in table.rows] == [
        ("robroek_small bs128", "resnet26"),
        ("robroek_large bs128", "resnet152"),
    ]
    assert table.rows[0][3:] == (128, 15_995_176, 49_920)


SERVED = "throughput_total_requests_per_s"


def sketches(*rows: Any) -> dict[str, Any]:
    return {sketch.name: sketch for sketch in parameters.sketch_parameters(make_cells(study(*rows)), None)}


def panels(sketch: Any) -> dict[str, Any]:
    """The panels of a figure by their titles, and the words of its legend."""
    figure = sketch.paint()
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    return {axes.get_title().replace("\n", " "): axes for axes in figure.axes} | {"legend": legend}


def lines(axes: Any) -> list[list[tuple[float, float]]]:
    return [list(map(tuple, line.lines[0].get_xydata().tolist())) for line in axes.containers]


def test_cases_that_differ_in_one_number_are_drawn_against_it_a_line_a_mode_and_degree() -> None:
    rows = []
    for batch, rate in ((32, 100.0), (64, 150.0), (512, 200.0)):
        job_params = params(batch_size=batch)
        rows.append(copies("serial", 1, rate, job_params=job_params))
        rows.append(copies("mps", 2, 0.8 * rate, job_params=job_params, metrics={"memory_peak_mib": 10.0 * batch}))
        rows.append(copies("naive", 2, rate, job_params=job_params, result=Result.OK if batch < 512 else Result.OOM))
    named_sketches = sketches(*rows)
    assert list(named_sketches) == ["against batch size resnet26_cifar10"]
    drawn = panels(named_sketches["against batch size resnet26_cifar10"])
    assert drawn["legend"] == ["serial, 1 job", "naive, 2 jobs", "MPS, 2 jobs", "no interval"]
    assert lines(drawn["throughput of all jobs"]) == [
        [(32, 100), (64, 150), (512, 200)],
        [(32, 200), (64, 300)],
        [(32, 160), (64, 240), (512, 320)],
    ]
    assert "512: naive oom" in drawn["throughput of all jobs"].get_xlabel()
    assert lines(drawn["peak memory of the GPU"]) == [[(32, 320), (64, 640), (512, 5120)]]


def test_values_that_grow_far_have_a_logarithmic_axis_and_labels_that_do_not_touch() -> None:
    sizes = (32, 64, 96, 128, 256, 512)
    degrees = (("serial", 1), ("naive", 4), ("mps", 2), ("mps", 4))
    rows = [
        copies(mode, degree, 9.0, job_params=params(batch_size=size), metrics={"memory_peak_mib": 9.0})
        for size in sizes
        for mode, degree in degrees
    ]
    figure = sketches(*rows)["against batch size resnet26_cifar10"].paint()
    (axes, *_) = figure.axes
    assert axes.get_xscale() == "log" and list(axes.get_xticks()) == list(sizes)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["32", "64", "96", "", "256", "512"]
    # A style says how many jobs, in each mode: 1; 4; 2 and 4.
    assert [line.lines[0].get_linestyle() for line in axes.containers] == ["-", "-.", "--", "-."]


def test_two_values_or_two_params_that_change_at_once_make_no_line() -> None:
    two = [copies("serial", 1, 1.0, job_params=params(batch_size=batch)) for batch in (32, 64)]
    assert sketches(*two) == {}
    both = [copies("serial", 1, 1.0, job_params=params(batch_size=n, image_px=n)) for n in (32, 64, 128)]
    assert sketches(*both) == {}


def test_points_of_many_modes_at_few_values_make_no_figure() -> None:
    rows = [copies("serial", 1, 1.0, job_params=params(batch_size=batch)) for batch in (4, 12, 24, 48)]
    rows += [copies(mode, 1, 1.0, job_params=params(batch_size=batch)) for mode, batch in (("mps", 4), ("naive", 12))]
    assert sketches(*rows) == {}
    assert list(sketches(*rows[:4])) == ["against batch size resnet26_cifar10"]


def test_two_swept_params_are_each_drawn_for_every_value_of_the_other() -> None:
    grid = [(batch, tokens) for batch in (1, 2, 4) for tokens in (32, 64, 128)]
    rows = [
        copies("serial", 1, float(batch * tokens), job_params=params("bert", batch_size=batch, sequence_tokens=tokens))
        for batch, tokens in grid
    ]
    assert list(sketches(*rows)) == [
        *(f"against batch size bert sequence_tokens={tokens}" for tokens in (32, 64, 128)),
        *(f"against sequence tokens bert batch_size={batch}" for batch in (1, 2, 4)),
    ]


def test_a_flag_of_a_script_is_a_parameter_too() -> None:
    rows = [
        copies("serial", 1, 1.0, job_params={"workload": "train", "args": f"--lr {lr}"}) for lr in ("0.1", "0.2", "0.4")
    ]
    assert list(sketches(*rows)) == ["against lr train"]


def test_latency_is_drawn_against_the_rate_of_a_service_also_beside_a_training() -> None:
    rows = []
    for rate in (25, 50, 75):
        service_params = params("infer", work_unit="requests", given_rate="true", rate_per_s=rate)
        figures = {f"latency_{name}_worst_ms": value * rate for name, value in (("mean", 1), ("p50", 0.5), ("p99", 3))}
        jobs = (
            job(0, params("train"), 100.0, size="T"),
            job(
                1, service_params, None, size="I", metrics={"latency_mean_ms": 1.0 * rate, "latency_std_ms": 0.5 * rate}
            ),
        )
        rows.append(row("mps", jobs, metrics=figures))
    named_sketches = sketches(*rows)
    assert list(named_sketches) == ["against rate per s infer + train"]
    drawn = panels(named_sketches["against rate per s infer + train"])
    latency = drawn["mean latency of the slowest job"]
    assert lines(latency) == [[(25, 25), (50, 50), (75, 75)]]
    assert latency.get_xscale() == "linear"
    assert lines(drawn["p99 latency of the slowest job"]) == [[(25, 75), (50, 150), (75, 225)]]
    assert lines(drawn["standard deviation of the latency of the slowest job"]) == [[(25, 12.5), (50, 25), (75, 37.5)]]
    assert not any("p95" in title for title in drawn)


def make_server_row(mode: str, degree: int, clients: int, per: str = "group", **figures: float) -> Row:
    server = params("vllm", work_unit="requests", outstanding=clients, outstanding_per=per, ttft_ms="450.0")
    jobs = tuple(job(index, server, None, metrics={"latency_mean_ms": 9.0}) for index in range(degree))
    return row(mode, jobs, metrics={"latency_mean_worst_ms": 9.0, "first_token_mean_all_ms": 5.0, **figures})


@pytest.mark.parametrize(("per", "title"), [("group", "clients of all jobs together"), ("job", "clients of each job")])
def test_tokens_and_first_tokens_of_copies_are_drawn_against_their_clients(per: str, title: str) -> None:
    name, modes = "first_token_p99_all_ms", (("serial", 1), ("naive", 2), ("mps", 2))
    rows = [
        make_server_row(mode, degree, clients, per, **{name: 7.0 * clients, "throughput_total_tokens_per_s": tokens})
        for mode, degree in modes
        for clients, tokens in ((12, 300.0), (24, 500.0), (48, 550.0))
    ]
    (sketch,) = sketches(*rows).values()
    drawn = panels(sketch)
    assert drawn["legend"] == ["serial, 1 job", "naive, 2 jobs", "MPS, 2 jobs", "no interval"]
    assert lines(drawn["throughput of all jobs"]) == [[(12, 300), (24, 500), (48, 550)]] * 3
    assert drawn["throughput of all jobs"].get_ylabel() == "tokens/s"
    tail = drawn["p99 of the time to the first token"]
    assert lines(tail) == [[(12, 84), (24, 168), (48, 336)]] * 3
    assert tail.get_xlabel() == title
    assert [line.get_ydata()[0] for line in tail.lines if line.get_linestyle() == ":"] == [450.0]


def test_clients_of_each_job_and_of_all_jobs_are_two_figures() -> None:
    rows = [make_server_row("mps", 2, clients, per) for per in ("job", "group") for clients in (6, 12, 24)]
    rows = [dataclasses.replace(row, metrics={**row.metrics, SERVED: 9.0}) for row in rows]
    assert len(sketches(*rows)) == 2


@pytest.mark.parametrize(("rates", "scale"), [((25, 50, 100, 200), "linear"), ((10, 100, 1000), "log")])
def test_an_axis_of_rates_is_linear_unless_they_differ_much(rates: tuple[int, ...], scale: str) -> None:
    rows = [
        row(
            "naive",
            (job(0, params("infer", work_unit="requests", rate_per_s=rate), None),),
            metrics={SERVED: 1.0 * rate},
        )
        for rate in rates
    ]
    (sketch,) = sketches(*rows).values()
    assert {axes.get_xscale() for axes in sketch.paint().axes} == {scale}


def test_what_is_missing_is_told_by_reason_below_the_axis() -> None:
    rows = []
    for rate, (scenario, degree) in itertools.product((25, 50, 75), (("serial", 1), ("naive", 2), ("naive", 4))):
        service_params = params("infer", work_unit="requests", given_rate="true", rate_per_s=f"{rate}.0")
        jobs = [job(index, service_params, None, metrics={"latency_mean_ms": 1.0 * rate}) for index in range(degree)]
        rows.append(row(scenario, tuple(jobs), metrics={"latency_mean_worst_ms": 1.0 * degree * rate}))
    (sketch,) = sketches(*rows).values()
    drawn = panels(sketch)["mean latency of the slowest job"]
    assert lines(drawn) == [[(rate, degree * rate) for rate in (25, 50, 75)] for degree in (1, 2, 4)]
    ends = [
        dataclasses.replace(group_row, result=Result.OOM, metrics={}) if group_row.degree > 1 else group_row
        for group_row in rows[-3:]
    ]
    (sketch,) = sketches(*rows[:-3], *ends).values()
    assert panels(sketch)["mean latency of the slowest job"].get_xlabel().endswith("(requests/s)\n75: naive oom")


def test_no_latency_is_drawn_of_a_rate_that_was_not_sustained_in_every_block() -> None:
    def make_service_row(rate: int, block: int, sustained: float = 1.0) -> Any:
        service_params = params("infer", work_unit="requests", given_rate="true", rate_per_s=rate)
        figures = {"throughput_total_requests_per_s": 1.0 * rate, "rate_sustained_worst_ratio": sustained}
        figures |= {"latency_mean_worst_ms": 1.0 * rate} if sustained == 1 else {}
        return row("naive", (job(0, service_params, None),), block, metrics=figures)

    rates = (25, 50, 75, 100)
    rows = [
        make_service_row(rate, block, 0.9 if (rate, block) == (75, 2) else 1.0) for rate in rates for block in (1, 2)
    ]
    drawn = panels(sketches(*rows)["against rate per s infer"])
    (line,) = lines(drawn["mean latency of the slowest job"])
    assert line[:2] == [(25, 25), (50, 50)] and line[3:] == [(100, 100)]
    assert math.isnan(line[2][1]), "no line through a rate that was not sustained"
    assert drawn["mean latency of the slowest job"].get_xlabel().endswith("75: naive rate not sustained")
    throughput_axes = [axes for title, axes in drawn.items() if title.startswith("throughput")]
    assert [len(line) for axes in throughput_axes for line in lines(axes)] == [4]


def test_a_line_ends_at_a_value_that_its_mode_was_not_measured_at() -> None:
    rows = [copies("serial", 1, 1.0 * batch, job_params=params(batch_size=batch)) for batch in (16, 32, 64, 128)]
    rows += [copies("naive", 1, 2.0 * batch, job_params=params(batch_size=batch)) for batch in (16, 64, 128)]
    (sketch,) = sketches(*rows).values()
    complete, broken = lines(panels(sketch)["throughput of all jobs"])
    assert complete == [(16, 16), (32, 32), (64, 64), (128, 128)]
    assert (broken[0], *broken[2:]) == ((16, 32), (64, 128), (128, 256)) and math.isnan(broken[1][1])


def test_a_percentile_of_some_windows_is_drawn_with_a_lower_one_that_all_have() -> None:
    rows = []
    for batch in (8, 16, 32):
        service_params = params("infer", work_unit="requests", batch_size=batch)
        figures = {
            f"latency_{name}_worst_ms": 1.0 * batch for name in ("mean", "p95", *(["p99"] if batch < 32 else []))
        }
        rows.append(
            row("mps", (job(0, service_params, None, metrics={"latency_mean_ms": 1.0 * batch}),), metrics=figures)
        )
    (sketch,) = sketches(*rows).values()
    drawn = panels(sketch)
    assert lines(drawn["p99 latency of the slowest job"]) == [[(8, 8), (16, 16)]]
    assert drawn["p99 latency of the slowest job"].get_xlabel().endswith("32: MPS too few requests")
    assert lines(drawn["p95 latency of the slowest job"]) == [[(8, 8), (16, 16), (32, 32)]]


def test_the_step_time_of_a_training_is_drawn() -> None:
    rows = []
    for batch in (8, 16, 32):
        job_params = params(batch_size=batch)
        jobs = [
            job(n, job_params, 100.0, metrics={"throughput_samples_per_s": 1.0, "step_time_p50_ms": n + batch})
            for n in (0, 1)
        ]
        rows.append(row("naive", tuple(jobs)))
    (sketch,) = sketches(*rows).values()
    assert lines(panels(sketch)["median step time of the slowest job"]) == [[(8, 9), (16, 17), (32, 33)]]


def test_lines_of_several_profiles_differ_in_colour_marker_and_dashes() -> None:
    rows = [copies("serial", 1, 9.0, job_params=params(batch_size=batch)) for batch in (16, 32, 64)]
    for batch, profile in itertools.product((16, 32, 64), ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")):
        jobs = (job(0, params(batch_size=batch), 1.0, place={"mig_profile": profile}),)
        rows.append(row("mig", jobs, options={"profile": profile}, profiles=(profile,), detail=profile))
    sketch = sketches(*rows)["against batch size resnet26_cifar10"]
    (axes, *_) = sketch.paint().axes
    drawn = [line.lines[0] for line in axes.containers]
    assert len(drawn) == 6
    assert len({line.get_color() for line in drawn}) == len({line.get_marker() for line in drawn}) == 6
    shades = [sum(int(line.get_color()[at : at + 2], 16) for at in (1, 3, 5)) for line in drawn[1:]]
    assert shades == sorted(shades, reverse=True), "the more slices, the darker"


def test_the_models_of_services_are_an_axis_without_lines() -> None:
    rows = []
    for number, name in enumerate(("infer_resnet18", "infer_resnet101", "infer_bert_base")):
        service_params = params(name, work_unit="requests", model=name, image_px=number, batch_size=8)
        figures = {"throughput_total_requests_per_s": 9.0 - number, "latency_mean_worst_ms": 1.0 + number}
        for scenario in ("naive", "mps"):
            rows.append(row(scenario, tuple(job(n, service_params, None) for n in range(4)), metrics=figures))
    named_sketches = sketches(*rows)
    assert list(named_sketches) == ["against model services"]
    drawn = panels(named_sketches["against model services"])
    axes = drawn["mean latency of the slowest job"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["bert_base", "resnet18", "resnet101"]
    assert [[latency for _, latency in line] for line in lines(axes)] == [[3, 1, 2], [3, 1, 2]]
    assert {line.lines[0].get_linestyle() for line in axes.containers} == {"None"}
    assert not sketches(*rows[:4]), "two models"


def make_instance_job(profile: str, rate: float) -> Any:
    figures = {"throughput_samples_per_s": rate, "gract_mean_ratio": rate / 100, "instance_memory_peak_mib": 900.0}
    return job(0, params(), None, metrics=figures, place={"mig_profile": profile, "gi_id": "1"})


def test_the_same_jobs_on_instances_of_several_profiles_are_drawn_against_the_profile() -> None:
    rows = [
        row("mig", (make_instance_job(profile, rate),), options={"profile": profile})
        for profile, rate in (("1g.10gb", 10.0), ("3g.40gb", 30.0), ("7g.80gb", 50.0))
    ]
    named_sketches = sketches(*rows)
    assert list(named_sketches) == ["against MIG profile resnet26_cifar10 bs128"]
    drawn = panels(named_sketches["against MIG profile resnet26_cifar10 bs128"])
    assert lines(drawn["GRACT of an instance"]) == [[(0, 0.1), (1, 0.3), (2, 0.5)]]
    assert lines(drawn["peak memory of an instance"]) == [[(0, 900), (1, 900), (2, 900)]]
    axes = drawn["throughput of all jobs"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1g.10gb", "3g.40gb", "7g.80gb"]
    assert lines(axes) == [[(0, 10), (1, 30), (2, 50)]]
