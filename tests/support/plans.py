"""Builders of deployment plans, and the answers of the planner's commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.planner import __main__ as planner
from pipeline.planner import deployment
from pipeline.planner.deployment import Deployment, Gpu, Instance, Plan, Service

H100 = "h100_80gb"


def instance(
    profile: str | None, start: int | None, service: str = "bert", throughput_per_s: float | None = None, **fields: Any
) -> Instance:
    """Return a service on an instance, or on an undivided GPU without a profile."""
    return Instance(profile=profile, start=start, service=service, throughput_per_s=throughput_per_s, **fields)


def plan_of(*gpus: Gpu, rate_per_s: float = 60.0) -> Plan:
    """Return a plan in which every service has the same rate and objective."""
    names = dict.fromkeys(deployed_instance.service for gpu in gpus for deployed_instance in gpu.instances)
    services = tuple(Service(name=name, rate_per_s=rate_per_s, objective_ms=200.0) for name in names)
    return Plan(deployment=Deployment(gpus=gpus), services=services)


def write_plan(folder: Path, plan: Plan) -> Path:
    """Write a plan as mine.json into a folder."""
    deployment.write(plan, folder / "mine.json")
    return folder / "mine.json"


def answer(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, Any]:
    """Return the exit status of a command and its JSON, or its error if it is refused."""
    status = planner.main([*map(str, argv), "--json"])
    printed = capsys.readouterr()
    return status, json.loads(printed.out) if status < 2 else printed.err


def refusal(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """Return the error of a command that is refused in one line with exit status 2."""
    assert planner.main([*map(str, argv)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    return error
