"""`transition` as a user calls it: what it writes and says, and what it refuses."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pipeline.planner import deployment
from pipeline.planner.__main__ import main
from pipeline.planner.transition import proof, transition_steps
from tests.unit.planner.transition.deployments import random_plan

DURATIONS = ["--duration", "create=30", "--duration", "delete=5", "--duration", "repartition=2"]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    chance = random.Random(5)
    for name in ("today.json", "tomorrow.json"):
        deployment.write(random_plan(chance, "a100_80gb", 3, 4), tmp_path / name)
    return [str(tmp_path / "today.json"), str(tmp_path / "tomorrow.json")]


def test_the_steps_are_written_proved_and_told(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "steps.json"
    assert main(["transition", *files, "--spare", "1", "--out", str(out), *DURATIONS]) == 0
    said = capsys.readouterr().out
    written = transition_steps.read(out)
    assert proof.check(written).broken == ()
    assert written.durations_s == {"create": 30, "delete": 5, "migrate": 35, "repartition": 2}
    assert f"makespan {written.makespan_s:g} s" in said and f"steps: {out}" in said
    assert said.count("\n") > len(written.steps)
    assert main(["transition", *files, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["makespan_s"] is None and told["longest_chain"] > 1 and told["broken"] == []
    assert len(told["steps"]) > 0 and told["lowest_per_s"].keys() == set(told["old_rates_per_s"]) & set(
        told["new_rates_per_s"]
    )


def test_where_there_is_no_way_the_status_is_1_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan(*profiles: tuple[str, int]) -> dict[str, Any]:
        rows = [{"profile": p, "start": s, "service": "a", "throughput_per_s": 10} for p, s in profiles]
        services = [{"name": "a", "rate_per_s": 10 * len(rows)}]
        return {"version": 1, "gpus": [{"model": "a100_80gb", "instances": rows}], "services": services}

    (tmp_path / "one.json").write_text(json.dumps(plan(("7g.80gb", 0))))
    (tmp_path / "two.json").write_text(json.dumps(plan(("4g.40gb", 0))))
    argv = ["transition", str(tmp_path / "one.json"), str(tmp_path / "two.json"), "--out", str(tmp_path / "steps.json")]
    assert main([*argv, "--spare", "0"]) == 1
    assert "was found with 0 spare GPUs of each model" in capsys.readouterr().out
    assert not (tmp_path / "steps.json").exists()
    assert main([*argv, "--spare", "1"]) == 0


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("throughput_per_s", None, "today: gpus[0].instances[0]: throughput_per_s of"),
        ("service", "zz", "today: gpus[0].instances[0]: service zz has no rate"),
        ("start", 3, "is not legal"),
    ],
)
def test_a_plan_that_cannot_be_used_is_refused(
    files: list[str], key: str, value: object, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    content = json.loads(Path(files[0]).read_text())
    content["gpus"][0]["instances"][0][key] = value
    Path(files[0]).write_text(json.dumps(content))
    assert main(["transition", *files, "--out", str(tmp_path / "steps.json")]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not (tmp_path / "steps.json").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--spare", "-1"], "--spare -1: must be from 0 to 4096"),
        (["--spare", "100000000"], "--spare 100000000: must be from 0 to 4096"),
        (["--duration", "create=30"], "repartition is missing"),
        (["--duration", "create=soon"], "--duration create=soon: not KIND=SECONDS"),
        (["--duration", "move=3"], "--duration move=3"),
        (["--duration", "delete=inf"], "--duration delete=inf"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused(
    files: list[str], given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["transition", *files, *given]) == 2
    assert said in capsys.readouterr().err


def test_a_file_of_steps_is_read_whole_or_not_at_all(files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "steps.json"
    main(["transition", *files, "--out", str(out)])
    content = json.loads(out.read_text())
    for change in (
        {"version": 9},
        {"steps": [{"id": "s1"}]},
        {"colour": 1},
        {"today": {"gpus": [{"model": "a100_80gb", "instances": []}]}},
    ):
        out.write_text(json.dumps(content | change))
        with pytest.raises(transition_steps.ConfigError, match=str(out)):
            transition_steps.read(out)
