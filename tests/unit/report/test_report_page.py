"""The page and the figures of a report: whole, honest about what is missing, safe against hostile names."""

from __future__ import annotations

import dataclasses
import itertools
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import MODES, MPS, NAIVE, SERIAL
from pipeline.base.domain.window import WindowKind
from pipeline.report.evaluate.contrasts import Decision
from pipeline.report.evaluate.verdicts import describe_cases
from pipeline.report.figures import drawing, over_time
from pipeline.report.figures.drawing import STAMP
from pipeline.report.page.grid import BEST, OPEN, Entry, grids
from pipeline.report.page.key_findings import (
    count_unranked,
    describe_missing,
    describe_setup,
    summarize,
    write_answer,
)
from pipeline.report.page.page import Content, list_methods, list_provenance, make_content, render
from pipeline.report.read.group_series import GroupSeries, JobSpan, Line, choose_group
from pipeline.report.read.study_records import Row, Study
from tests.support.report_rows import collocation_study, copies, job, params, row, study

VOID = {"meta", "br", "link", "img", "hr"}
TIMELINE = GroupSeries(
    name="mps-M+2S",
    sharing=MPS,
    block=1,
    activity=(Line(label="GRACT", t_s=(0.0, 1.0), values=(0.9, 0.5)),),
    memory_mib=(Line(label="memory in use", t_s=(0.0, 1.0), values=(9000.0, 4000.0)),),
    spans=(
        JobSpan(label="0 M", start_s=0.0, end_s=9.0, result="ok"),
        JobSpan(label="1 S", start_s=0.0, end_s=4.0, result="oom"),
    ),
    thinned_to=0,
)


@pytest.fixture(scope="module")
def full_content() -> Content:
    return make_content(study(*collocation_study()), TIMELINE)


@pytest.fixture(scope="module")
def page(full_content: Content) -> str:
    return render(full_content)


