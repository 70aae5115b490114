"""Claims: numbers of pages hold if a bundle gives them, and whatever else happens is a failure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.base.domain.records import Result
from pipeline.base.domain.window import Window, WindowKind
from pipeline.record.group_record import Clock, GroupRecord, JobRecord
from pipeline.record.store import bundle_archive
from pipeline.report import __main__ as report
from pipeline.report.evaluate.statistics import Scale, compare_pairs, estimate, half_width
from pipeline.report.page.table_format import round_value
from tests.support.bundles import list_files

SERIAL = [100.0, 101.0, 99.0, 100.0, 102.0]
MPS = [85.0, 86.0, 84.0, 85.5, 86.5]
NAIVE = [60.0, 61.0, 59.0, 60.0, 61.0]
GAIN = estimate([2 * mps / serial for mps, serial in zip(MPS, SERIAL, strict=True)], Scale.POSITIVE)
QUERY = {"bundle": "study.tar.xz", "case": "tiny bs32", "jobs": 2, "mode": "MPS", "quantity": "speedup_vs_serial_ratio"}


GAINS = {"quantity": "speedup_vs_serial_ratio"}
WINDOWS = ("steady, 5 s after 1 s", "steady, 9 s after 1 s")
LONG = [0.995 * rate + 0.1 * block for block, rate in enumerate(MPS)]
OVER = {"bundle": "windows.tar.xz", "quantity": "throughput_total_samples_per_s"} | {
    key: f"tiny bs32 [window {window}]" for key, window in zip(("over", "case"), WINDOWS, strict=True)
}
WINDOW_TEST = compare_pairs([long / short for long, short in zip(LONG, MPS, strict=True)], 0.01)


def make_groups(
    scenario: str, degree: int, rates: list[float], window: str = WINDOWS[0], **changes: Any
) -> Iterator[GroupRecord]:
    """Yield a group with its jobs in each block."""
    for block, rate in enumerate(rates, 1):
        begin_ns = (100_000 * block + 1_000 * degree) * 1_000_000
        times: dict[str, Any] = {"start_ns": begin_ns, "end_ns": begin_ns + 9_000_000_000, "result": Result.OK}
        run_id = f"{scenario.encode().hex():0<16}{degree:08x}{WINDOWS.index(window):04x}{block:04x}"
        jobs = tuple(
            JobRecord(
                name=f"{index}-tiny",
                run_id=f"{index + 1:08x}{run_id[8:]}",
                params={"workload": "tiny", "batch_size": "32", "seed": "0"},
                metrics={"throughput_samples_per_s": rate},
                index=index,
                digest="digest-tiny",
                **times,
            )
            for index in range(degree)
        )
        fields: dict[str, Any] = {
            "name": f"{scenario}-{degree}x-tiny",
            "run_id": run_id,
            "params": {"scenario": scenario, "degree": str(degree), "window": "steady", "seed": "0"},
            "facts": {"boot_id": "boot-1"},
            "metrics": {"throughput_total_samples_per_s": degree * rate},
            "spool_id": run_id,
            "experiment": "study",
            "clock": Clock(wall_ns=1_700_000_000_000_000_000, monotonic_ns=0),
            "jobs": jobs,
            "study": "20261121-100000-aaaaaa",
            "scenario": scenario,
            "device": "NVIDIA H100",
            "gpu_uuid": "GPU-1",
            "block": block,
            "digest": f"{scenario}{degree}{window}",
            "settings": {"device": "NVIDIA H100", "window": window, "seed": "0", "pinned CPUs": "false"},
            "window": Window(kind=WindowKind.STEADY, seconds=5, settle_s=1),
        }
        yield GroupRecord(**fields | times | changes)


def write_bundle(file: Path, groups: list[GroupRecord], experiment: str = "study") -> Path:
    bundle_archive.write(file, experiment, list_files(groups))
    return file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with bundles of a study, its first two blocks, a noted, an invalid, a simulated one, and two windows."""
    studies = {
        "study": (5, {}),
        "short": (2, {}),
        "noted": (5, {"note": "one job waited"}),
        "invalid": (5, {"invalid": "the GPU was hot"}),
        "simulated": (5, {"is_simulated": True}),
    }
    for name, (num_blocks, tags) in studies.items():
        is_simulated = {key: value for key, value in tags.items() if key == "is_simulated"}
        runs = [
            *make_groups("serial", 1, SERIAL[:num_blocks], **is_simulated),
            *make_groups("naive", 2, NAIVE[:num_blocks], **is_simulated),
            *make_groups("mps", 2, MPS[:num_blocks], **tags),
        ]
        write_bundle(tmp_path / f"{name}.tar.xz", runs)
    windows = [*make_groups("mps", 2, MPS), *make_groups("mps", 2, LONG, WINDOWS[1])]
    write_bundle(tmp_path / "windows.tar.xz", windows)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_claims(folder: Path, text: str, /, **query: Any) -> None:
    """Write a file with one claim; `gain` is its placeholder unless `query` has `numbers`."""
    claim = {"page": "page.md", "text": text, "numbers": {"gain": {}}, **QUERY, **query}
    (folder / "claims.yaml").write_text(yaml.safe_dump({"claims": [claim]}))


