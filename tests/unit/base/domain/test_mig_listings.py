"""The table of MIG profiles holds what public listings of real boards show, value by value."""

from __future__ import annotations

import json
import re

import pytest

from pipeline.base.domain import mig_table
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.prepare.mig import control
from pipeline.simulation.machine.state_file import Gpu
from pipeline.simulation.smi import smi_tables
from tests.support.mig_listings import LISTINGS, parse_placements, parse_profiles

# Model by listing. Of a model's listings, the memory of the first is the table's.
MODELS = {
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
NUM_ROWS = {"h200_141gb": 7, "h100_94gb": 7, "gh200_144gb": 4, "b200_180gb": 4, "gb200": 4, "rtxpro6000_96gb": 11}
FIRST = {model: name for name, model in reversed(MODELS.items())}
ROWS = {
    model["aliases"][0] if model["aliases"] else key.lower().replace("-", "_"): {
        row["smi_profile_id"]: row for row in model["gi_profiles"]
    }
    for key, model in json.loads((PROJECT_DIR / "pipeline/base/domain/mig_profiles.json").read_text())["gpus"].items()
}


def read(name: str) -> str:
    return (LISTINGS / f"{name}.txt").read_text()


def test_every_listing_is_compared() -> None:
    assert {path.stem for path in LISTINGS.glob("lgip_*.txt")} == set(MODELS)


@pytest.mark.parametrize("listing", MODELS)
def test_the_table_has_the_values_of_a_listing(listing: str) -> None:
    model = mig_table.find(MODELS[listing])
    listed = list(parse_profiles(read(listing)))
    assert len(listed) == NUM_ROWS[MODELS[listing]]
    for row in listed:
        profile = model.profile(row.id)
        assert {name: getattr(profile, name) for name in row.values} == row.values, row.name
        stored = ROWS[MODELS[listing]][row.id]
        seen = [round(gib * 8) * 128 for gib in stored["memory_gib_seen"]]
        assert row.memory_mib in seen, row.name
        if listing == FIRST[MODELS[listing]]:
            assert (profile.name, profile.memory_mib) == (row.name, row.memory_mib)
        elif (profile.name, profile.memory_mib) != (row.name, row.memory_mib):
            assert f"{row.memory_mib / 1024:.2f} GiB" in stored["note"], row.name
            assert row.name in (profile.name, *stored["note"].split()), row.name


def test_what_a_simulated_gpu_lists_is_read_by_the_same_reader() -> None:
    gpu = Gpu(uuid="GPU-1", model="h200_141gb", bus_id="00000000:01:00.0")
    simulated = list(parse_profiles("\n".join(smi_tables.profile_table([(0, gpu)]))))
    assert simulated == list(parse_profiles(read("lgip_h200_gpu6")))


def test_the_placements_of_an_rtx_pro_6000_are_those_of_its_listing() -> None:
    listed = parse_placements(read("session_rtxpro6000"))
    assert len(listed) == 11
    profiles = mig_table.find("rtxpro6000_96gb").profiles
    assert {profile.id: (profile.starts, profile.memory_slices) for profile in profiles} == listed


@pytest.mark.parametrize(
    ("listing", "model", "num_instances"),
    [
        ("lgi_and_L_h100_nvl", "h100_94gb", 4),
        ("lgi_a100_80gb_several_gpus", "a100_80gb", 8),
        ("session_rtxpro6000", "rtxpro6000_96gb", 3),
    ],
)
def test_instances_of_a_listing_are_read_and_lie_where_the_table_says(
    listing: str, model: str, num_instances: int
) -> None:
    text = read(listing)
    rows = control._INSTANCE_ROW.findall(text)
    assert len(rows) == num_instances
    for profile_id, _, start in rows:
        assert int(start) in mig_table.find(model).profile(int(profile_id)).starts
    sizes = dict(re.findall(r"MIG \S+\s+(\d+)\s+\d+\s+\d+:(\d+) ", text))
    assert {int(number): int(size) for number, size in sizes.items()} == {
        int(number): mig_table.find(model).profile(int(number)).memory_slices for number in sizes
    }
