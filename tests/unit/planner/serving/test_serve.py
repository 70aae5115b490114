"""Plans are legal, serve everybody, and have as few GPUs as there can be; what cannot be planned is said."""

from __future__ import annotations

import json

import pytest
import yaml

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.planner import __main__ as planner
from pipeline.planner import pictures, profile_table
from pipeline.planner.serving import solvers
from tests.support.plans import answer
from tests.unit.planner.serving import validator
from tests.unit.planner.serving.validator import random_case

pytestmark = pytest.mark.usefixtures("searches_by_rounds")
PARVAGPU = PROJECT_DIR / "tests/data/parvagpu"
SCENARIOS = PROJECT_DIR / "docs/papers/mig_serving"


def scenario(number):
    """The services of a scenario of ParvaGPU, from 0."""
    names = sorted(path.stem for path in PARVAGPU.glob("*.csv") if not path.name.startswith("slo_"))
    rates, objectives = (
        (PARVAGPU / f"slo_{what}.csv").read_text().splitlines()[number].split(",")
        for what in ("rate_per_s", "latency_ms")
    )
    return [
        {"name": name, "rate_per_s": float(rate), "objective_ms": float(objective), "latency_share": 0.45}
        for name, rate, objective in zip(names, rates, objectives, strict=True)
        if rate != "N/A"
    ]


@pytest.fixture(scope="module")
def parva_profile(tmp_path_factory):
    path = tmp_path_factory.mktemp("parvagpu") / "profile.csv"
    profile_table.write(path, profile_table.read_parvagpu(PARVAGPU))
    return path


def demand(folder, services, **settings):
    path = folder / "services.yaml"
    path.write_text(yaml.safe_dump({"services": services, **settings}))
    return path


@pytest.mark.parametrize("number", range(4))
def test_the_committed_services_are_the_scenarios_of_parvagpu(number):
    committed = yaml.safe_load((SCENARIOS / f"scenario_{number + 1}.yaml").read_text())
    assert [service | {"latency_share": committed["latency_share"]} for service in committed["services"]] == scenario(
        number
    )


def page_rows():
    """The rows of the page's table: scenario, times the rates, and the GPUs of each method."""
    load = 1
    for line in (SCENARIOS.with_suffix(".md")).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7 and cells[0].isdigit():
            load = int(words[0]) if (words := cells[1].split()) and words[0].isdigit() else load
            yield int(cells[0]), load, *map(int, cells[2:6]), cells[6]


@pytest.mark.slow
@pytest.mark.covers("docs/papers")
def test_the_page_on_mig_serving_has_the_gpus_of_each_method(capsys, parva_profile):
    rows = list(page_rows())
    assert [row[:2] for row in rows] == [(number, load) for load in (1, 4, 8) for number in (1, 2, 3, 4)]
    for number, load, exact, searches, smallest, undivided, saved in rows:
        path = SCENARIOS / f"scenario_{number}.yaml"
        _, data = answer(capsys, "compare", path, "--profile", parva_profile, "--load", load)
        assert {row["method"]: row["num_gpus"] for row in data["methods"]} == {
            "exact": exact,
            "greedy": searches,
            "tree": searches,
            "genetic": searches,
            "whole GPUs": undivided,
            "7x 1g.10gb": smallest,
        }, (number, load)
        assert saved == f"{100 * (1 - exact / undivided):.0f} %"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("number", "published"), [(0, 2), (1, 3), (2, 5), (3, 7)])