def run(*arguments: str) -> int:
    return report.main(["claims", "claims.yaml", *arguments])


def words(figure: Any, form: str = ".2f") -> str:
    return f"{figure.median:{form}} ({figure.low:{form}} to {figure.high:{form}})"


SHOWN = {
    "the median": ({}, f"{GAIN.median:.2f}"),
    "an end": ({"show": "low", "format": ".3f"}, f"{GAIN.low:.3f}"),
    "the interval": ({"show": "interval"}, f"{GAIN.low:.2f} to {GAIN.high:.2f}"),
    "all of an estimate": ({"show": "estimate"}, words(GAIN)),
    "the half-width": ({"show": "half_width", "scale": 100, "format": ".1f"}, f"{100 * (half_width(GAIN) or 0):.1f}"),
    "its blocks": ({"show": "blocks"}, "5"),
    "its tolerance": ({"show": "tolerance", "tolerance": 0.05, "scale": 100, "format": ".0f"}, "5"),
    "a rate": ({"quantity": "throughput_total_samples_per_s", "format": ",.1f"}, "171.0"),
    "a verdict": ({"against": "naive", "quantity": "speed", "show": "verdict"}, "better"),
    "a comparison": ({"against": "serial", "quantity": "speed"}, f"{GAIN.median:.2f}"),
    "a number of blocks": ({"case": "", "quantity": "complete_blocks", "format": ".0f"}, "5"),
    "a number of groups": ({"case": "", "quantity": "groups", "format": ".0f"}, "15"),
    "a number of verdicts": ({"case": "", "quantity": "verdicts", "format": ".0f"}, "3"),
    "a number of verdicts against serial": (
        {"case": "", "quantity": "verdicts", "against": "serial", "format": ".0f"},
        "2",
    ),
    "the median half-width": (
        {"case": "", "quantity": "half_width", "against": "naive", "format": ".6f"},
        f"{half_width(estimate([mps / naive for mps, naive in zip(MPS, NAIVE, strict=True)], Scale.POSITIVE)):.6f}",
    ),
    "a ratio of two cases": ({**OVER, "show": "estimate", "format": ".4f"}, words(WINDOW_TEST.ratio, ".4f")),
    "a p value of equality": (
        {**OVER, "margin": 0.01, "show": "p_equal", "format": ".3g"},
        f"{WINDOW_TEST.p_equal:.3g}",
    ),
    "a number of comparisons": ({"case": "", "quantity": "comparisons", "format": ".0f"}, "3"),
    "a number of groups that ended ok": ({"case": "", "quantity": "ok", "format": ".0f"}, "15"),
    "a single block": ({"block": 2}, f"{2 * MPS[1] / SERIAL[1]:.2f}"),
    "a recorded setting": ({"show": "recorded", "quantity": "batch_size"}, "32"),
    "a part of a recorded text": ({"show": "recorded", "quantity": "device", "format": ".11"}, "NVIDIA H100"),
    "the date": ({"show": "recorded", "quantity": "date"}, "2023-11-14"),
    "a place in a table": (
        {"table": "verdicts", "row": ["tiny bs32", "MPS", "naive", "speed"], "quantity": "ratio", "show": "low"},
        f"{estimate([mps / naive for mps, naive in zip(MPS, NAIVE, strict=True)], Scale.POSITIVE).low:.2f}",
    ),
    "a text in a table": (
        {"table": "verdicts", "row": ["tiny bs32", "MPS", "naive", "speed"], "quantity": "verdict"},
        "better",
    ),
    "a combination": (
        {
            "quantity": "distance",
            "scale": 100,
            "of": [{**GAINS, "mode": "naive", "block": 1, "format": ".0f"}, {**GAINS, "block": 1}],  # not rounded
            "format": ".3f",
        },
        f"{100 * (1 - (2 * NAIVE[0] / SERIAL[0]) / (2 * MPS[0] / SERIAL[0])):.3f}",
    ),
    "a combination of combinations": (
        {"quantity": "least", "of": [{"quantity": "difference", "of": [{**GAINS, "block": 2}, GAINS]}, GAINS]},
        f"{2 * MPS[1] / SERIAL[1] - GAIN.median:.2f}",
    ),
    "how many are above one": ({"quantity": "above_1", "of": [GAINS, {**GAINS, "block": 1}], "format": ".0f"}, "2"),
    "a duration": ({"case": "", "quantity": "duration_s", "format": ".0f"}, "410"),
    "a simulated figure": ({"bundle": "simulated.tar.xz", "marks": ["simulated"]}, f"{GAIN.median:.2f}"),
    "a marked figure": ({"bundle": "noted.tar.xz", "marks": ["job waited"]}, f"{GAIN.median:.2f}"),
}


