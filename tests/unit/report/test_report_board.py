"""A board: several studies and GPUs in one table, nothing pooled, and what differs said."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.report import publish
from pipeline.report.__main__ import main
from pipeline.report.board_command import describe_winners, format_lines, make_board_table, make_columns, render
from pipeline.report.evaluate.case_matching import MatchedCase
from pipeline.report.evaluate.selector import EvaluatedStudy
from pipeline.report.evaluate.study_board import (
    Agreement,
    Board,
    BoardColumn,
    DeviceSummary,
    Outcome,
    from_json,
    make_board,
    summarize_devices,
    to_json,
)
from pipeline.report.read.study_records import Row, Study
from tests.support.report_rows import collocation_study, copies, job, params, row, study

H200, A100 = "NVIDIA H200", "NVIDIA A100-SXM4-40GB"
FASTER_MPS, FASTER_NAIVE, EQUAL = {"naive": 1.2, "mps": 1.8}, {"naive": 1.8, "mps": 1.2}, {"naive": 1.5, "mps": 1.5}


def rows(
    speeds: dict[str, float], blocks: int = 5, job_params: Any = None, degree: int = 2, **changes: Any
) -> list[Row]:
    """Serial runs and groups of copies in some modes, a little scattered, whose speed-ups are given."""
    group_rows = []
    for block in range(1, blocks + 1):
        drift = 1 + 0.003 * (-1) ** block
        group_rows.append(
            copies("serial", 1, 1000.0 * drift, block, job_params, metrics={"energy_per_sample_j": 0.02}, **changes)
        )
        for number, (mode, speed) in enumerate(speeds.items()):
            rate = 1000.0 * speed / degree * (1 + 0.002 * ((block * (number + 1)) % 3))
            group_rows.append(
                copies(mode, degree, rate, block, job_params, metrics={"energy_per_sample_j": 0.01}, **changes)
            )
    return group_rows


def summarize_study(of: Study) -> list[DeviceSummary]:
    evaluated = EvaluatedStudy(of)
    return summarize_devices(of, evaluated.cells, evaluated.comparisons, evaluated.winners)


def column(number: int, *members: Row) -> BoardColumn:
    (measured,) = summarize_study(study(*members))
    return BoardColumn(number=number, name=measured.device, source=f"reports/{number}", measured=measured)


def board(*studies: list[Row]) -> Board:
    return make_board([column(number, *members) for number, members in enumerate(studies, 1)])


def match_only_case(*studies: list[Row]) -> MatchedCase[Outcome]:
    (line,) = board(*studies).lines
    return line


def judge(*studies: list[Row]) -> tuple[Agreement, str]:
    """Return the agreement of the only line of a board."""
    agreement_board = board(*studies)
    return agreement_board.judge(*agreement_board.lines)


@pytest.mark.slow
def test_every_cell_is_what_its_own_study_says_and_nothing_is_pooled() -> None:
    first_study, second_study = (
        collocation_study(seed=1),
        [dataclasses.replace(r, device=H200) for r in collocation_study(seed=2)],
    )
    agreement_board = board(first_study, second_study)
    for place, members in enumerate((first_study, second_study)):
        winners = EvaluatedStudy(study(*members)).winners
        expected = {(w.case.label, w.degree): (w.tied, w.speedup) for w in winners}
        shown = {(line.label, line.degree): line.members[place] for line in agreement_board.lines}
        assert {key: (shown[key].tied, shown[key].figure) for key in expected} == expected
        assert all(shown[key].num_blocks == 5 for key in expected)
    alone = next(line.members[0] for line in agreement_board.lines if line.label == "L+M+3S")
    assert alone.endings == ("MIG: skipped",) and alone.figure is None


def test_cases_are_written_and_read_again() -> None:
    measured = summarize_study(study(*collocation_study()))
    again = from_json(to_json(measured))
    assert to_json(again) == to_json(measured) and from_json(to_json(again)) == again
    assert [outcome.label for outcome in again[0].outcomes] == [outcome.label for outcome in measured[0].outcomes]


def damage_content(change: Callable[[dict[str, Any]], object]) -> str:
    content = json.loads(to_json(summarize_study(study(*rows(FASTER_MPS, 1)))))
    change(content)
    return json.dumps(content)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        damage_content(lambda content: content.update(format=99)),
        damage_content(lambda content: content.update(measured=3)),
        damage_content(lambda content: content["measured"][0].pop("device")),
        damage_content(lambda content: content["measured"][0].update(num_blocks="5")),
        damage_content(lambda content: content["measured"][0]["outcomes"][0].update(programs=[])),
        damage_content(lambda content: content["measured"][0]["outcomes"][0].update(figure=None)),
        damage_content(lambda content: content["measured"][0]["outcomes"][0].update(tied=["MIG"])),
        damage_content(lambda content: content["measured"][0]["outcomes"][0]["figure"].update(median="fast")),
    ],
)
def test_a_damaged_file_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"damaged|format 99"):
        from_json(text)


@pytest.mark.parametrize(
    ("first_speeds", "second_speeds", "agreement", "why"),
    [
        (FASTER_MPS, FASTER_MPS, Agreement.SAME, "MPS"),
        (FASTER_MPS, EQUAL, Agreement.OPEN, "undecided on [2], MPS elsewhere"),
        (EQUAL, EQUAL, Agreement.OPEN, "undecided in all"),
        (FASTER_MPS, FASTER_NAIVE, Agreement.DIFFER, "MPS on [1] and naive on [2]"),
        (FASTER_MPS, {"naive": 1.2}, Agreement.OPEN, "MPS has no figure on [2]"),
    ],
)
def test_whether_gpus_agree(
    first_speeds: dict[str, float], second_speeds: dict[str, float], agreement: Agreement, why: str
) -> None:
    assert judge(rows(first_speeds), rows(second_speeds, device=H200)) == (agreement, why)


def test_figures_of_simulated_gpus_never_count_beside_those_of_real_ones() -> None:
    simulated = rows(FASTER_NAIVE, device=A100, is_simulated=True)
    assert judge(rows(FASTER_MPS), rows(FASTER_MPS, device=H200), simulated) == (Agreement.SAME, "MPS")
    assert judge(rows(FASTER_MPS), simulated) == (Agreement.ALONE, "")
    other = rows(FASTER_NAIVE, device=H200, is_simulated=True)
    assert judge(simulated, other) == (Agreement.SAME, "naive (simulated)")


def test_what_is_simulated_says_so_wherever_it_is_shown() -> None:
    simulated_board = board(rows(FASTER_MPS), rows(FASTER_MPS, device=A100, is_simulated=True))
    html, lines, table = render(simulated_board), format_lines(simulated_board), make_board_table(simulated_board)
    assert '<p class="stamp">Some figures are simulated' in html and f"[2] {A100} <span" in html
    assert f"[2] {A100}: simulated, no measurement of a real GPU" in lines
    assert table.note.startswith("Includes simulated figures.")
    assert [line[table.columns.index("stamp")] for line in table.rows] == ["", "simulated"]
    real = board(rows(FASTER_MPS))
    assert "simulated" not in render(real) + format_lines(real) + make_board_table(real).note


def test_cells_at_other_settings_say_in_what_they_differ() -> None:
    window = (("device", H200), ("window", "steady, 9 s after 1 s"), ("seed", "0"), ("pinned CPUs", "false"))
    first_study, second_study = rows(FASTER_MPS), rows(FASTER_MPS, device=H200, settings=window)
    expected = {0: "", 1: "window steady, 9 s after 1 s instead of steady, 5 s after 1 s"}
    assert match_only_case(first_study, second_study).differs == expected
    assert judge(first_study, second_study) == (Agreement.SAME, "MPS (settings differ)")
    table = make_board_table(board(first_study, second_study))
    assert [line[table.columns.index("settings differ")] for line in table.rows] == list(expected.values())
    large = rows(FASTER_MPS, job_params=params(image_px=64), device=H200)
    assert match_only_case(first_study, large).differs[1] == "image_px 64"
    small = rows(FASTER_MPS, job_params=params(image_px=32))
    assert match_only_case(small, large).differs[1] == "image_px 64 instead of 32"


def test_programs_that_a_label_tells_apart_are_never_in_one_row() -> None:
    tf32, fp32 = (
        rows(FASTER_MPS, job_params=params(precision=p), device=d) for p, d in (("tf32", H200), ("fp32", A100))
    )
    assert [(line.label, list(line.members)) for line in board(tf32, fp32).lines] == [
        ("resnet26_cifar10 bs128 (TF32)", [0]),
        ("resnet26_cifar10 bs128 (strict fp32)", [1]),
    ]
    small, large = (rows(FASTER_MPS, job_params=params(batch_size=size)) for size in (32, 256))
    assert [list(line.members) for line in board(small, large).lines] == [[0], [1]]
    # What one study varies it compares, so that it is in the label of the row in every column.
    both = [*rows(FASTER_MPS, job_params=params(image_px=32)), *rows(FASTER_NAIVE, job_params=params(image_px=64))]
    mixed_board = board(both, rows(FASTER_NAIVE, job_params=params(image_px=64), device=H200))
    assert [(line.label, list(line.members), mixed_board.judge(line)[0]) for line in mixed_board.lines] == [
        ("resnet26_cifar10 bs128 image_px=32", [0], Agreement.ALONE),
        ("resnet26_cifar10 bs128 image_px=64", [0, 1], Agreement.SAME),
    ]
    assert "eager" in mixed_board.common and "seed 0" in mixed_board.common


@pytest.mark.parametrize(("speeds", "words"), [(FASTER_MPS, "MPS is best in 1"), (EQUAL, "there is no verdict in 1")])
def test_only_verdicts_count_as_wins(speeds: dict[str, float], words: str) -> None:
    sentence = describe_winners(board(rows(speeds)), 0)
    assert sentence == f"[1] NVIDIA H100 80GB HBM3: of 1 case with several jobs, {words}."


def test_services_at_a_given_rate_are_compared_by_their_latency() -> None:
    service_params = params("infer", given_rate="10", precision="fp32")
    service_rows = []
    for block in range(1, 6):
        for mode, ms in (("naive", 30.0), ("mps", 20.0)):
            jobs = tuple(job(index, service_params, 10.0) for index in range(2))
            service_rows.append(row(mode, jobs, block, metrics={"latency_p99_worst_ms": ms + 0.1 * block}))
    assert "MPS 20.3 (20.1 to 20.5) ms" in format_lines(board(service_rows))
    outcome = match_only_case(service_rows).members[0]
    assert outcome.tied == ("MPS",) and outcome.measure == "p99 latency of the slowest job (ms)"
    assert outcome.figure is not None and outcome.figure.median == pytest.approx(20.3)


@pytest.fixture(scope="module")
def published_content() -> dict[str, str]:
    """What the reports of two GPUs say in their file of cases, by the name of their folder."""
    studies = {"h100": rows(FASTER_MPS), "h200": rows(FASTER_MPS, device=H200)}
    return {name: to_json(summarize_study(study(*members))) for name, members in studies.items()}


@pytest.fixture
def reports(published_content: dict[str, str], tmp_path: Path) -> list[Path]:
    """The folders of these reports."""
    for name, text in published_content.items():
        (tmp_path / name).mkdir()
        publish.replace(tmp_path / name, name, {}, {publish.CASES: text.encode()})
    return [tmp_path / name for name in published_content]


def test_a_board_of_published_reports(reports: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "board"
    for _ in range(2):  # the second replaces the first
        assert main(["board", *map(str, reports), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "resnet26_cifar10 bs128     2  MPS 1.8" in printed and "same: MPS" in printed
    assert f"board: {out / 'index.html'}" in printed
    assert {path.name for path in out.iterdir()} == {"index.html", "board.csv", "report.json"}
    lines = [line for line in (out / "board.csv").read_text().splitlines() if not line.startswith("#")]
    table_rows = list(csv.DictReader(lines))
    assert [(line["column"], line["best"], line["blocks"]) for line in table_rows] == [
        ("[1] NVIDIA H100 80GB HBM3", "MPS", "5"),
        ("[2] NVIDIA H200", "MPS", "5"),
    ]
    html = (out / "index.html").read_text()
    assert "<script" not in html and "http" not in html
    assert "Of 1 case in several columns, the best mode is the same in 1." in html


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "the board has no studies"),
        (["nowhere"], "cannot read nowhere/cases.json: No such file or directory; pass the folder of a report"),
        (["old"], "write the report again with this version"),
        (["damaged"], "the file is damaged"),
        (["h100", "h200", "h100"], "h100 and h100 have the same figures"),
        (["h100", "h200", "copy"], "h100 and copy have the same figures for 'synthetic' on NVIDIA H100 80GB HBM3"),
        (["h100", "--experiment", "a", "a"], "an experiment or a store is named twice"),
        (
            ["--experiment", "a", "--root", "h100", "--root", "./h200/../h100"],
            "an experiment or a store is named twice",
        ),
        (["h100", "--experiment", "a", "--root", "no_store"], "no_store"),
        (["h100", "--out", "h100/cases.json"], "this path is a file"),
        (["h100", "--out", "mine"], "files that no report wrote"),
        (["h100", "h200", "--out", "./h200"], "the folder has the report of 'h200'; choose another folder with --out"),
    ],
)
@pytest.mark.usefixtures("reports")
def test_what_a_board_cannot_be_made_of_is_one_line(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, file, text in (("old", "report.json", "{}"), ("damaged", "cases.json", "{"), ("mine", "a.txt", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    shutil.copytree(tmp_path / "h100", tmp_path / "copy")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.chdir(tmp_path)
    assert main(["board", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and captured.err.startswith("error: ") and says in captured.err
    assert not captured.out
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_columns_of_one_device_are_told_apart() -> None:
    sources = [
        (f"reports/{name}", measured) for name in ("a", "b") for measured in summarize_study(study(*rows(FASTER_MPS)))
    ]
    assert [gpu_column.name for gpu_column in make_columns(sources)] == [
        "NVIDIA H100 80GB HBM3, a",
        "NVIDIA H100 80GB HBM3, b",
    ]
