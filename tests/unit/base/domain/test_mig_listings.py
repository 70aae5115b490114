"""The table of MIG profiles holds what public listings of real boards show, value by value."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from pipeline.base.domain import mig_table
from pipeline.base.system.errors import ConfigError
from pipeline.planner.results import granted_devices
from pipeline.prepare.mig import compute, layouts, mig_smi, profiles
from pipeline.simulation import smi_tables
from pipeline.simulation.machine.driver import Driver
from pipeline.simulation.machine.state_file import Gpu, StateFile
from tests.support.mig_listings import LISTINGS, parse_placements, parse_profiles

# Model by listing. Of a model's listings, the memory of the first is the table's.
MODELS = {
    "lgip_a30": "a30_24gb",
    "lgip_h100_pcie": "h100_80gb_pcie",
    "lgip_h200_gpu6": "h200_141gb",
    "lgip_h100_nvl": "h100_94gb",
    "lgip_h100_94gb_vgpu_host": "h100_94gb",
    "lgip_gh200_144gb": "gh200_144gb",
    "lgip_b200_2025-03": "b200_180gb",
    "lgip_b200_2025-01": "b200_180gb",
    "lgip_gb200_production": "gb200",
    "lgip_gb200_hgx_early": "gb200",
    "lgip_rtxpro6000": "rtxpro6000_96gb",
}
NUM_ROWS = {"lgip_a30": 5, "lgip_gh200_144gb": 4, "lgip_rtxpro6000": 11}
NUM_ROWS |= dict.fromkeys((name for name in MODELS if "b200" in name), 4)
FIRST = {model: name for name, model in reversed(MODELS.items())}
# The devices of each GPU in a listing of `nvidia-smi -L`.
DEVICES = {
    "L_dgx_a100_compute_instances": [
        ["3g.20gb"] * 2,
        ["7g.40gb"],
        ["1c.3g.20gb"] * 6,
        ["4g.20gb"],
        ["1c.7g.40gb", "2c.7g.40gb", "3c.7g.40gb"],
        ["4g.20gb", "2g.10gb", "1g.5gb"],
    ],
    "L_dra_wrong_allocation": [["4g.40gb"], ["4g.40gb"], [None], ["4g.40gb"]],
    "lgi_and_L_h100_nvl": [["2g.24gb", "2g.24gb", "2g.24gb", "1g.12gb"]],
    "session_a30": [["2g.12gb", "1g.6gb", "1g.6gb"]],
}
# The GPU instances of each GPU in a listing of `-lgi`: id by placement.
INSTANCES = {
    "lgi_and_L_h100_nvl": {"0": {"6:1": 13, "0:2": 3, "2:2": 4, "4:2": 5}},
    "lgi_a100_80gb_several_gpus": {
        "0": {"2:1": 9, "3:1": 10, "0:2": 3, "4:4": 2},
        "1": {"2:1": 13, "3:1": 14, "0:2": 5, "4:4": 1},
    },
    "session_a30": {"0": {"0:1": 3, "1:1": 4, "2:2": 2}},
    "session_rtxpro6000": {"0": {"6:3": 5, "9:3": 6, "0:6": 1}},
}


def read(name: str) -> str:
    return (LISTINGS / f"{name}.txt").read_text()


def test_every_listing_is_compared() -> None:
    names = {path.stem for path in LISTINGS.glob("*.txt")}
    assert names == {*MODELS, *DEVICES, *INSTANCES}


@pytest.mark.parametrize("listing", MODELS)
def test_the_table_has_the_values_of_a_listing(listing: str) -> None:
    model = mig_table.find(MODELS[listing])
    listed = list(parse_profiles(read(listing)))
    assert len(listed) == NUM_ROWS.get(listing, 7)
    for row in listed:
        profile = model.profile(row.id)
        assert {name: getattr(profile, name) for name in row.values} == row.values, row.name
        assert row.memory_mib in [memory.mib for memory in profile.listed_memory], row.name
        if listing == FIRST[MODELS[listing]]:
            assert (profile.name, profile.memory_mib) == (row.name, row.memory_mib)
        else:
            assert row.name == profile.name or listing == "lgip_gb200_hgx_early"


def test_memory_is_that_of_the_driver_and_the_smallest_if_no_listing_names_its_driver() -> None:
    b200, rtx = mig_table.find("b200_180gb").profile(19), mig_table.find("rtxpro6000_96gb").profile(14)
    assert [memory.mib for memory in b200.listed_memory] == [20992, 22528]
    assert {branch: b200.read_memory_mib(branch) for branch in (None, 570, 590)} == {
        None: 20992,
        570: 20992,
        590: 20992,
    }
    gb200 = mig_table.find("gb200").profile(19)
    assert (gb200.memory_mib, gb200.read_memory_mib(570)) == (22528, 20480)
    # Driver 610 has its own listing, and older drivers have the smallest figure.
    assert {branch: rtx.read_memory_mib(branch) for branch in (None, 580, 610, 615)} == {
        None: 24192,
        580: 23680,
        610: 24192,
        615: 24192,
    }
    assert profiles.load_model("gb200", driver_branch=580).profiles[0].memory_mib == 20480
    b300 = mig_table.find("b300").profiles[0]
    assert b300.read_memory_mib(580) is None
    assert b300.listed_memory == ()


def test_what_a_simulated_gpu_lists_is_read_by_the_same_reader() -> None:
    gpu = Gpu(uuid="GPU-1", model="h200_141gb", bus_id="00000000:01:00.0")
    simulated = list(parse_profiles("\n".join(smi_tables.profile_table([(0, gpu)]))))
    assert simulated == list(parse_profiles(read("lgip_h200_gpu6")))


@pytest.mark.parametrize(
    ("listing", "name", "num_profiles"), [("session_a30", "a30_24gb", 5), ("session_rtxpro6000", "rtxpro6000_96gb", 11)]
)
def test_the_placements_are_those_of_a_listing(listing: str, name: str, num_profiles: int) -> None:
    listed = parse_placements(read(listing))
    assert len(listed) == num_profiles
    assert {profile.id: (profile.starts, profile.memory_slices) for profile in mig_table.find(name).profiles} == listed


def _group_by_gpu(rows: Iterable[tuple[str, ...]]) -> dict[str, dict[str, int]]:
    grouped: dict[str, dict[str, int]] = {}
    for gpu, instance, place in rows:
        grouped.setdefault(gpu, {})[place] = int(instance)
    return grouped


@pytest.mark.parametrize(
    ("listing", "name"),
    [
        ("lgi_and_L_h100_nvl", "h100_94gb"),
        ("lgi_a100_80gb_several_gpus", "a100_80gb"),
        ("session_a30", "a30_24gb"),
        ("session_rtxpro6000", "rtxpro6000_96gb"),
    ],
)
def test_instances_of_a_listing_are_read_and_lie_where_the_table_says(listing: str, name: str) -> None:
    text = read(listing)
    listed = re.findall(r"\| +([0-9]+)  MIG (\S+) +([0-9]+) +([0-9]+) +([0-9]+):([0-9]+) ", text)
    assert (
        _group_by_gpu((gpu, number, f"{start}:{size}") for gpu, _, _, number, start, size in listed)
        == (INSTANCES[listing])
    )
    # The parser of the project, for one GPU.
    assert mig_smi._INSTANCE_ROW.findall(text) == [(profile, *rest[:2]) for _, _, profile, *rest in listed]
    model, gpu = mig_table.find(name), profiles.load_model(name)
    by_id = {profile.profile_id: profile for profile in gpu.profiles}
    for index in INSTANCES[listing]:
        rows = [row[1:] for row in listed if row[0] == index]
        for kind, profile_id, _, start, size in rows:
            profile = model.profile(int(profile_id))
            assert (kind, int(size)) == (profile.name, profile.memory_slices)
            assert int(start) in profile.starts
        placed = tuple((by_id[int(profile_id)], int(start)) for _, profile_id, _, start, _ in rows)
        assert layouts.explain_misplaced(gpu, placed) is None


def test_the_ids_of_equal_placements_differ_between_gpus_as_on_simulated_gpus(tmp_path: Path) -> None:
    """An id that was read on one GPU is not the id of the same placement on another."""
    state_file = StateFile(tmp_path / "machine.json")
    state_file.create(["a100_80gb", "a100_80gb"])
    driver = Driver(state_file)
    simulated: dict[str, dict[str, int]] = {}
    for index in (0, 1):
        driver.set_mig_mode(index, is_on=True)
        for profile_id, start in ((9, 4), (14, 0), (19, 2), (19, 3)):
            gpu_instance = driver.create_gpu_instance(index, profile_id, start)
            simulated.setdefault(str(index), {})[f"{start}:{gpu_instance.size}"] = gpu_instance.id
    first, second = INSTANCES["lgi_a100_80gb_several_gpus"].values()
    assert simulated == {"0": second, "1": first}


@pytest.mark.parametrize("listing", DEVICES)
def test_devices_of_a_listing_are_read_and_their_layouts_are_legal(listing: str) -> None:
    text = read(listing).partition("$ nvidia-smi -L\n")
    by_gpu: dict[str, list[granted_devices.GrantedDevice]] = {}
    for device in granted_devices.read_listing(text[2] or text[0], listing):
        by_gpu.setdefault(device.gpu_uuid, []).append(device)
    assert [[device.profile for device in devices] for devices in by_gpu.values()] == DEVICES[listing]
    assert len({device.uuid for devices in by_gpu.values() for device in devices}) == sum(map(len, DEVICES[listing]))
    for devices in by_gpu.values():
        model = devices[0].model
        gpu = profiles.load_model(mig_table.find(model if model.startswith("NVIDIA") else f"NVIDIA {model}").name)
        shares = [compute.resolve(gpu, device.profile) for device in devices if device.profile is not None]
        layout = compute.plan_layout(gpu, shares)
        assert [name for _, name in layout.devices] == [device.profile for device in devices if device.profile]


def test_a_session_has_the_words_that_the_project_waits_for() -> None:
    refusal = next(line for line in read("session_rtxpro6000").splitlines() if line.startswith("Unable"))
    assert mig_smi._IN_USE in refusal.lower()


@pytest.mark.parametrize("prefix", ["", "simulated_"])
def test_a_name_with_a_typing_mistake_is_answered_with_names_of_its_kind(prefix: str) -> None:
    near = (
        rf"^GPU model '{prefix}h100_8gb' is unknown; did you mean {prefix}h100_80gb\? Or choose one of {prefix}a30_24gb"
    )
    with pytest.raises(ConfigError, match=near):
        mig_table.find(f"{prefix}h100_8gb")