@pytest.mark.parametrize("what", list(SHOWN))
def test_a_page_with_the_number_of_the_bundle_holds(folder: Path, capsys, what: str) -> None:
    query, shown = SHOWN[what]
    write_claims(folder, "shows {gain} here", **query)
    (folder / "page.md").write_text(f"It shows\n  {shown} here.")
    assert run() == 0, capsys.readouterr().out
    (folder / "page.md").write_text("It shows 7.7 here.")
    assert run() == 1
    assert (
        f"does not hold: page.md: shows {shown} here (page says 7.7, bundle gives {shown})\n" in capsys.readouterr().out
    )


def test_words_and_numbers_are_compared_as_wholes(folder: Path, capsys) -> None:
    write_claims(folder, "gain of {gain}", format=".1f")
    for page in ("regain of 1.7", "gain of 1.72", "gain of 1.7.1", "gain of 1.7x", "gain  or 1.7"):
        (folder / "page.md").write_text(page)
        assert run() == 1, page
    (folder / "page.md").write_text("a gain of 1.7, and more")
    assert run() == 0, capsys.readouterr().out


NO_FIGURE = {
    "no bundle": ({"bundle": "none.tar.xz"}, "here (none.tar.xz does not exist; export the study again)"),
    "a text in place of a bundle": ({"bundle": "claims.yaml"}, "is not a complete bundle"),
    "no case": ({"case": "tiny bs64"}, "no groups 2 x tiny bs64, MPS; its cases are 'tiny bs32'"),
    "no such number of jobs": ({"jobs": 3}, "no groups 3 x tiny bs32, MPS"),
    "no mode": ({"mode": "MIG"}, "no groups 2 x tiny bs32, MIG"),
    "no quantity": ({"quantity": "energy_per_sample_j"}, "has no energy_per_sample_j"),
    "no quantity of a study": ({"case": "", "quantity": "gain"}, "gain is no quantity of a study"),
    "no second case": ({**OVER, "over": "tiny bs64"}, "no groups 2 x tiny bs64, MPS"),
    "no widths": ({"case": "", "quantity": "half_width", "against": "MIG"}, "the study has no half_width"),
    "no block": ({"block": 6}, "has no speedup_vs_serial_ratio"),
    "no common setting": ({"case": "", "show": "recorded", "quantity": "block"}, "recorded 5 values of block"),
    "no such setting": ({"show": "recorded", "quantity": "pixels"}, "recorded no values of pixels"),
    "no table": ({"table": "verdict", "row": ["MPS"]}, "0 rows of verdict have"),
    "several rows": ({"table": "verdicts", "row": ["MPS"], "quantity": "ratio"}, "2 rows of verdicts have"),
    "no combination": ({"quantity": "sum", "of": [GAINS]}, "sum does not combine 1 figures; use least, most"),
    "too few figures": ({"quantity": "ratio", "of": [GAINS]}, "ratio does not combine 1 figures"),
    "a text in a combination": (
        {"quantity": "mean", "of": [{"show": "recorded", "quantity": "device"}]},
        "Unknown format code 'g' for object of type 'str'",
    ),
    "no interval": ({"bundle": "short.tar.xz", "show": "interval"}, "no interval (2 blocks)"),
    "no comparison": ({"against": "MIG", "quantity": "speed"}, "not compared with MIG, but serial, naive"),
    "an invalid figure": ({"bundle": "invalid.tar.xz"}, "has no speedup_vs_serial_ratio (invalid in 5 of 5 blocks"),
    "a note": ({"bundle": "noted.tar.xz"}, "the figure is marked: one job waited"),
    "a note on the other side": (
        {"bundle": "noted.tar.xz", "against": "naive", "quantity": "speed", "show": "verdict"},
        "the figure is marked: one job waited",
    ),
    "another note": ({"bundle": "noted.tar.xz", "marks": ["drift"]}, "the figure is marked: one job waited"),
    "no note": ({"marks": ["drift"]}, "the figure is not marked 'drift'"),
    "a simulation": ({"bundle": "simulated.tar.xz"}, "the figure is marked: simulated"),
}


