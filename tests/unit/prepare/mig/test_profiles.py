"""MIG profiles from the table and, below pynvml, as a real H100 reported them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from pipeline.base.domain import mig_table
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.gpu.__main__ import main
from pipeline.prepare.device.nvml import NvmlError
from pipeline.prepare.mig import profiles
from tests.support import forks
from tests.support.nvml_library import OTHER_UUID, UUID, NvmlLibrary, installed

TABLE: dict[str, Any] = json.loads((PROJECT_DIR / "pipeline/base/domain/mig_profiles.json").read_text())
ROWS = [
    pytest.param(model, row, id=f"{key}-{row['name']}")
    for key, model in TABLE["gpus"].items()
    for row in model["gi_profiles"]
]

# What NVML answered on one H100 80GB HBM3 with driver 580.159.04 and MIG mode off, by the number of the query:
# name, id, compute slices, instances, SMs, MB, then the size and the starts of the placements, and the numbers of copy
# engines, decoders, encoders, JPEG decoders and optical flow accelerators.
H100 = {
    0: ("1g.10gb", 19, 1, 7, 16, 9984, 1, (0, 1, 2, 3, 4, 5, 6), (1, 1, 0, 1, 0)),
    1: ("2g.20gb", 14, 2, 3, 32, 20096, 2, (0, 2, 4), (2, 2, 0, 2, 0)),
    2: ("3g.40gb", 9, 3, 2, 60, 40448, 4, (0, 4), (3, 3, 0, 3, 0)),
    3: ("4g.40gb", 5, 4, 1, 64, 40448, 4, (0,), (4, 4, 0, 4, 0)),
    4: ("7g.80gb", 0, 7, 1, 132, 81152, 8, (0,), (8, 7, 0, 7, 1)),
    7: ("1g.10gb+me", 20, 1, 1, 16, 9984, 1, (0, 1, 2, 3, 4, 5, 6), (1, 1, 0, 1, 1)),
    9: ("1g.20gb", 15, 1, 4, 26, 20096, 2, (0, 2, 4, 6), (1, 1, 0, 1, 0)),
}
FIRST_UNKNOWN_QUERY = 17


class MigLibrary(NvmlLibrary):
    """NVML of GPUs whose MIG profiles are `answers`; the driver refuses the numbers that it does not know."""

    def __init__(self, folder: Path, *missing: str) -> None:
        super().__init__(folder, *missing)
        self.functions |= {
            "nvmlDeviceGetGpuInstanceProfileInfoV": self.tell_profile,
            "nvmlDeviceGetGpuInstancePossiblePlacements_v2": self.tell_placements,
        }
        self.answers = dict(H100)

    def tell_profile(self, _handle: Any, query: int, info: Any) -> int:
        if query >= FIRST_UNKNOWN_QUERY:
            return pynvml.NVML_ERROR_INVALID_ARGUMENT
        if query not in self.answers:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        if info._obj.version != pynvml.nvmlGpuInstanceProfileInfo_v2:
            return pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        name, info._obj.id, info._obj.sliceCount, info._obj.instanceCount, *rest, engines = self.answers[query]
        info._obj.name = f"MIG {name}".encode()
        info._obj.multiprocessorCount, info._obj.memorySizeMB = rest[:2]
        for kind, count in zip(("copyEngine", "decoder", "encoder", "jpeg", "ofa"), engines, strict=True):
            setattr(info._obj, f"{kind}Count", count)
        return 0

    def tell_placements(self, _handle: Any, profile_id: int, placements: Any, count: Any) -> int:
        size, starts = next(answer[6:8] for answer in self.answers.values() if answer[1] == profile_id)
        if placements is not None:
            assert len(placements) >= len(starts)
            for placement, start in zip(placements, starts, strict=False):
                placement.start, placement.size = start, size
        count._obj.value = len(starts)
        return 0


@pytest.fixture
def library(tmp_path: Path) -> Iterator[MigLibrary]:
    with installed(MigLibrary(tmp_path)) as stand_in:
        yield stand_in


@pytest.mark.parametrize(("model", "row"), ROWS)
def test_a_row_of_the_table_agrees_with_itself(model: dict[str, Any], row: dict[str, Any]) -> None:
    assert row["name"].startswith(f"{row['compute_slices']}g.")
    starts = [placement["start"] for placement in row["placements"]]
    assert {placement["size"] for placement in row["placements"]} == {row["memory_slices"]}
    assert len(set(starts)) == len(starts) >= row["max_instances"] >= 1
    assert max(starts) + row["memory_slices"] <= model["memory_slices"]
    assert row["compute_slices"] * row["max_instances"] <= model["compute_slices"]
    assert set(row["source"]) <= set(TABLE["sources"])
    for key, total in (("sm", "sm_total"), ("memory_mib", "memory_mib_total")):
        if row[key] is not None and model[total] is not None:
            assert 0 < row[key] <= model[total]


def test_names_and_ids_are_unique_within_a_model() -> None:
    assert len(mig_table.models()) == 17
    for name in mig_table.models():
        gpu = profiles.load_model(name)
        assert len({profile.name for profile in gpu.profiles}) == len(gpu.profiles)
        assert len({profile.profile_id for profile in gpu.profiles}) == len(gpu.profiles)


def test_the_table_and_a_real_h100_give_the_same_records(library: MigLibrary) -> None:
    real = profiles.find_gpu("0")
    assert real.driver_branch == 580
    assert replace(real, driver_branch=None) == profiles.load_model("h100_80gb")


def test_a_profile_tells_its_suffix() -> None:
    gpu = profiles.load_model("rtxpro6000_96gb")
    suffixes = {profile.name: profile.suffix for profile in gpu.profiles if profile.compute_slices == 1}
    assert suffixes == {
        "1g.24gb": "",
        "1g.24gb+gfx": "+gfx",
        "1g.24gb+me": "+me",
        "1g.24gb+me.all": "+me.all",
        "1g.24gb-me": "-me",
    }


def test_ideal_ratios_come_from_sms_and_not_from_slices() -> None:
    a100, h100, b200 = map(profiles.load_model, ("a100_40gb", "h100_80gb", "b200_180gb"))
    ratios = {profile.name: a100.ideal_ratio(profile) for profile in a100.profiles}
    assert ratios["1g.5gb"] == pytest.approx(14 / 108)
    assert ratios["7g.40gb"] == pytest.approx(98 / 108)  # MIG mode itself costs ten SMs of an A100
    assert {profile.name: h100.ideal_ratio(profile) for profile in h100.profiles}["3g.40gb"] == pytest.approx(60 / 132)
    unknown = next(profile for profile in b200.profiles if profile.name == "3g.90gb")
    assert unknown.multiprocessors is None
    assert b200.ideal_ratio(unknown) is None


@pytest.mark.parametrize("name", ["h100_80gb", "H100-80GB-SXM", "h100_80gb_sxm"])
def test_a_model_is_found_by_its_names(name: str) -> None:
    assert profiles.load_model(name).name == "NVIDIA H100 80GB HBM3"


def test_a_model_that_is_not_known_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"GPU model 'h100' is unknown.*a100_40gb"):
        profiles.load_model("h100")


def test_the_selector_picks_the_gpu(tmp_path: Path) -> None:
    with installed(MigLibrary(tmp_path, OTHER_UUID)) as library:
        calls = []
        original = library.functions["nvmlDeviceGetHandleByUUID"]
        library.functions["nvmlDeviceGetHandleByUUID"] = lambda uuid, handle: (
            calls.append(uuid.value.decode()) or original(uuid, handle)
        )
        profiles.find_gpu("1")
        profiles.find_gpu(UUID)
        assert calls == [OTHER_UUID, UUID]
        with pytest.raises(ConfigError, match="matches 0 GPUs"):
            profiles.find_gpu("2")


def test_a_count_that_the_driver_does_not_have_is_missing(library: MigLibrary) -> None:
    library.answers[2] = (*H100[2][:4], 0xFFFFFFFF, *H100[2][5:])
    counts = {profile.name: profile.multiprocessors for profile in profiles.find_gpu("0").profiles}
    assert (counts["3g.40gb"], counts["2g.20gb"]) == (None, 32)


def test_a_gpu_without_mig_is_an_error(library: MigLibrary) -> None:
    library.answers.clear()
    with pytest.raises(ConfigError, match=r"H100 80GB HBM3 .* has no MIG profile"):
        profiles.find_gpu("0")


@pytest.mark.parametrize(
    ("function", "code", "error", "message"),
    [
        ("ProfileInfoV", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, ConfigError, "driver is too old"),
        ("ProfileInfoV", pynvml.NVML_ERROR_GPU_IS_LOST, NvmlError, "cannot read the MIG profiles"),
        ("PossiblePlacements_v2", pynvml.NVML_ERROR_NO_PERMISSION, ConfigError, "to administrators only"),
        ("PossiblePlacements_v2", pynvml.NVML_ERROR_UNKNOWN, NvmlError, "cannot read the MIG placements"),
    ],
)
def test_what_the_driver_refuses_is_an_error(
    library: MigLibrary, function: str, code: int, error: type[Exception], message: str
) -> None:
    library.fail(**{f"nvmlDeviceGetGpuInstance{function}": code})
    with pytest.raises(error, match=message):
        profiles.find_gpu("0")


def test_a_profile_without_placements_is_an_error_and_no_guess(library: MigLibrary) -> None:
    library.answers[0] = (*H100[0][:7], (), H100[0][8])
    with pytest.raises(NvmlError, match=r"placements of different sizes for MIG profile 19 of .*: \[\]"):
        profiles.find_gpu("0")


def test_the_command_shows_a_real_gpu(library: MigLibrary, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["gpu"], shown["compute_slices"], shown["memory_slices"]) == ("NVIDIA H100 80GB HBM3", 7, 8)
    assert {row["name"]: row["starts"] for row in shown["profiles"]} == {
        answer[0]: list(answer[7]) for answer in H100.values()
    }


def test_without_a_gpu_the_command_says_so_in_one_line(library: MigLibrary, capsys: pytest.CaptureFixture[str]) -> None:
    library.remove_gpus()
    assert main(["partitions", "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: this machine has no NVIDIA GPU")
    assert shown.err.count("\n") == 1


def test_a_gpu_that_does_not_answer_is_no_refused_question(
    library: MigLibrary, capsys: pytest.CaptureFixture[str]
) -> None:
    library.fail(nvmlDeviceGetGpuInstanceProfileInfoV=pynvml.NVML_ERROR_GPU_IS_LOST)
    assert main(["profiles"]) == 1
    assert "cannot read the MIG profiles" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_marks_what_is_not_known() -> None:
    def ask(*arguments: str) -> str:
        command = ["-m", "pipeline.gpu", "profiles", "--gpu", "simulated_b200_180gb", *arguments]
        done = forks.run(*command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    rows = {row["name"]: row for row in json.loads(ask("--json"))["profiles"]}
    assert rows["1g.23gb"]["multiprocessors"] == 18
    assert rows["3g.90gb"]["multiprocessors"] is rows["3g.90gb"]["ideal_ratio"] is rows["3g.90gb"]["memory_mib"] is None
    line = next(line for line in ask().splitlines() if line.startswith("3g.90gb"))
    assert line.split() == ["3g.90gb", "9", "3", "4", "0,4", "2", "-", "-", "-", "1c,2c"]
