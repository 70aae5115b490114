"""The comparison of what pods got with the plan: ten wrong allocations are told apart."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from pipeline.planner import __main__
from pipeline.planner.deployment import Deployment, Gpu, Plan
from pipeline.planner.export import manifests
from pipeline.simulation.install import install_driver
from tests.support import simulated
from tests.support.plans import instance, refusal, write_plan

PCIE = "NVIDIA H100 PCIe"
POD = "h100-80gb-pcie-mig-4g-40gb-2g-20gb-1g-10gb"
PLANNED = ((4, "4g.40gb", 0), (2, "2g.20gb", 4), (1, "1g.10gb", 6))


def uuid(number: int) -> str:
    return f"{number:08x}-1111-4222-8333-{number:012x}"


def listing(*gpus: tuple[int, str], model: str = PCIE) -> str:
    """Return the output of `nvidia-smi -L`: for each GPU its number and its instances (`4g.40gb=7`)."""
    lines = []
    for index, (number, instances) in enumerate(gpus):
        lines.append(f"GPU {index}: {model} (UUID: GPU-{uuid(number)})")
        for position, word in enumerate(instances.split()):
            profile, _, instance = word.partition("=")
            lines.append(f"  MIG {profile:<11} Device {position:>2}: (UUID: MIG-{uuid(int(instance))})")
    return "\n".join(lines) + "\n"


DIVIDED = Gpu(
    model="h100_80gb_pcie", instances=tuple(instance(name, start, "a", memory_mib=9.0) for _, name, start in PLANNED)
)
SHARED = Gpu(
    model="h100_80gb_pcie", mode="naive", instances=tuple(instance(None, None, name, memory_mib=9.0) for name in "ab")
)


def run_granted(tmp_path: Path, *words: str, gpus: tuple[Gpu, ...] = (DIVIDED,), kind: str = "dra") -> int:
    plan = write_plan(tmp_path, Plan(deployment=Deployment(gpus=gpus)))
    return __main__.main(["granted", str(plan), *words, "--as", kind])


def write(tmp_path: Path, **texts: str) -> list[str]:
    words = []
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        words.append(f"{POD}-{name}={tmp_path / name}")
    return words


def test_pods_that_got_what_was_planned(tmp_path: Path, capsys) -> None:
    good = listing((1, "4g.40gb=2 2g.20gb=3 1g.10gb=4"))
    (tmp_path / f"{POD}-7d4b-x2x9k.txt").write_text(good)
    assert run_granted(tmp_path, str(tmp_path / f"{POD}-7d4b-x2x9k.txt")) == 0
    assert "as planned: 1 pod" in capsys.readouterr().out
    # Each container sees its own instance only.
    parts = [listing((1, word)) for word in ("4g.40gb=2", "2g.20gb=3", "1g.10gb=4")]
    words = [f"{POD}={tmp_path / name}" for name in "abc"]
    for name, text in zip("abc", parts, strict=True):
        (tmp_path / name).write_text(text)
    assert run_granted(tmp_path, *words, "--json") == 0
    assert json.loads(capsys.readouterr().out)["as_planned"] is True


THREE = listing((1, "4g.40gb=2"), (3, "4g.40gb=4"), (5, ""), (6, "4g.40gb=7"))
WRONG: dict[str, tuple[str, list[str]]] = {
    "the first profile thrice, on three GPUs": (
        THREE,
        [
            "did not get 2g.20gb, 1g.10gb",
            "got 2x 4g.40gb, undivided GPU that was not planned",
            "devices are on 4 GPUs, planned on one",
        ],
    ),
    "the right profiles, on two GPUs": (
        listing((1, "4g.40gb=2 2g.20gb=3"), (5, "1g.10gb=4")),
        ["devices are on 2 GPUs, planned on one"],
    ),
    "a smaller profile": (
        listing((1, "3g.40gb=2 2g.20gb=3 1g.10gb=4")),
        ["did not get 4g.40gb", "got 3g.40gb that was not planned"],
    ),
    "another model with the same profiles": (
        listing((1, "4g.40gb=2 2g.20gb=3 1g.10gb=4"), model="NVIDIA A100-SXM4-80GB"),
        ["GPU is NVIDIA A100-SXM4-80GB, planned h100_80gb_pcie"],
    ),
    "an undivided GPU": (
        listing((1, "")),
        ["did not get 4g.40gb, 2g.20gb, 1g.10gb", "got undivided GPU that was not planned"],
    ),
    "a compute instance": (
        listing((1, "2c.4g.40gb=2 2g.20gb=3 1g.10gb=4")),
        ["did not get 4g.40gb", "got 2c.4g.40gb that was not planned"],
    ),
    "an instance with media engines": (
        listing((1, "4g.40gb=2 2g.20gb=3 1g.10gb+me=4")),
        ["did not get 1g.10gb", "got 1g.10gb+me that was not planned"],
    ),
    "nothing": ("No devices found.\n", ["did not get 4g.40gb, 2g.20gb, 1g.10gb"]),
    "an instance too many": (
        listing((1, "4g.40gb=2 2g.20gb=3 1g.10gb=4 1g.10gb=5")),
        ["got 1g.10gb that was not planned"],
    ),
    "the same instance for two containers": (
        listing((1, "4g.40gb=2")) + listing((1, "2g.20gb=3")) + listing((1, "2g.20gb=3")),
        ["did not get 1g.10gb", f"2 containers got the same instance MIG-{uuid(3)}"],
    ),
}


@pytest.mark.parametrize(("text", "differences"), WRONG.values(), ids=WRONG)
def test_a_wrong_allocation_is_named(tmp_path: Path, capsys, text: str, differences: list[str]) -> None:
    words = write(tmp_path, x=text)
    assert run_granted(tmp_path, *words, "--json") == 1
    (pod,) = json.loads(capsys.readouterr().out)["pods"]
    assert pod["differences"] == differences
    assert run_granted(tmp_path, *words) == 1
    assert f"{POD}-x: {differences[0]}" in capsys.readouterr().out


def test_pods_with_the_same_instance_and_missing_pods_are_named(tmp_path: Path, capsys) -> None:
    words = write(
        tmp_path,
        x=listing((1, "4g.40gb=2 2g.20gb=3 1g.10gb=4")),
        y=listing((1, "4g.40gb=5 2g.20gb=3 1g.10gb=6")),
    )
    assert run_granted(tmp_path, *words, gpus=(DIVIDED, DIVIDED)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"{POD}-x: got the same instance as {POD}-y: MIG-{uuid(3)}" in lines and len(lines) == 6
    assert run_granted(tmp_path, words[0], gpus=(DIVIDED, DIVIDED)) == 1
    assert f"{POD}: 1 pod, planned 2" in capsys.readouterr().out
    assert run_granted(tmp_path, *words) == 1
    assert f"{POD}: 2 pods, planned 1" in capsys.readouterr().out


def test_only_planned_parts_of_a_gpu_are_shared_by_pods(tmp_path: Path, capsys) -> None:
    (tmp_path / "gpu").write_text(listing((1, "")))
    words = [f"{name}-gpu-1x={tmp_path / 'gpu'}" for name in "ab"]
    assert run_granted(tmp_path, *words, gpus=(SHARED,), kind="kai") == 0
    alone = [Gpu(model=SHARED.model, mode="naive", instances=(instance_alone,)) for instance_alone in SHARED.instances]
    capsys.readouterr()
    assert run_granted(tmp_path, *words, gpus=tuple(alone), kind="kai") == 1
    assert f"a-gpu-1x: got the same GPU as b-gpu-1x: GPU-{uuid(1)}" in capsys.readouterr().out
    (tmp_path / "mig").write_text(listing((1, "1g.10gb=4")))
    small = Gpu(model=SHARED.model, instances=(instance("1g.10gb", 0, "c", memory_mib=9.0),))
    mixed = [words[0], f"c-1g-10gb-1x={tmp_path / 'mig'}"]
    assert run_granted(tmp_path, *mixed, gpus=(alone[0], small), kind="kubernetes") == 1
    assert "a-gpu-1x: got the GPU on which c-1g-10gb-1x has an instance" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["other=FILE"], f"pod other: the plan has no such pod; its name must begin with one of {POD}"),
        ([f"{POD}=EMPTY"], "is empty; write the output of `nvidia-smi -L` to it"),
        ([f"{POD}=ERROR"], "row 1: not a line of `nvidia-smi -L`: 'Failed to initialize NVML: Unknown Error'"),
        ([f"{POD}=NOWHERE"], "cannot be read"),
        (["-"], "no pod or no file is named"),
        ([f"{POD}=FILE", "--pod", "x"], "--pod has no effect with listings"),
    ],
)
def test_bad_input_is_refused(tmp_path: Path, capsys, words: list[str], problem: str) -> None:
    (tmp_path / "FILE").write_text(listing((1, "4g.40gb=2")))
    (tmp_path / "EMPTY").write_text("# nothing\n\n")
    (tmp_path / "ERROR").write_text("Failed to initialize NVML: Unknown Error\n")
    plan = write_plan(tmp_path, Plan(deployment=Deployment(gpus=(DIVIDED,))))
    assert problem in refusal(capsys, "granted", plan, *(word.replace("=", f"={tmp_path}/") for word in words))


def test_stdin_is_a_listing(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(listing((1, "4g.40gb=2 2g.20gb=3 1g.10gb=4"))))
    assert run_granted(tmp_path, f"{POD}=-") == 0


def test_every_export_with_pods_can_be_compared(tmp_path: Path) -> None:
    text = {"dra": listing((1, "4g.40gb=2 2g.20gb=3 1g.10gb=4"))}
    for kind in manifests.FORMATS:
        if kind == "dra":
            words = write(tmp_path, x=text[kind])
        else:
            words = []
            for slices, name, _ in PLANNED:
                (tmp_path / name).write_text(listing((1, f"{name}={slices}")))
                words.append(f"a-{name.replace('.', '-')}-1x={tmp_path / name}")
        assert run_granted(tmp_path, *words, kind=kind) == 0


def test_nvml_is_asked_without_files(tmp_path: Path, capsys) -> None:
    machine = simulated.Machine.make(tmp_path / "machine", "a100_40gb", is_on=True)
    gi_id = machine.driver.create_gpu_instance(0, 14, 0).id
    machine.driver.create_compute_instance(0, gi_id, 0)
    plan = Gpu(model="a100_40gb", instances=(instance("2g.10gb", 0),))
    with install_driver(machine.file.path):
        assert run_granted(tmp_path, "--pod", "a100-40gb-mig-2g-10gb-x", gpus=(plan, plan)) == 1
    assert "did not get 2g.10gb" in capsys.readouterr().out