@pytest.mark.parametrize("what", list(NO_FIGURE))
def test_a_claim_without_a_figure_does_not_hold(folder: Path, capsys, what: str) -> None:
    query, problem = NO_FIGURE[what]
    write_claims(folder, "shows {gain} here", **query)
    (folder / "page.md").write_text(f"It shows {GAIN.median:.2f} here.")
    assert run() == 1
    output = capsys.readouterr().out
    assert problem in output and "1 check: 0 hold, 1 do not hold" in output


def test_a_page_without_the_words_or_no_page_does_not_hold(folder: Path, capsys) -> None:
    write_claims(folder, "shows {gain} here")
    assert run() == 1
    (folder / "page.md").write_text("nothing")
    assert run() == 1
    output = capsys.readouterr().out
    assert "(no such page)" in output and f"(the page has no words 'shows {GAIN.median:.2f} here')" in output


BROKEN = {
    "claims: [": "is not valid YAML",
    "": "must be an object",
    "claims: {}": "claims must be a list",
    "claims: [{page: a, text: 'x {n}', numbers: {n: {quantity: groups}}}]": "has no bundle; add bundle: FILE",
    "claims: [{page: a, text: 'x {n}', numbers: {n: {bundle: b, quantity: groups, what: 1}}}]": "unknown key 'what'",
    "claims: [{page: a, text: 'x {n}', numbers: {}}]": "has n either in text or in numbers only",
    "claims: [{page: a, text: x, numbers: {}}]": "has no {placeholder}",
    "claims: [{page: a, text: 'x {n}', numbers: {n: {bundle: b, quantity: groups, format: x}}}]": "formats no number",
    "claims: [{page: a, text: 'x {n}', numbers: {n: {bundle: b, quantity: groups, show: all}}}]": "show must be one of",
    "claims: [{page: a, text: 'x {n}', numbers: {n: {bundle: b, quantity: q, show: tolerance}}}]": "but has none",
    "claims: [{page: a, text: 'x {n}', numbers: {n: {bundle: b, quantity: q, show: p_equal}}}]": "add over: CASE",
}


@pytest.mark.parametrize("text", list(BROKEN))
def test_a_broken_file_of_claims_is_one_line_and_status_2(folder: Path, capsys, text: str) -> None:
    (folder / "claims.yaml").write_text(text)
    assert run() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: claims.yaml") and BROKEN[text] in line and ";" in line


def test_every_file_of_claims_of_a_clone_is_read(folder: Path, capsys) -> None:
    assert report.main(["claims"]) == 2
    assert report.main(["claims", "none.yaml"]) == 2
    (folder / "docs/results").mkdir(parents=True)
    for name in ("claims", "more_claims"):
        write_claims(folder, "shows {gain}")
        (folder / "claims.yaml").rename(folder / f"docs/results/{name}.yaml")
    (folder / "page.md").write_text(f"shows {GAIN.median:.2f}")
    assert report.main(["claims"]) == 0
    for name in ("claims", "more_claims"):
        (folder / f"docs/results/{name}.yaml").write_text("complete_pages: {page.md: {}}")
    assert report.main(["claims"]) == 2
    output = capsys.readouterr()
    assert "2 checks: 2 hold" in output.out
    problems = ("has no docs/results/*claims*.yaml", "cannot read none.yaml", "the complete page page.md a second time")
    assert all(words in line for words, line in zip(problems, output.err.splitlines(), strict=True))


