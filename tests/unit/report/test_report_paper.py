"""Findings of publications beside studies whose truth is known."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import MODES
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.report.evaluate import paper
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.contrasts import compare_modes
from pipeline.report.evaluate.metrics import METRICS
from pipeline.report.evaluate.paper import Agreement, FindingCheck
from pipeline.report.evaluate.publication import FOLDER, Finding, publications
from pipeline.report.page.study_tables import list_publication_tables
from pipeline.report.read.study_records import Row
from tests.conftest import GPU
from tests.support.report_rows import collocation_study, copies, job, params, row, study

BLOCKS = range(1, 7)
HOST, GPU_SPEEDS = (1.00, 0.92, 1.07, 0.97, 1.05), (1.000, 1.001, 0.999, 1.000, 1.001)
"""Speeds of a job that waits for its host, and of jobs that fill the GPU, by block."""
SEVEN = "time per epoch of seven ResNet26"
_COUNTED = re.compile(r"throughput_total_[a-z]+_per_s|energy_per_[a-z]+_j")
WITHOUT_MIG = "a medium model with one or two small ones is fastest"
ON_MIG = "three medium models and a small one are fastest"


def make_paper_params(workload: str = "robroek_small", **changes: Any) -> dict[str, str]:
    """Params of a job at the settings of the paper."""
    settings = {"recipe": "timm", "precision": "tf32", "source": "files", "image_px": 32, "batch_size": 32}
    settings |= {"autotune": "together", "loader_workers": 4}
    return params(workload, **settings | changes)


def checks(rows: Sequence[Row], start: str) -> list[FindingCheck]:
    """What a study says to the findings that begin so."""
    cells = make_cells(study(*rows))
    return [check for check in paper.compare(cells, compare_modes(cells)) if check.finding.text.startswith(start)]


def make_seven_jobs(slowdowns: Sequence[float], **changes: Any) -> list[Row]:
    """One job alone and seven under MPS, each so many times slower; a value a block."""
    job_params = make_paper_params(**changes)
    rows = []
    for block, slowdown in enumerate(slowdowns, start=1):
        rows += [copies("serial", 1, 2000.0, block, job_params), copies("mps", 7, 2000.0 / slowdown, block, job_params)]
    return rows


@pytest.mark.parametrize(
    ("slowdowns", "agreement", "difference"),
    [
        ((1.70, 1.71, 1.69, 1.70, 1.72), Agreement.AGREES, ""),
        ((1.50, 1.51, 1.49, 1.50, 1.51), Agreement.DIFFERS, "6 % lower"),
        ((2.00, 2.01, 1.99, 2.00, 2.01), Agreement.DIFFERS, "11 % higher"),
        ((1.61, 1.63, 1.61, 1.58, 1.60), Agreement.UNDECIDED, "the interval is wider than the range"),
        ((1.58, 1.62, 1.59, 1.60, 1.57), Agreement.UNDECIDED, "1 % lower, but the interval reaches into the range"),
        ((1.70, 1.71), Agreement.UNDECIDED, "too few blocks for an interval"),
    ],
)
def test_the_whole_interval_agrees_or_differs(
    slowdowns: Sequence[float], agreement: Agreement, difference: str
) -> None:
    (check,) = checks(make_seven_jobs(slowdowns), SEVEN)
    assert (check.agreement, check.difference) == (agreement, difference)
    assert check.finding.where == "figure 3" and check.degree == 7
    assert check.note == "NVIDIA H100 80GB HBM3 instead of an A100-SXM4-40GB; steady window instead of 5 epochs"


def make_drifting_rows(*totals: tuple[str, int, float], **changes: Any) -> list[Row]:
    """One job alone that follows its host, and groups that do not, with their total rates; five blocks."""
    job_params = make_paper_params(**changes)
    rows = [copies("serial", 1, 2000.0 * host, block, job_params) for block, host in enumerate(HOST, 1)]
    return rows + [
        copies(mode, degree, total * gpu / degree, block, job_params)
        for mode, degree, total in totals
        for block, gpu in enumerate(GPU_SPEEDS, 1)
    ]


def test_a_figure_over_a_drifting_baseline_is_marked_and_decides_nothing() -> None:
    (check,) = checks(make_drifting_rows(("mps", 7, 2000.0 / 1.70 * 7)), SEVEN)
    assert check.agreement is Agreement.UNDECIDED and check.difference == "a speed drifts with its host"
    assert check.figure is not None and re.fullmatch(r"1\.70\* \(.* to .*\)", check.figure_in_words)
    plain = checks(make_seven_jobs([1.70 * host for host in HOST]), SEVEN)[0].figure
    assert plain is not None and check.figure.high - check.figure.low > 2 * (plain.high - plain.low)
    (higher,) = checks(make_drifting_rows(("mps", 7, 2000.0 / 4 * 7)), SEVEN)
    assert higher.difference.endswith("% higher, but a speed drifts with its host"), "whatever the distance"
    (table,) = list_publication_tables([check])
    assert table.note.startswith("*: doubtful")


def test_a_figure_against_another_mode_that_drifts_is_marked() -> None:
    job_params = make_paper_params()
    rows = [copies("serial", 1, 700.0, block, job_params) for block, _ in enumerate(HOST, 1)]
    for block, (host, gpu) in enumerate(zip(HOST, GPU_SPEEDS, strict=True), 1):
        rows += [copies("naive", 2, 500.0 * host, block, job_params), copies("mps", 2, 600.0 * gpu, block, job_params)]
    against = [check for check in checks(rows, "") if check.finding.kind == "against" and check.figure is not None]
    assert against and all("*" in check.figure_in_words for check in against)
    assert {check.agreement for check in against} == {Agreement.UNDECIDED}


def test_the_interval_over_several_gpus_is_of_one_value_a_gpu() -> None:
    rows = make_seven_jobs((1.70, 1.70, 1.70, 1.61, 1.61, 1.61, 1.79, 1.79, 1.79))
    assert checks(rows, SEVEN)[0].agreement is Agreement.AGREES
    of_three = [dataclasses.replace(one, gpu_uuid=f"GPU-{(one.block - 1) // 3}") for one in rows]
    (check,) = checks(of_three, SEVEN)
    assert check.agreement is Agreement.UNDECIDED and check.figure is not None and check.figure.n == 3


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"batch_size": 128}, "batch 128 instead of 32"),
        ({"precision": "fp32"}, "precision fp32 instead of tf32"),
        ({"source": "synthetic_device"}, "data on the GPU instead of files or synthetic_files"),
        ({"recipe": "plain"}, "recipe plain instead of timm"),
        ({"autotune": "off"}, "autotune off instead of together"),
        ({"step_mode": "cuda_graph"}, "step mode cuda_graph instead of eager"),
        ({"image_px": 224}, "image size 224 instead of 32"),
        ({"image_px": 224, "batch_size": 128}, "batch 128 instead of 32; image size 224 instead of 32"),
        ({"workload": "resnet26_cifar10"}, "resnet26_cifar10 instead of robroek_small"),
    ],
)
def test_what_was_measured_at_other_settings_is_not_compared(changes: dict[str, Any], difference: str) -> None:
    (check,) = checks(make_seven_jobs([1.70, 1.71, 1.69, 1.70, 1.72], **changes), SEVEN)
    assert check.agreement is Agreement.OTHER_SETTINGS
    assert sorted(check.difference.split("; ")) == sorted(difference.split("; "))
    assert check.figure is not None and check.figure.median == pytest.approx(1.70)


def test_a_finding_stands_beside_its_own_settings_alone_where_they_were_measured() -> None:
    same = [1.70, 1.71, 1.69, 1.70, 1.72]
    rows = [
        *make_seven_jobs(same),
        *make_seven_jobs([5.0] * 5, batch_size=128),
        *make_seven_jobs([3.0] * 5, precision="fp32"),
    ]
    (check,) = checks(rows, SEVEN)
    assert check.agreement is Agreement.AGREES and "bs32" in check.case_label
    nearest = checks(
        make_seven_jobs([5.0] * 5, batch_size=128) + make_seven_jobs([3.0] * 5, batch_size=128, source="disk"), SEVEN
    )
    assert [check.difference for check in nearest] == ["batch 128 instead of 32"]
    (synthetic_check,) = checks(make_seven_jobs(same, source="synthetic_files"), SEVEN)
    assert synthetic_check.agreement is Agreement.AGREES and synthetic_check.note.endswith("; synthetic image files")


def test_mig_is_compared_on_the_instances_of_the_paper_only() -> None:
    job_params, other = make_paper_params(), {"mig_profile": "1g.10gb"}
    rows = [copies("serial", 1, 2000.0, block, job_params) for block in BLOCKS]
    rows += [copies("mig", 2, 1900.0 + block, block, job_params) for block in BLOCKS]  # 3g
    small = tuple(job(index, job_params, 600.0, place=other) for index in range(2))
    rows += [row("mig", small, block, profiles=("1g.10gb",) * 2, options={"profile": "1g"}) for block in BLOCKS]
    pair = "two small or medium models take about the time of one"
    (check,) = checks(rows, pair)
    assert (check.agreement, check.mode) == (Agreement.AGREES, "MIG 3g.40gb")
    (check,) = checks([mode_row for mode_row in rows if not mode_row.options.get("profile")][:6] + rows[12:], pair)
    assert (check.agreement, check.difference) == (Agreement.OTHER_SETTINGS, "a MIG instance of 1g instead of 3g")


def test_a_mix_on_mig_is_compared_where_each_size_has_the_instance_of_the_paper() -> None:
    def make_mixes(large: str) -> list[Row]:
        size_params = {"L": make_paper_params("robroek_large", image_px=224), "S": make_paper_params(batch_size=128)}
        places = {"L": large, "S": "1g.10gb"}
        mix_rows = []
        for block in BLOCKS:
            for mode, speed in (("naive", 0.5), ("mig", 0.3 + 0.0002 * block)):
                where = {size: {"mig_profile": places[size]} if mode == "mig" else {} for size in size_params}
                jobs = [job(i, size_params[s], 1000 * speed, size=s, place=where[s]) for i, s in enumerate(size_params)]
                mix_rows.append(row(mode, tuple(jobs), block))
            mix_rows += [row("serial", (job(0, size_params[size], 1000.0),), block) for size in size_params]
        return mix_rows

    slow = "a large model with a small or medium one is much slower on MIG"
    assert [check.agreement for check in checks(make_mixes("3g.40gb"), slow)] == [Agreement.AGREES]
    assert [check.agreement for check in checks(make_mixes("4g.40gb"), slow)] == [Agreement.AGREES]
    (check,) = checks(make_mixes("2g.20gb"), slow)
    assert (check.agreement, check.difference) == (
        Agreement.OTHER_SETTINGS,
        "a MIG instance of 2g instead of 3g or 4g",
    )


def mix(sizes: str, speeds: dict[str, float], **small: Any) -> list[Row]:
    """A mix in each mode, each of its jobs at that share of its speed alone."""
    size_params = {
        "S": make_paper_params(**{"batch_size": 128} | small),
        "M": make_paper_params("robroek_medium", batch_size=128, image_px=64),
        "L": make_paper_params("robroek_large", image_px=224),
    }
    rows = []
    for block in BLOCKS:
        rows += [row("serial", (job(0, size_params[size], 1000.0),), block) for size in sorted(set(sizes))]
        for mode, speed in speeds.items():
            rate = 1000 * speed * (1 + 0.001 * (-1) ** block)
            jobs = [job(i, size_params[size], rate, size=size) for i, size in enumerate(sizes)]
            rows.append(row(mode, tuple(jobs), block))
    return rows


@pytest.mark.parametrize(
    ("speeds", "agreement", "fastest"),
    [
        ({"naive": 0.8, "mps": 0.8, "mig": 0.6}, Agreement.AGREES, "naive or MPS"),
        ({"naive": 0.5, "mps": 0.8, "mig": 0.6}, Agreement.AGREES, "MPS"),
        ({"naive": 0.6, "mps": 0.6, "mig": 0.8}, Agreement.DIFFERS, "MIG"),
        ({"naive": 0.7, "mps": 0.8, "mig": 0.8}, Agreement.UNDECIDED, "MPS or MIG"),
    ],
)
def test_the_fastest_mode_of_a_mix(speeds: dict[str, float], agreement: Agreement, fastest: str) -> None:
    (check,) = checks(mix("MS", speeds), WITHOUT_MIG)
    assert (check.agreement, check.figure_in_words, check.degree) == (agreement, fastest, 2)


def test_who_is_fastest_is_not_known_while_a_mode_was_not_measured() -> None:
    (check,) = checks(mix("MS", {"naive": 0.7, "mps": 0.8}), WITHOUT_MIG)
    assert check.agreement is Agreement.NOT_MEASURED and check.figure_in_words == ""
    (check,) = checks(mix("MMMS", {"mps": 0.4, "mig": 0.5}), ON_MIG)
    assert check.agreement is Agreement.NOT_MEASURED


def test_a_mode_of_no_finding_does_not_take_the_place_of_the_fastest() -> None:
    rows = mix("MS", {"naive": 0.7, "mps": 0.8, "mig": 0.6, "mig_mps": 0.9})
    assert [check.agreement for check in checks(rows, WITHOUT_MIG)] == [Agreement.AGREES]


def test_what_a_mix_does_to_its_medium_model() -> None:
    rows = mix("MSS", {"naive": 0.95, "mps": 0.5})
    agreements = {check.mode: check.agreement for check in checks(rows, "one or two small models do not slow down")}
    assert agreements == {"naive": Agreement.AGREES, "MPS": Agreement.DIFFERS}
    benefit = {
        check.mode: check.agreement for check in checks(rows, "a medium model with one or two small ones: naive")
    }
    assert benefit == {"naive": Agreement.AGREES, "MPS": Agreement.AGREES}


def test_a_mix_has_the_settings_of_each_of_its_workloads() -> None:
    (check,) = checks(mix("MS", {"naive": 0.7, "mps": 0.8, "mig": 0.6}, batch_size=32), WITHOUT_MIG)
    assert (check.agreement, check.difference) == (Agreement.OTHER_SETTINGS, "batch 32 instead of 128")
    assert not [check for check in checks(mix("LS", {"mig": 0.3}), WITHOUT_MIG) if check.figure_in_words]


def test_naive_sharing_is_the_worst_but_for_resnets_at_batch_128() -> None:
    def rows(batch: int, naive: float, mps: float) -> list[Row]:
        job_params = make_paper_params(batch_size=batch)
        rates = {"naive": naive, "mps": mps}
        return [copies(mode, 7, rate + block, block, job_params) for block in BLOCKS for mode, rate in rates.items()]

    def make_rows_with_baseline(batch: int, naive: float, mps: float) -> list[Row]:
        alone = [copies("serial", 1, 2000.0, block, make_paper_params(batch_size=batch)) for block in BLOCKS]
        return alone + rows(batch, naive, mps)

    (worst,) = checks(make_rows_with_baseline(32, 900, 1200), "naive sharing is the worst, except")
    assert worst.agreement is Agreement.AGREES
    (suffers,) = checks(make_rows_with_baseline(128, 1200, 900), "with seven ResNets at batch 128")
    assert suffers.agreement is Agreement.AGREES
    (suffers,) = checks(make_rows_with_baseline(128, 900, 1200), "with seven ResNets at batch 128")
    assert suffers.agreement is Agreement.DIFFERS


def test_out_of_memory_and_what_was_never_measured() -> None:
    job_params = make_paper_params("robroek_large", image_px=224)
    seven_large = [
        row("naive", tuple(job(i, job_params, None) for i in range(7)), block, result=Result.OOM) for block in BLOCKS
    ]
    (check,) = checks(seven_large, "seven large models run out of memory")
    assert (check.agreement, check.figure_in_words) == (Agreement.AGREES, "oom")
    (fits,) = checks(
        [copies("naive", 7, 10.0, block, job_params) for block in BLOCKS], "seven large models run out of memory"
    )
    assert (fits.agreement, fits.difference) == (Agreement.DIFFERS, "the jobs fit into memory")
    (absent,) = checks(seven_large, SEVEN)
    assert (absent.agreement, absent.case_label) == (Agreement.NOT_MEASURED, "robroek_small")


def test_memory_is_compared_at_the_highest_degree() -> None:
    job_params = make_paper_params()
    metrics = {1: {"memory_peak_mib": 1500.0}, 3: {"memory_peak_mib": 4200.0}, 7: {"memory_peak_mib": 10000.0}}
    rows = [copies("serial", 1, 2000.0, block, job_params, metrics=metrics[1]) for block in BLOCKS]
    rows += [copies("mps", n, 900.0, block, job_params, metrics=metrics[n]) for block in BLOCKS for n in (3, 7)]
    (check,) = checks(rows, "memory grows")
    assert (check.degree, check.agreement) == (7, Agreement.AGREES)
    assert check.figure is not None and check.figure.median == pytest.approx(10000 / 1500 / 7)


def make_instance_row(profile: str, job_params: dict[str, str], rate: float, block: int, **metrics: float) -> Row:
    """One job on an instance."""
    jobs = (job(0, job_params, rate, place={"mig_profile": profile}),)
    return row("mig", jobs, block, options={"profile": profile}, metrics=metrics)


def test_a_figure_along_a_parameter_is_that_at_the_highest_value_over_that_at_the_lowest() -> None:
    def rows(growth: float, profile: str = "1g.10gb", **changes: Any) -> list[Row]:
        settings = {"precision": "default", "source": "disk", "sequence_tokens": 64} | changes
        return [
            make_instance_row(profile, params("bert_base", **settings | {"batch_size": batch}), rate, block)
            for block in range(1, 6)
            for batch, rate in ((16, 50.0), (32, 100.0), (64, 170.0), (512, 100 * growth + 0.1 * block))
        ]

    start = "on a small instance a larger batch does not raise the throughput of training BERT"
    (check,) = checks(rows(1.02), start)
    assert (check.agreement, check.mode) == (Agreement.AGREES, "MIG 1g.10gb")
    assert check.figure_in_words.endswith(", 512 over 32") and check.figure_in_words.startswith("1.02")
    assert check.note == "NVIDIA H100 80GB HBM3 instead of an A100"
    assert checks(rows(1.5), start)[0].agreement is Agreement.DIFFERS
    assert checks(rows(1.5, profile="3g.40gb"), start)[0].agreement is Agreement.NOT_MEASURED
    (other,) = checks(rows(1.02, sequence_tokens=128), start)
    assert (other.agreement, other.difference) == (Agreement.OTHER_SETTINGS, "sequence tokens 128 instead of 64")


def test_a_figure_along_the_mig_profile_is_that_of_the_largest_over_that_of_the_smallest() -> None:
    job_params = params("infer_bert_base", work_unit="requests", arrival="closed", outstanding=1, batch_size=8)
    rows = [
        make_instance_row(
            profile, job_params, 50.0, block, throughput_total_requests_per_s=50.0, energy_per_request_j=energy_j
        )
        for block in range(1, 6)
        for profile, energy_j in (("1g.10gb", 2.0 + 0.01 * block), ("7g.80gb", 1.0))
    ]
    (check,) = checks(rows, "larger instances use less energy for a fixed number of requests")
    assert (check.agreement, check.figure_in_words[:4]) == (Agreement.AGREES, "0.49")
    assert check.figure_in_words.endswith(", 7g.80gb over 1g.10gb")


def test_a_mode_is_held_against_another_in_any_quantity() -> None:
    job_params = params("infer_resnet50", image_px=224, arrival="closed", outstanding=1, batch_size=64)
    rows = []
    for block in range(1, 6):
        rows.append(copies("mps", 2, 50.0, block, job_params, metrics={"latency_p99_worst_ms": 12.0 + 0.1 * block}))
        rows.append(copies("mig", 2, 50.0, block, job_params, metrics={"latency_p99_worst_ms": 10.0}))
    (check,) = checks(rows, "at larger batches MPS loses to MIG on tail latency")
    assert (check.agreement, check.mode) == (Agreement.AGREES, "MPS over MIG 3g.40gb")
    assert check.figure is not None and check.figure.median == pytest.approx(1.23)
    assert check.note == "NVIDIA H100 80GB HBM3 instead of an A30"


def test_a_finding_on_mig_instances_has_the_activity_of_the_instances() -> None:
    jobs = [job(i, make_paper_params(), 300.0, place={"gi_id": str(i)}) for i in range(7)]
    active = tuple(dataclasses.replace(one, metrics={**one.metrics, "gract_mean_ratio": 0.7}) for one in jobs)
    groups = [row("mig", active, block, metrics={"gract_mean_ratio": 0.99}) for block in BLOCKS]
    (check,) = checks(groups, "ResNet26 at batch 32 never saturate")
    assert (check.agreement, check.figure_in_words[:4]) == (Agreement.AGREES, "0.70")


def test_large_models_are_compared_at_the_batch_of_their_figures() -> None:
    def gain(batch: int) -> FindingCheck:
        job_params = make_paper_params("robroek_large", image_px=224, batch_size=batch)
        rows = [copies("serial", 1, 600.0, block, job_params) for block in BLOCKS]
        rows += [copies("naive", 2, 300.0 + 0.1 * block, block, job_params) for block in BLOCKS]
        return checks(rows, "large models gain nothing")[0]

    assert gain(32).agreement is Agreement.AGREES
    assert (gain(128).agreement, gain(128).difference) == (Agreement.OTHER_SETTINGS, "batch 128 instead of 32")


def test_publications_name_their_authors_and_each_finding_its_figure() -> None:
    by_table = {publication.table: publication for publication in publications()}
    migperf, robroek = by_table["migperf"], by_table["paper"]
    authors = "Zhang, Li, Xiao, Huang, Di, Yin, See, Luo, Lau, You, arXiv 2301.00407"
    assert migperf.about.partition(":")[0] == authors
    assert robroek.about.startswith("Robroek, Yousefzadeh-Asl-Miandoab, Tözün, arXiv 2209.06018")
    (unnumbered,) = [finding.text for finding in robroek.findings if not finding.where.startswith("figure")]
    assert unnumbered.endswith("run out of memory already in pairs"), "the paper has no figure of them"
    assert {finding.where for finding in migperf.findings} == {
        *(f"figure 2{panel}" for panel in "abcd"),
        *(f"figure 3{panel}" for panel in "abcd"),
        *(f"figure {number}" for number in (4, 5, 6, 7)),
    }


def test_nothing_of_a_study_at_other_settings_agrees_or_differs() -> None:
    cells = make_cells(study(*collocation_study()))
    finding_checks = paper.compare(cells, compare_modes(cells))
    assert {check.agreement for check in finding_checks} == {Agreement.OTHER_SETTINGS, Agreement.NOT_MEASURED}
    unmatched_checks = [check for check in finding_checks if check.agreement is Agreement.OTHER_SETTINGS]
    assert len(unmatched_checks) > 10 and all(" instead of " in check.difference for check in unmatched_checks)
    # A publication none of whose workloads ran is not spoken of.
    (robroek,) = (publication for publication in publications() if publication.table == "paper")
    assert {check.finding for check in finding_checks} == set(robroek.findings)


def test_a_publication_speaks_of_what_there_is() -> None:
    for publication in publications():
        names = {program.name for program in publication.workloads}
        for finding in publication.findings:
            assert set(finding.modes) | set(finding.among) <= MODES.keys(), finding.text
            assert finding.kind in paper.KINDS and set(finding.workloads) <= names, finding.text
            is_known = finding.quantity in {*METRICS, "throughput"} or bool(_COUNTED.fullmatch(finding.quantity))
            assert is_known or not (finding.quantity or finding.kind in ("quantity", "along")), finding.text
            assert bool(finding.along) == (finding.kind == "along"), finding.text
            assert (finding.against in MODES) == (finding.kind == "against"), finding.text
            assert (finding.of in names) == (finding.kind == "slowdown"), finding.text
            assert (set(finding.modes) < set(finding.among)) == (finding.kind == "fastest"), finding.text
            assert (finding.low, finding.high) != (None, None) or finding.kind in ("out_of_memory", "fastest")
    assert "robroek" in {path.stem for path in FOLDER.glob("*.yaml")}


@pytest.mark.slow
@pytest.mark.torch
def test_the_workloads_that_a_publication_names_have_its_settings(make_plan) -> None:
    any_settings = Finding(text="", kind="quantity", modes=())
    for publication in publications():
        for program in publication.workloads:
            of_data = {**publication.settings, **program.settings}.get("source", ("synthetic_device",))
            kind, is_micro, operation = program.name.partition("micro_")
            chosen = ["workload=micro", f"workload.operation={operation}"] if is_micro else [f"workload={kind}"]
            plan = make_plan([*chosen, f"data.source={of_data[-1]}"], device=GPU)
            (workload,) = {job.workload for job in plan.groups[0].jobs}
            program_params = {"workload": workload.name, **dict(workload.params)}
            both = [publication.differences(any_settings, program_params, is_mix=is_mix) for is_mix in (False, True)]
            assert both == [[], []], program.name
            name = "micro" if is_micro else program.nearest or program.name
            assert (PROJECT_DIR / f"conf/workload/{name}.yaml").is_file()