def test_the_scenarios_of_parvagpu_take_no_more_gpus_than_published(tmp_path, capsys, parva_profile, number, published):
    services = scenario(number)
    out = tmp_path / "plan.json"
    argv = [demand(tmp_path, services), "--profile", parva_profile, "--gpu", "simulated_a100_80gb"]
    status, plan = answer(capsys, "serve", *argv, "--out", out)
    assert (status, plan["status"], plan["gap"]) == (0, "optimal", 0) and plan["num_gpus"] == plan["bound"] <= published
    assert validator.list_faults(plan, services, validator.read_profile(parva_profile)) == []
    assert json.loads(out.read_text()) == plan
    _, compared = answer(capsys, "compare", *argv)
    num_gpus = {row["method"]: row["num_gpus"] for row in compared["methods"]}
    assert num_gpus["whole GPUs"] == [6, 11, 11, 11][number]
    assert num_gpus["exact"] == plan["num_gpus"] <= num_gpus["tree"] <= num_gpus["greedy"] <= num_gpus["7x 1g.10gb"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(12, 400))]
)
def test_random_plans_are_legal_and_as_small_as_trying_everything_finds(tmp_path, capsys, seed):
    services, path, models, limits, margin, argv = random_case(seed, tmp_path)
    rows = validator.read_profile(path)
    fewest = validator.find_fewest_gpus(services, rows, models, limits, most=3, margin=margin)
    status, plan = answer(capsys, "serve", *argv)
    if status == 0:
        assert validator.list_faults(plan, services, rows, limits, margin) == []
        assert plan["status"] == "optimal"
        assert plan["num_gpus"] == fewest or (fewest is None and plan["num_gpus"] > 3)
        check_slices(plan, services, rows, models, limits, margin)
    else:
        assert (status, plan["status"], fewest) == (1, "infeasible", None)
        assert plan["reasons"]
    for method in ("greedy", "tree", "genetic"):
        status, other = answer(capsys, "serve", *argv, "--method", method)
        if status == 0:
            assert validator.list_faults(other, services, rows, limits, margin) == []
            assert plan["num_gpus"] <= other["num_gpus"]
            if plan["num_gpus"] == other["num_gpus"] and other["details"]["has_fewest_slices"]:
                assert validator.count_slices(plan) == validator.count_slices(other)


def check_slices(plan, services, rows, models, limits, margin):
    details = plan["details"]
    taken = validator.count_slices(plan)
    assert (details["num_compute_slices"], details["num_memory_slices"]) == taken
    assert details["has_fewest_slices"]
    if plan["num_gpus"] <= 2:
        assert taken == validator.find_fewest_slices(services, rows, models, plan["num_gpus"], limits, margin)


ROW = {
    "schema_version": "1",
    "workload": "bert",
    "gpu_model": "a100_80gb",
    "sharing_mode": "mig",
    "instance_profile": "1g.10gb",
    "processes": "1",
    "throughput_per_s": "10",
    "latency_mean_ms": "20",
    "memory_mib": "5000",
}
WHOLE = ROW | {"sharing_mode": "mps", "instance_profile": "", "throughput_per_s": "45"}
BERT = {"name": "bert", "rate_per_s": 60, "objective_ms": 100}