COMPLETE = """The gain is 1.70 (see [run 3](b7.html) of ResNet50).

```sh
run 7
```
`8` <!-- 9 --> on 32 px

The data are lost. Earlier it was 6.
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("", "", ""),
        ("ResNet50", "ResNet51", ""),
        ("run 7", "run 77", ""),
        ("was 6", "was 7", "exempt words are not on the page: 'was 6'"),
        ("are lost", "are here", "the page does not say why some of its numbers are not checked: 'The data are lost'"),
        ("32 px", "33 px", "exempt words are not on the page: 'on 32 px'"),
        ("32 px", "33 px", "the number 33 in 'of ResNet50). on 33 px The data"),
        ("on 32", "and 5.5 on 32", "the number 5.5 in"),
        ("run 3", "run 4", "the number 4 in"),
    ],
)
def test_every_number_of_a_complete_page_is_claimed_or_exempt(
    folder: Path, capsys, old: str, new: str, problem: str
) -> None:
    write_claims(folder, "The gain is {gain}")
    content = yaml.safe_load((folder / "claims.yaml").read_text())
    quoted = {"settings.yaml": ["on 32 px", "run 3"]}
    content["complete_pages"] = {"page.md": {"quoted": quoted, "unchecked": {"The data are lost": ["was 6"]}}}
    (folder / "settings.yaml").write_text("pixels: 32\nrun: 3\n")
    (folder / "claims.yaml").write_text(yaml.safe_dump(content))
    (folder / "page.md").write_text(COMPLETE.replace("1.70", f"{GAIN.median:.2f}").replace(old, new))
    assert run() == bool(problem)
    output = capsys.readouterr().out
    assert problem in output and ("page.md: every number is a claim\n" in output) is not bool(problem)


@pytest.mark.parametrize("text", ["pixels: 33, run 3", "pixels: 320, run: 3.2", None])
def test_a_quote_has_the_numbers_of_its_source(folder: Path, capsys, text: str | None) -> None:
    write_claims(folder, "The gain is {gain}")
    content = yaml.safe_load((folder / "claims.yaml").read_text())
    content["complete_pages"] = {"page.md": {"quoted": {"settings.yaml": ["on 32 px"]}}}
    (folder / "claims.yaml").write_text(yaml.safe_dump(content))
    (folder / "page.md").write_text(f"The gain is {GAIN.median:.2f} on 32 px")
    if text is not None:
        (folder / "settings.yaml").write_text(text)
    assert run() == 1
    assert "(settings.yaml has no 32, so 'on 32 px' is no quote of it)" in capsys.readouterr().out


def test_numbers_are_written_to_pages(folder: Path, capsys) -> None:
    numbers = {"gain": {}, "low": {"show": "low"}, "high": {"show": "high"}}
    write_claims(folder, "gain of {gain} and {low} to {high}", numbers=numbers)
    (folder / "page.md").write_text("A gain of\n    1 and 2\n to 3.5; gain of 9")
    assert run("--write") == 0
    expected = f"A gain of\n    {GAIN.median:.2f} and {GAIN.low:.2f}\n to {GAIN.high:.2f}; gain of 9"
    assert (folder / "page.md").read_text() == expected
    assert run("--write") == 0 and (folder / "page.md").read_text() == expected
    write_claims(folder, "{gain} times as fast", show="estimate")
    (folder / "page.md").write_text("- **MPS** is 1.2 (1.1 to 1.3) times as fast")
    assert run("--write") == 0 and (folder / "page.md").read_text() == f"- **MPS** is {words(GAIN)} times as fast"


def test_a_reproduction_is_compared_with_the_claims_about_its_experiment(folder: Path, capsys) -> None:
    write_claims(folder, "gain of {gain}", tolerance=0.05)
    runs = [*make_groups("serial", 1, SERIAL), *make_groups("mps", 2, [0.97 * rate for rate in MPS])]
    write_bundle(folder / "near.tar.xz", runs)
    write_bundle(folder / "far.tar.xz", [*make_groups("serial", 1, SERIAL), *make_groups("mps", 2, NAIVE)])
    write_bundle(folder / "less.tar.xz", [*make_groups("serial", 1, SERIAL)])
    write_bundle(folder / "other.tar.xz", runs, experiment="other")
    ended = {name: run("--reproduced", f"{name}.tar.xz") for name in ("near", "far", "less", "other", "none")}
    assert ended == {"near": 0, "far": 1, "less": 1, "other": 2, "none": 2}
    output = capsys.readouterr()
    near = f"{round_value(0.97 * GAIN.median)}, published {round_value(GAIN.median)}, tolerance 5 %"
    assert f"\nholds: page.md: gain of {{gain}}: {near}\n" in f"\n{output.out}"
    assert "published" in output.out and "(beyond the tolerance)" in output.out and "no groups 2 x tiny" in output.out
    assert "no claim about experiment 'other' has a tolerance" in output.err


def test_a_speedup_over_a_job_that_waits_for_its_host_is_not_decided_on_another_host(folder: Path, capsys) -> None:
    write_claims(folder, "gain of {gain}", tolerance=0.05)
    runs = [*make_groups("serial", 1, SERIAL), *make_groups("mps", 2, MPS)]
    elsewhere = [replace(group, gpu_uuid="GPU-other", facts={"boot_id": "boot-other"}) for group in runs]
    write_bundle(folder / "elsewhere.tar.xz", elsewhere)
    assert run("--reproduced", "elsewhere.tar.xz") == 1
    assert "a speed-up over serial holds for one host; remove the tolerance" in capsys.readouterr().out