class Checker(HTMLParser):
    """Every element is closed in its order; ids are unique; what the page loads is collected."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self._look(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self._look(tag, attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def _look(self, tag, attrs):
        assert tag != "script"
        for name, value in attrs:
            assert not name.startswith("on")
            if name == "id":
                self.ids.append(value)
            elif tag == "a" and name == "href":
                self.links.append(value)
            elif name in ("src", "href", "xlink:href"):
                self.loads.append(value)


def test_the_page_is_well_formed_and_needs_nothing_beside_it(page: str) -> None:
    checker = Checker(page)
    assert len(checker.ids) == len(set(checker.ids))
    assert all(target.startswith("#") for target in checker.loads + checker.links)
    assert {target[1:] for target in checker.loads + checker.links} <= set(checker.ids)
    assert "url(http" not in page and "@import" not in page


def test_the_page_has_every_figure_and_table_in_order(full_content: Content, page: str) -> None:
    assert [figure.name for figure in full_content.figures if f'id="figure-{figure.name}"' not in page] == []
    assert [t.name for t in full_content.tables if f'id="table-{t.name}"' not in page] == []
    names = [figure.name for figure in full_content.figures]
    assert {"mixes-total-time", "gain", "energy-per-sample", "over-time"} <= set(names)
    assert sum(name.startswith("workload-") for name in names) == 3
    assert page.index('id="figure-gain"') < page.index('<h2 id="verdicts">')
    order = ["verdicts", "mixes", "workloads", "energy", "tables", "paper", "methods", "provenance"]
    positions = [page.index(f'<h2 id="{section}">') for section in order]
    assert positions == sorted(positions)


def test_the_answer_says_who_won_by_how_much_and_what_is_not_ranked(full_content: Content) -> None:
    # MPS was made 6 % faster than serial for 3 of the medium jobs: too little to be proved in five blocks.
    won = "MPS is fastest in 8 of the 10 cases with several jobs and naive in 1; there is no verdict in 1"
    sentence = summarize(full_content.study, full_content.cells, full_content.winners)
    assert sentence == f"On one NVIDIA H100 80GB HBM3, {won} (5 complete blocks)."
    sentences = describe_cases(full_content.cells, full_content.verdicts, full_content.winners)
    assert len(sentences) == 10
    (small,) = [text for text in sentences if text.startswith("3 x resnet26_cifar10 bs128: MPS is fastest, 2.")]
    assert re.search(
        r"; energy 0\.33 x serial.*\. They take 0\.4\d of the time of one after another, each up to 1\.", small
    )
    assert "1 computed wrong results, 1 ran out of memory and 1 did not run" in count_unranked(full_content.cells)
    (reason,) = {cell.reason for cell in full_content.cells if cell.finding is Result.SKIPPED}
    assert count_unranked(full_content.cells).endswith(f"they are not ranked. MIG: {reason}.")
    assert describe_missing(full_content.study) == []


def test_the_page_says_what_all_jobs_share_and_which_gpus_the_blocks_are_of() -> None:
    def pool_gpus(*gpus: str) -> Study:
        pairs = [("serial", 1), ("naive", 2)]
        block_groups = [(block, gpu, pair) for block, gpu in enumerate(gpus, start=1) for pair in pairs]
        return study(*(copies(*pair, 9.0, block, gpu_uuid=gpu, boot_id=gpu) for block, gpu, pair in block_groups))

    first, second = "GPU-11111111-aaaa", "GPU-22222222-aaaa"
    assert describe_setup(pool_gpus(first, first)) == ["All jobs: default precision, eager, data on the GPU."]
    assert describe_setup(pool_gpus(first, first, first, second))[1] == (
        "The blocks ran on 2 GPUs: 1 to 3 on NVIDIA H100 80GB HBM3 GPU-11111111 "
        "and 4 on NVIDIA H100 80GB HBM3 GPU-22222222."
    )
    assert write_answer(pool_gpus(first, second), [], [])[0].startswith("On 2 NVIDIA H100 80GB HBM3, no group")


@pytest.mark.slow
def test_the_answer_counts_the_gpus_of_a_case_not_of_the_study() -> None:
    first, second = "GPU-11111111-aaaa", "GPU-22222222-aaaa"
    modes = [("serial", 1, 10.0), ("naive", 2, 8.0)]
    fp32, bf16 = params(precision="fp32"), params(precision="bf16")
    rows = [
        *(
            copies(m, d, r * (1 + b / 100), b, job_params=fp32, gpu_uuid=first)
            for b in range(1, 6)
            for m, d, r in modes
        ),
        *(copies(m, d, r, b, job_params=bf16, gpu_uuid=second) for b in (6, 7) for m, d, r in modes),
    ]
    content = make_content(study(*rows))
    assert "naive take 0.6" in summarize(content.study, content.cells, content.winners)
    fp32_sentence, bf16_sentence = sorted(describe_cases(content.cells, content.verdicts, content.winners))[::-1]
    assert "5 blocks)" in fp32_sentence and "(2 blocks)" in bf16_sentence


@pytest.mark.slow
def test_precisions_are_lines_and_rows_of_their_own() -> None:
    precision_rows = [
        copies(mode, degree, rate, block, job_params=params(precision=precision))
        for block in (1, 2)
        for precision in ("default", "bf16")
        for mode, degree, rate in (("serial", 1, 9.0), ("mps", 2, 8.0))
    ]
    content = make_content(study(*precision_rows))
    for precision in ("default precision", "bf16"):
        assert f">resnet26_cifar10 bs128 ({precision})<" in get_svg(content, "gain")
        assert sum(f"({precision})" in str(row[0]) for table in content.tables for row in table.rows) > 3


def test_every_comparison_is_in_a_folded_table_and_its_verdict_with_it(full_content: Content, page: str) -> None:
    ((compared, without),) = re.findall(
        r"<details><summary>All (\d+) comparisons, and (\d+) groups without a figure</summary>", page
    )
    assert int(compared) == sum(verdict.ratio is not None for verdict in full_content.verdicts) >= 30
    assert int(compared) + int(without) == len(full_content.verdicts)
    table = page[page.index('id="table-verdicts"') :]
    body = table[: table.index("</section>")]
    for decision in (Decision.BETTER, Decision.WORSE, Decision.NO_VERDICT, Decision.NOT_RANKED):
        number = sum(verdict.decision is decision for verdict in full_content.verdicts)
        assert body.count(f">{decision.value}</td>") == number > 0


def grid_lines(content: Content) -> dict[tuple[str, int], dict[str, list[Entry]]]:
    grid, *_ = grids(content.study, content.cells, content.verdicts, content.winners)
    of_modes = [mode.label for mode in grid.modes]
    return {(line.case, line.degree): dict(zip(of_modes, map(list, line.entries), strict=True)) for line in grid.lines}


def test_a_grid_has_a_row_for_each_case_with_the_fastest_mode_in_bold(full_content: Content, page: str) -> None:
    lines = grid_lines(full_content)
    of_several = {(winner.case.label, winner.degree): winner for winner in full_content.winners}
    assert set(of_several) <= set(lines)
    best = lines["resnet26_cifar10 bs128", 3]
    assert re.fullmatch(r"2\.\d\d \(2\.\d\d-2\.\d\d\)", best["MPS"][0].text) and best["MPS"][0].state == BEST
    assert (best["serial"][0].text, best["serial"][0].state) == ("1", "") and best["naive"][0].state == ""
    undecided = lines["resnet50_imagenet64 bs128", 3]
    assert {entry.state for entries in undecided.values() for entry in entries} == {OPEN}
    assert lines["resnet26_cifar10 bs128", 7]["MPS %"][0].text == "wrong results"
    assert "oom" in [entry.text for entries in lines.values() for several in entries.values() for entry in several]
    assert '<span class="best">' in page and '<span class="open">' in page
    # Letters of mixes are explained where they stand.
    assert "<small>M: resnet50_imagenet64 bs128; S: resnet26_cifar10 bs128</small>" in page


def test_the_first_paragraph_is_short_and_letters_are_explained_in_it() -> None:
    mix = tuple(job(i, params(name), 5.0, size=size) for i, (name, size) in enumerate((("big", "L"), ("small", "S"))))
    alone = [row("serial", (job(0, params(name), 5.0),), block) for block in (1, 2) for name in ("big", "small")]
    content = make_content(study(*alone, *(row("mps", mix, block) for block in (1, 2))))
    assert summarize(content.study, content.cells, content.winners) == (
        "On one NVIDIA H100 80GB HBM3, L+S (L: big, S: small) under MPS take 0.50 of the time of one after another, "
        "each up to 1.00 times as long as alone (2 complete blocks)."
    )
    first = re.search(r'<p class="answer">(.*?)</p>', render(content))
    assert first is not None and len(first[1].split()) <= 35


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ({2: 5.0, 3: 3.0}, "sharing gains nothing: 2 resnet26_cifar10 bs128 under naive take 1.00 times as long as"),
        ({2: 9.0, 3: 3.0}, "2 resnet26_cifar10 bs128 under naive take 0.56 of the time of one after another, each up"),
        ({2: 9.0, 3: 3.0}, "; 3 gain nothing more ("),
    ],
)
def test_what_gains_nothing_is_said_so_and_is_no_gain(rates: dict[int, float], words: str) -> None:
    shared = [copies("naive", degree, rate, block) for degree, rate in rates.items() for block in (1, 2)]
    content = make_content(study(*(copies("serial", 1, 10.0, block) for block in (1, 2)), *shared))
    assert words in summarize(content.study, content.cells, content.winners)


@pytest.mark.slow
def test_figures_are_vector_graphics_without_dates_and_the_same_every_time(full_content: Content) -> None:
    again = make_content(study(*collocation_study()), TIMELINE)
    assert [figure.svg for figure in again.figures] == [figure.svg for figure in full_content.figures]
    assert render(again) == render(full_content)
    for figure in full_content.figures:
        assert ElementTree.fromstring(figure.svg).tag.endswith("svg")


def get_svg(content: Content, name: str) -> str:
    return next(figure.svg for figure in content.figures if figure.name.startswith(name))


@pytest.mark.slow
def test_what_has_no_figure_is_a_labelled_box(full_content: Content) -> None:
    assert ">oom<" in get_svg(full_content, "workload-resnet152")
    assert ">14 %<" in get_svg(full_content, "workload-resnet26") and ">wrong results<" in get_svg(
        full_content, "workload-resnet26"
    )
    assert ">skipped<" in get_svg(full_content, "mixes")
    assert ">7: MPS % wrong results<" in get_svg(full_content, "gain")
    (gain,) = [figure for figure in full_content.figures if figure.name == "gain"]
    assert gain.sketch.caption.endswith("Without a figure: resnet152_imagenet bs128.")
    assert "alone, CUDA graph" in get_svg(full_content, "gain")


def test_each_mode_has_its_colour_in_every_figure(full_content: Content, page: str) -> None:
    for name in ("workload-resnet26", "mixes", "gain", "energy"):
        assert NAIVE.colour in get_svg(full_content, name) and MPS.colour in get_svg(full_content, name)
    assert "prefers-color-scheme: dark" in page
    swatch = re.search(r'<i style="background: var\((--[\w-]+)\)"></i>MPS</td>', page)
    assert swatch is not None and f"{swatch[1]}: {MPS.colour}" in page and f"{swatch[1]}: {MPS.dark_colour}" in page
    colours = {colour for mode in MODES.values() for colour in (mode.colour, mode.dark_colour)}
    job_bars = get_svg(full_content, "over-time").replace(
        MPS.colour, ""
    )  # of the bars of the jobs, which ran under MPS
    assert [colour for colour in colours if colour in job_bars] == []


@pytest.mark.slow
def test_a_simulated_study_is_stamped_on_the_page_and_on_every_figure(full_content: Content, page: str) -> None:
    simulated = make_content(
        study(*(dataclasses.replace(r, is_simulated=True) for r in collocation_study(2))), TIMELINE
    )
    assert len(simulated.figures) == len(full_content.figures)
    assert all(STAMP in figure.svg for figure in simulated.figures)
    assert '<p class="stamp">' in render(simulated)
    assert not any(STAMP in figure.svg for figure in full_content.figures)
    assert '<p class="stamp">' not in page


@pytest.mark.slow
def test_lines_of_instances_have_a_panel_for_each_quantity() -> None:
    places = ("", "3g.40gb (1)", *(f"1g.10gb ({number})" for number in range(7, 11)))
    divided = dataclasses.replace(
        TIMELINE,
        activity=tuple(
            Line(label=label, instance=place, t_s=(0.0, 1.0), values=(0.9, 0.5))
            for label in ("GRACT", "SMACT")
            for place in places
        ),
    )
    for timeline, panels in ((TIMELINE, ["activity (share)"]), (divided, ["GRACT (share)", "SMACT (share)"])):
        svg = get_svg(make_content(study(), timeline), "over-time")
        assert [f"{name} (share)" for name in re.findall(r">([^<>]*) \(share\)<", svg)] == panels
    assert [svg.count(f">{place or 'whole GPU'}<") for place in places] == [2] * len(places), "a legend for each"


HOSTILE = "</title><script>alert('x')</script>$x_{1}$ \x00\x1b[31m <b onload=\"y\"> & #004488"


def hostile_rows() -> list[Row]:
    hostile_params = params(HOSTILE, model="x")
    group_rows = []
    for block in (1, 2):
        group_rows.append(row("serial", (job(0, hostile_params, 100.0),), block, name=HOSTILE))
        group_rows.append(row("naive", tuple(job(i, hostile_params, 80.0) for i in range(2)), block, name=HOSTILE))
        sized = [(params(HOSTILE), "M<i>"), (params("other"), "S")]
        mixed = tuple(job(i, p, 60.0, size=size) for i, (p, size) in enumerate(sized))
        group_rows.append(row("naive", mixed, block, name=HOSTILE, result=Result.OOM, reason=HOSTILE))
    return group_rows


def test_hostile_names_are_shown_as_text() -> None:
    hostile_study = dataclasses.replace(study(*hostile_rows()), experiment=HOSTILE)
    text = render(make_content(hostile_study, dataclasses.replace(TIMELINE, name=HOSTILE)))
    Checker(text)
    assert "<script" not in text and "<b onload" not in text and "<i>" not in text
    assert "\x00" not in text and "\x1b" not in text
    assert "&lt;script&gt;" in text


def test_a_half_run_study_says_what_is_missing() -> None:
    rows = [copies(s, d, 10.0, b) for b in (1, 2) for s, d in (("serial", 1), ("naive", 2), ("mps", 2))][:-1]
    partial_study = dataclasses.replace(study(*rows, None), num_planned=6)
    missing = " ".join(describe_missing(partial_study))
    assert "Block 2 on NVIDIA H100 80GB HBM3 lacks 1 of 3 groups." in missing
    assert "5 of 6 planned groups" in missing and "One run was left out (no result" in missing
    text = render(make_content(partial_study))
    assert '<details class="missing" id="missing" open>' in text and "lacks 1 of 3 groups" in text
    assert "under naive take 0.50 of the time" in text and "(1 complete block)." in text
    assert "findings of the paper were not measured here" in text


def test_a_group_that_failed_is_missing_once() -> None:
    rows = [copies(s, d, 10.0, b) for b in (1, 2) for s, d in (("serial", 1), ("naive", 2), ("mps", 2))][:-1]
    failed = copies("mps", 2, 10.0, 2, result=Result.FAILED)
    assert "Block 2 on NVIDIA H100 80GB HBM3 lacks 1 of 3 groups." in describe_missing(study(*rows, failed))


@pytest.mark.parametrize(
    ("kind", "beginning"),
    [(WindowKind.LOGGED, "Logged window: jobs end by themselves"), (WindowKind.WORK, "Work window: every job does")],
)
def test_methods_explain_what_the_study_used(kind: WindowKind, beginning: str) -> None:
    rows = [copies("serial", 1, 10.0, window=kind), copies("naive", 2, 9.0, window=kind)]
    methods = dict(list_methods(study(*rows)))
    assert methods["Windows"].startswith(beginning) and "teady window" not in methods["Windows"]
    assert "Utilisation" not in methods, "a CPU has no GRACT"
    with_gract = copies("naive", 3, 9.0, window=kind, metrics={"gract_mean_ratio": 0.5})
    assert dict(list_methods(study(*rows, with_gract)))["Utilisation"].startswith("GRACT")
    changed = study(*(dataclasses.replace(row, facts=row.facts | {"program_changed": "true"}) for row in rows))
    assert ("uncommitted changes of the scripts", ("true",)) in list_provenance(changed)


def test_an_empty_study_is_a_page_that_says_so() -> None:
    text = render(make_content(study()))
    Checker(text)
    assert "There is no result yet." in text


@pytest.mark.slow
def test_a_panel_that_no_group_has_is_left_out_and_a_missing_figure_of_some_is_said() -> None:
    rows = [copies(s, d, 10.0, b) for b in (1, 2, 3) for s, d in (("serial", 1), ("naive", 2))]
    svg = get_svg(make_content(study(*rows)), "workload")
    assert "GRACT" not in svg and "peak memory" not in svg and "not measured" not in svg
    rows = [*rows, *(copies("mps", 2, 10.0, b, metrics={"memory_peak_mib": 100.0}) for b in (1, 2, 3))]
    svg = get_svg(make_content(study(*rows)), "workload")
    assert ">peak memory of the GPU<" in svg and ">not measured<" in svg and "GRACT" not in svg


def test_a_steady_window_is_told_by_rates_and_not_by_its_own_length() -> None:
    job_params = params(**{"job.samples_per_epoch": ""})
    rows = [
        copies(scenario, degree, 10.0, job_params=job_params, metrics={"makespan_s": 5.0})
        for scenario, degree in (("serial", 1), ("naive", 2))
    ]
    svg = get_svg(make_content(study(*rows)), "workload")
    assert ">throughput of all jobs<" in svg and "total time" not in svg


@pytest.mark.slow
def test_a_group_over_time_without_activity_keeps_its_time_axis() -> None:
    rows = [copies(s, d, 10.0) for s, d in (("serial", 1), ("naive", 2))]
    svg = get_svg(make_content(study(*rows), dataclasses.replace(TIMELINE, activity=())), "over-time")
    assert "activity" not in svg and ">8<" in svg  # seconds


@pytest.mark.slow
def test_small_energies_are_in_millijoules_and_files_for_machines_in_joules() -> None:
    rows = [
        copies(scenario, degree, 10.0, b, metrics={"energy_per_sample_j": 0.00456})
        for b in (1, 2)
        for scenario, degree in (("serial", 1), ("naive", 2))
    ]
    content = make_content(study(*rows))
    (energy,) = [table for table in content.tables if table.name == "energy" or "mJ" in " ".join(table.columns)]
    assert "energy per sample (mJ)" in energy.columns and "4.56" in {
        str(value) for line in energy.rows for value in line
    }
    (results,) = [table for table in content.tables if table.name == "results"]
    assert results.rows[0][results.columns.index("energy per sample (J)")] == 0.00456
    assert ">mJ per sample<" in get_svg(content, "energy")


@pytest.mark.slow
def test_panels_stand_beside_each_other_or_below_on_a_narrow_screen(full_content: Content, page: str) -> None:
    (gain,) = [figure for figure in full_content.figures if figure.name == "gain"]
    panels = [part for part in gain.parts if part.row == 1]
    width = float(re.findall(r'viewBox="0 0 ([\d.]+) ', gain.svg)[0])
    assert len(panels) > 1 and sum(part.width for part in panels) == pytest.approx(width, rel=0.1)
    assert all(first.x + first.width <= second.x + 10 for first, second in itertools.pairwise(panels))
    shown = page[page.index('id="figure-gain"') : page.index("</figure>", page.index('id="figure-gain"'))]
    assert shown.count("<svg viewBox") == len(gain.parts) and 'class="row"' in shown
    assert "max-width: 700px" in page and not any(part.row == 1 for part in full_content.figures[-1].parts)


@pytest.mark.parametrize(
    ("t_s", "says"),
    [((-60.0, 4.0, 90.0), "GRACT"), ((-60.0, -50.0), "no sample of the activity of the GPU at this time")],
)
def test_a_line_with_one_point_in_view_has_a_marker_and_one_with_none_is_missing(
    t_s: tuple[float, ...], says: str
) -> None:
    (gract,) = TIMELINE.activity
    line = dataclasses.replace(gract, t_s=t_s, values=tuple(0.5 for _ in t_s))
    (sketch,) = over_time.sketches([], dataclasses.replace(TIMELINE, activity=(line,)))
    activity = sketch.paint().axes[0]
    markers = [drawn.get_marker() for drawn in activity.lines]
    texts = [text.get_text() for text in (*activity.texts, *(activity.get_legend() or activity).texts)]
    assert says in texts and markers == (["o"] if says == "GRACT" else [])


@pytest.mark.slow
def test_letters_that_the_font_lacks_are_said_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    drawing._say_boxes.cache_clear()
    named = dataclasses.replace(TIMELINE, spans=(dataclasses.replace(TIMELINE.spans[0], label="\u6a21\u578b"),))
    (sketch,) = over_time.sketches([], named)
    for name in ("one", "other"):
        assert "\u6a21\u578b" in drawing.draw(sketch, name, is_simulated=False).svg
    (message,) = (record.message for record in caplog.records)
    assert message.startswith("DejaVu Sans lacks some letters, ")


def test_mixes_with_a_fixed_amount_of_work_are_drawn_in_seconds_too() -> None:
    mix = tuple(job(i, params(name), None, size=size) for i, (name, size) in enumerate((("a", "M"), ("b", "S"))))
    work = {"window": WindowKind.WORK}
    rows = [
        row(scenario, mix, block, metrics={"makespan_s": seconds}, **work)
        for block in (1, 2, 3)
        for scenario, seconds in (("serial", 30.0), ("mps", 20.0))
    ]
    svg = get_svg(make_content(study(*rows)), "mixes")
    assert "total time (s)" in svg and SERIAL.colour in svg


def test_our_figures_say_their_intervals_on_the_page_and_the_files_have_the_bounds(
    full_content: Content, page: str
) -> None:
    (paper,) = [table for table in full_content.tables if table.name == "paper"]
    assert {"ours", "low", "high", "mind"} < set(paper.columns)
    of_page = page[page.index('id="table-paper') :]
    heads = re.findall(r'scope="col">([^<]+)<', of_page[: of_page.index("</thead>")])
    assert "low" not in heads and "ours" in heads
    values = [str(row[paper.columns.index("ours")]) for row in paper.rows]
    intervals = [words for words in values if " to " in words]
    assert intervals and all(words in of_page for words in intervals)


def test_the_group_over_time_is_the_mix_of_the_paper_else_the_largest() -> None:
    mixed_study = study(*collocation_study(2))
    chosen = choose_group(mixed_study)
    assert chosen is not None
    assert ([one.size for one in chosen.jobs], chosen.scenario, chosen.block) == (["M", "S", "S"], "mps", 1)
    largest = choose_group(study(*(r for r in collocation_study(1) if not r.is_mix)))
    assert largest is not None and (largest.degree, largest.result) == (7, Result.OK)
    assert choose_group(study()) is None