def table(folder, *rows):
    path = folder / "profile.csv"
    path.write_text("\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)]) + "\n")
    return path


def test_an_objective_that_nothing_meets_is_an_answer(tmp_path, capsys):
    services = demand(tmp_path, [BERT | {"objective_ms": 40}], latency_share=0.5)
    path, out = table(tmp_path, ROW, WHOLE | {"latency_mean_ms": "25"}), tmp_path / "plan.json"
    status, plan = answer(capsys, "serve", services, "--profile", path, "--out", out)
    assert (status, plan["status"], plan["num_gpus"], plan["gpus"]) == (1, "infeasible", None, [])
    assert plan["unmet"] == [
        {
            "service": "bert",
            "objective_ms": 40,
            "latency_share": 0.5,
            "best_latency_ms": 20,
            "would_meet_objective_above_ms": 40,
        }
    ]
    assert not out.exists()
    assert planner.main(["serve", str(services), "--profile", str(path)]) == 1
    assert "bert: no latency is below 0.5 x 40 ms = 20 ms; the best is 20 ms" in capsys.readouterr().out


def test_the_99th_percentile_counts_where_it_was_measured(tmp_path, capsys):
    path = table(tmp_path, ROW | {"latency_p99_ms": "120"}, WHOLE | {"latency_p99_ms": ""})
    status, plan = answer(capsys, "serve", demand(tmp_path, [BERT]), "--profile", path)
    assert status == 0 and [gpu["mode"] for gpu in plan["gpus"]] == ["mps", "mps"]
    assert plan["details"]["services"][0]["latency_is"] == "mean"


def test_nothing_is_planned_with_modes_that_no_plan_can_ask_for(tmp_path, capsys):
    best = {"throughput_per_s": "1000", "latency_mean_ms": "1"}
    unplanned_rows = [WHOLE | best | {"sharing_mode": mode} for mode in ("timeslice", "mps_static", "fair")]
    argv = ["serve", demand(tmp_path, [BERT]), "--gpu", "simulated_a100_80gb"]
    plans = [answer(capsys, *argv, "--profile", table(tmp_path, ROW, *more_rows)) for more_rows in ([], unplanned_rows)]
    assert plans[0][0] == plans[1][0] == 0
    assert plans[0][1]["gpus"] == plans[1][1]["gpus"]
    status, error = answer(capsys, *argv, "--profile", table(tmp_path, *unplanned_rows))
    assert status == 2 and "service bert has no row" in error


def test_too_few_gpus_are_said_with_who_must_go(tmp_path, capsys):
    path = table(tmp_path, ROW, ROW | {"workload": "yolo"})
    services = [BERT | {"rate_per_s": 65}, BERT | {"name": "yolo", "rate_per_s": 5}]
    argv = ["serve", demand(tmp_path, services, limits={"gpus": {"a100_80gb": 1}}), "--profile", path]
    status, plan = answer(capsys, *argv)
    assert status == 1 and "limits.gpus (1 of a100_80gb) allows too few" in plan["reasons"][0]
    assert "without bert the others" in plan["reasons"][0] or "without yolo the others" in plan["reasons"][0]


SPEEDS = {"1g.10gb": 15, "2g.20gb": 114, "3g.40gb": 112, "7g.80gb": 164}


@pytest.mark.parametrize("method", solvers.METHODS)
@pytest.mark.parametrize("limits", [{}, {"services_per_gpu": 1}])
def test_a_small_service_gets_a_small_instance(tmp_path, capsys, method, limits):
    rows = [ROW | {"instance_profile": name, "throughput_per_s": str(speed)} for name, speed in SPEEDS.items()]
    rows.append(WHOLE | {"throughput_per_s": "500"})
    path = table(tmp_path, *rows)
    for rate, expected in ((20, ["2g.20gb"]), (15, ["1g.10gb"]), (120, ["1g.10gb", "2g.20gb"]), (400, [None])):
        services = demand(tmp_path, [BERT | {"rate_per_s": rate}], limits=limits)
        status, plan = answer(capsys, "serve", services, "--profile", path, "--method", method, "--time-limit-s", 0.5)
        assert (status, plan["num_gpus"]) == (0, 1)
        assert sorted((instance["profile"] for instance in plan["gpus"][0]["instances"]), key=str) == expected, rate
        assert plan["details"]["has_fewest_slices"]


def test_the_margin_is_what_the_interval_says(tmp_path, capsys):
    path = table(tmp_path, ROW | {"throughput_low_per_s": "8"})
    argv = ["serve", demand(tmp_path, [BERT]), "--profile", path]
    for margin, num_instances in (("none", 6), ("interval", 8), ("0.5", 12)):
        _, plan = answer(capsys, *argv, "--margin", margin)
        assert plan["details"]["services"][0]["num_instances"] == num_instances, margin
        assert plan["gpus"][0]["instances"][0]["throughput_per_s"] == 10


def test_of_mixed_models_each_is_used_for_what_it_does_best(tmp_path, capsys):
    rows = [
        ROW | {"workload": name, "gpu_model": model, "instance_profile": profile, "throughput_per_s": rate}
        for name, model, profile, rate in [
            ("bert", "a100_80gb", "7g.80gb", "100"),
            ("bert", "a30_24gb", "4g.24gb", "10"),
            ("yolo", "a100_80gb", "7g.80gb", "10"),
            ("yolo", "a30_24gb", "4g.24gb", "100"),
        ]
    ]
    services = [BERT | {"rate_per_s": 200}, BERT | {"name": "yolo", "rate_per_s": 100}]
    status, plan = answer(capsys, "serve", demand(tmp_path, services), "--profile", table(tmp_path, *rows))
    assert status == 0 and plan["num_gpus"] == 3
    assert {(gpu["model"], gpu["instances"][0]["service"]) for gpu in plan["gpus"]} == {
        ("a100_80gb", "bert"),
        ("a30_24gb", "yolo"),
    }


BAD_SERVICES = {
    "no row": ({"services": [BERT | {"name": "gpt"}]}, "service gpt has no row"),
    "rate of 0": ({"services": [BERT | {"rate_per_s": 0}]}, "services[0] bert, rate_per_s: must be above 0"),
    "objective of 0": ({"services": [BERT | {"objective_ms": 0}]}, "services[0] bert, objective_ms: must be above 0"),
    "a huge rate": (
        {"services": [BERT | {"rate_per_s": 1e9}]},
        "rate_per_s=1e+09 would need more than 100000 instances",
    ),
    "a tiny rate": ({"services": [BERT | {"rate_per_s": 1e-12}]}, "rate_per_s: 1e-12 is too small"),
    "no objective": ({"services": [{"name": "bert", "rate_per_s": 1}]}, "services[0] bert: key 'objective_ms' is miss"),
    "negative": ({"services": [BERT | {"rate_per_s": -1}]}, "rate_per_s must be finite and not negative"),
    "no number": ({"services": [BERT | {"rate_per_s": "many"}]}, 'rate_per_s must be a number, not "many"'),
    "twice": ({"services": [BERT, BERT]}, "services: bert is listed 2 times"),
    "unknown key": ({"services": [BERT | {"slo": 3}]}, "services[0]: unknown key 'slo'"),
    "nothing": ({"services": []}, "services is empty"),
    "a share above 1": ({"services": [BERT], "latency_share": 2}, "latency_share: 2 is above 1"),
    "unknown limit": (
        {"services": [BERT], "limits": {"apart": [["bert", "gpt"]]}},
        "apart[0]: unknown service",
    ),
    "another model": ({"services": [BERT], "limits": {"gpus": {"h100_80gb": 2}}}, "limits.gpus: model h100_80gb"),
}


@pytest.mark.parametrize(("content", "message"), BAD_SERVICES.values(), ids=BAD_SERVICES)
def test_services_that_cannot_be_used_are_refused(tmp_path, capsys, content, message):
    services, out = tmp_path / "services.yaml", tmp_path / "plan.json"
    services.write_text(yaml.safe_dump(content))
    status, error = answer(capsys, "serve", services, "--profile", table(tmp_path, ROW), "--out", out)
    assert status == 2 and message in error and error.count("\n") == 1 and not out.exists()


GOOD_TEXT = "services:\n- {name: bert, rate_per_s: 1, objective_ms: 50}\n"
BAD_TEXTS = {
    "a date as a name": (GOOD_TEXT.replace("bert", "2024-01-01"), "services[0].name must be a text, not a value of ty"),
    "a date as a rate": (GOOD_TEXT.replace("rate_per_s: 1", "rate_per_s: 2024-01-01"), "not a value of type date"),
    "bytes": (GOOD_TEXT.replace("bert", "!!binary aGVsbG8="), "not a value of type bytes"),
    "a set": (GOOD_TEXT.replace("bert", "!!set {a, b}"), "not a value of type set"),
    "no truth": (GOOD_TEXT.replace("bert", "!!bool perhaps"), "services.yaml: not valid YAML"),
    "a list in itself": ("services: &a [*a]", "services[0] must be an object, not a value of type list"),
    "nested too deep": (f"services: {'[' * 5000}{']' * 5000}", "services.yaml"),  # PyYAML before 6.0.4 reads it
    "keys of two types": (f"{GOOD_TEXT}1: 2\nfoo: 3\n", "services.yaml: the key 1 must be a text"),
    "a model without a name": (f"{GOOD_TEXT}limits: {{gpus: {{1: 2}}}}", "limits.gpus: the key 1 must be a text"),
    "digits without end": (GOOD_TEXT.replace("rate_per_s: 1", f"rate_per_s: {'9' * 5000}"), "not valid YAML"),
    "digits in hex": (GOOD_TEXT.replace("rate_per_s: 1", f"rate_per_s: 0x{'9' * 5000}"), "not a value of type int"),
    "a day that is none": (GOOD_TEXT.replace("bert", "2024-02-31"), "not valid YAML"),
    "a key twice": (f"{GOOD_TEXT}services: []\n", "services.yaml row 3: not valid YAML: key services is listed twice"),
}


@pytest.mark.parametrize(("text", "message"), BAD_TEXTS.values(), ids=BAD_TEXTS)
def test_yaml_that_holds_something_else_is_refused_in_one_line(tmp_path, capsys, text, message):
    services = tmp_path / "services.yaml"
    services.write_text(text)
    status, error = answer(capsys, "serve", services, "--profile", table(tmp_path, ROW))
    assert status == 2 and message in error and error.count("\n") == 1


BAD_PROFILES = {
    "another model": (
        [ROW, ROW | {"gpu_model": "h100_80gb"}],
        [],
        "profile.csv row 3, gpu_model: h100_80gb is not",
    ),
    "no such instance": ([ROW | {"instance_profile": "1g.5gb"}], [], "profile.csv row 2, instance_profile: "),
    "a short name": (
        [ROW | {"instance_profile": "1g"}],
        [],
        "row 2, instance_profile: 1g is not a full name",
    ),
    "no MIG": (
        [ROW | {"gpu_model": "NVIDIA L4"}],
        ["--gpu", "NVIDIA L4"],
        "all rows of NVIDIA L4 are for MIG instances",
    ),
    "no interval": ([ROW], ["--margin", "interval"], "no row of service bert has throughput_low_per_s"),
    "a margin": ([ROW], ["--margin", "much"], "--margin much: must be interval, none or a share"),
    "no latency": ([ROW | {"latency_mean_ms": ""}], [], "service bert: no row has a latency"),
    "a GPU twice": ([ROW], ["--gpu", "a100_80gb"], "model a100_80gb is named twice"),
    "an unknown GPU": ([ROW], ["--gpu", "simulated_a9000"], "GPU model 'simulated_a9000' is unknown"),
}


@pytest.mark.parametrize(("rows", "words", "message"), BAD_PROFILES.values(), ids=BAD_PROFILES)
def test_profiles_that_cannot_be_used_are_refused(tmp_path, capsys, rows, words, message):
    path = table(tmp_path, *rows)
    gpus = [] if "NVIDIA L4" in words else ["--gpu", "simulated_a100_80gb"]
    status, error = answer(capsys, "serve", demand(tmp_path, [BERT]), "--profile", path, *gpus, *words)
    assert status == 2 and message in error and error.count("\n") == 1


def test_a_folder_that_is_not_there_is_refused_before_anything_is_planned(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(solvers, "solve", lambda *_, **__: pytest.fail("planned"))
    argv = ["serve", demand(tmp_path, [BERT]), "--profile", table(tmp_path, ROW), "--out", tmp_path / "no/plan.json"]
    status, error = answer(capsys, *argv)
    assert status == 2 and "does not exist; create it" in error and error.count("\n") == 1


def test_a_file_that_is_not_there_is_named_once(tmp_path, capsys):
    status, error = answer(capsys, "serve", tmp_path / "no.yaml", "--profile", table(tmp_path, ROW))
    assert status == 2 and error.startswith(
        f"error: {tmp_path}/no.yaml: cannot be read: No such file or directory; name"
    )


def test_a_file_that_is_no_yaml_is_named_with_its_row(tmp_path, capsys):
    services = tmp_path / "services.yaml"
    services.write_text("services:\n  - {name: [bert\n")
    status, error = answer(capsys, "serve", services, "--profile", table(tmp_path, ROW))
    assert status == 2 and "services.yaml row 3: not valid YAML" in error and error.count("\n") == 1


@pytest.mark.slow
def test_methods_are_compared_at_several_loads(tmp_path, capsys, parva_profile):
    path = demand(tmp_path, scenario(0))
    argv = ["compare", path, "--profile", parva_profile]
    _, one = answer(capsys, *argv)
    _, both = answer(capsys, *argv, "--load", 1, "--load", 3)
    needed = [
        {row["method"]: row["num_gpus"] for row in load_answer["methods"]} for load_answer in (one, *both["loads"])
    ]
    assert [load_answer["load"] for load_answer in both["loads"]] == [1, 3] and needed[0] == needed[1]
    assert [load.load for load in pictures.read_loads(both, "compare.json")] == [1, 3]  # as it is drawn from
    tripled = [service | {"rate_per_s": 3 * service["rate_per_s"]} for service in scenario(0)]
    _, expected = answer(capsys, "serve", demand(tmp_path, tripled), "--profile", parva_profile)
    assert needed[2]["exact"] == expected["num_gpus"] > needed[0]["exact"]
    status, error = answer(capsys, *argv, "--load", 0)
    assert status == 2 and "--load 0" in error


@pytest.mark.parametrize(
    ("profiles", "expected"),
    [
        (["4g.40gb", "2g.20gb"], ["3x 2g.20gb"]),
        (["4g.40gb"], ["1x 4g.40gb"]),
        (["7g.80gb", "1g.10gb"], ["whole GPUs", "7x 1g.10gb"]),
        ([""], ["whole GPUs"]),
    ],
)
def test_only_what_was_profiled_is_compared_with(tmp_path, capsys, profiles, expected):
    rows = [
        ROW | {"instance_profile": profile, "sharing_mode": "mig" if profile else "mps", "throughput_per_s": "1000"}
        for profile in profiles
    ]
    argv = ["compare", demand(tmp_path, [BERT]), "--profile", table(tmp_path, *rows)]
    status, comparison = answer(capsys, *argv)
    assert status == 0
    assert [row["method"] for row in comparison["methods"]][len(solvers.METHODS) :] == expected


def test_rows_of_profiles_that_the_driver_does_not_have_are_left_out(tmp_path, capsys):
    """MIG User Guide: an A100 has a 1g with double memory from R525."""
    rows = [
        profile_table.Row(
            workload="bert",
            gpu_model="a100_40gb",
            sharing_mode="mig",
            instance_profile=name,
            processes=1,
            batch=8,
            throughput_per_s=rate,
            latency_mean_ms=5.0,
        )
        for name, rate in (("1g.10gb", 90.0), ("2g.10gb", 60.0))
    ]
    path = tmp_path / "profile.csv"
    profile_table.write(path, profile_table.Profile(rows=tuple(rows)))
    services = [{"name": "bert", "rate_per_s": 100, "objective_ms": 100, "latency_share": 1.0}]
    argv = ["serve", demand(tmp_path, services), "--profile", path, "--gpu", "simulated_a100_40gb", "--margin", "none"]
    for branch, profile in ((None, "1g.10gb"), (525, "1g.10gb"), (510, "2g.10gb")):
        status, plan = answer(capsys, *argv, *(() if branch is None else ("--driver-branch", branch)))
        assert status == 0
        assert {instance["profile"] for gpu in plan["gpus"] for instance in gpu["instances"]} == {profile}
