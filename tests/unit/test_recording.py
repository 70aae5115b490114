"""`gpu.replay`: what is read of a recording, and what is refused in one line before anything is touched."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import recording, rehearsal
from pipeline.base import mig_table
from pipeline.base.errors import ConfigError
from pipeline.plan import read as read_configs
from pipeline.record import series
from pipeline.record.group_folder import Clock
from pipeline.record.series import About, Series, SeriesKey
from pipeline.simulation.machine.readings import Quantity
from pipeline.simulation.machine.replay import Subject
from tests import made_up_recording
from tests.conftest import DATA
from tests.experiments import planned

pytestmark = pytest.mark.covers("pipeline/recording.py")

IDLE = DATA / "replay/idle_h100.parquet"
LAYOUT = ("3g.40gb", "1g.10gb", "1g.10gb")


@pytest.fixture
def mig(tmp_path: Path) -> Path:
    return made_up_recording.write(tmp_path / "mig.parquet", LAYOUT, seconds=4)


def test_a_recording_of_a_whole_gpu_is_of_the_whole_gpu() -> None:
    found = recording.read(str(IDLE))
    assert found.name == f"idle_h100.parquet {found.digest}"
    assert found.about == About(device="NVIDIA H100 80GB HBM3")
    by_quantity = {one.quantity: one for one in found.series}
    assert {one.subject for one in found.series} == {Subject()}
    assert list(by_quantity[Quantity.POWER].values) == [
        *(72.75, 72.62, 72.59, 72.56, 72.56, 72.56, 72.54, 72.52, 72.52, 72.51)
    ]
    assert by_quantity[Quantity.POWER].t_ns[:2].tolist() == [0, 203_000_000]
    assert by_quantity[Quantity.SM_CLOCK].values.tolist() == [345]


def test_instances_are_numbered_within_their_profile_in_the_order_of_their_ids(mig: Path) -> None:
    found = recording.read(str(mig))
    subjects = [one.subject for one in found.series if one.quantity is Quantity.GRACT]
    assert set(subjects) == {Subject(), Subject("3g.40gb", 0), Subject("1g.10gb", 0), Subject("1g.10gb", 1)}


def test_of_several_sources_the_driver_s_own_is_taken_and_no_job_or_strange_source(tmp_path: Path) -> None:
    table = {
        SeriesKey(source, job, None, "power_w"): Series()
        for source, job in (("smi", None), ("nvml", None), ("nvml", 0), ("rack", None))
    }
    for value, one in enumerate(table.values()):
        one.append(100 + value, float(value))
        one.append(200, float("nan"))
    path = series.write_table(table, Clock(wall_ns=0, monotonic_ns=0), tmp_path, About(device="NVIDIA B200"))
    (found,) = recording.read(str(path)).series
    assert (found.values.tolist(), found.t_ns.tolist()) == ([1.0], [0]), "and no value that is no number"


def _changed(path: Path, change: str) -> None:
    table = pq.read_table(path)
    if change == "truncated":
        path.write_bytes(path.read_bytes()[:3000])
        return
    if change in ("empty", "text"):
        path.write_text("" if change == "empty" else "power_w,300\n")
        return
    about = json.loads(table.schema.metadata[b"collocation"])
    metadata = {
        "of an earlier version": {},
        "damaged": {b"collocation": b'{"device": 1}'},
        "a replay": {b"collocation": json.dumps(about | {"replay": "other.parquet 12345678"}).encode()},
    }
    if change == "no rows":
        table = table.slice(0, 0)
    elif change == "no column":
        table = table.drop(["value"])
    elif change == "no numbers":
        table = table.set_column(table.schema.get_field_index("value"), "value", pa.nulls(len(table), pa.float64()))
    else:
        table = table.replace_schema_metadata(metadata[change])
    pq.write_table(table, path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("truncated", "this is none, or a damaged one"),
        ("empty", "this is none, or a damaged one"),
        ("text", "this is none, or a damaged one"),
        ("no rows", "of NVIDIA H100 80GB HBM3, has no power, energy, clocks or counters of a GPU"),
        ("no column", "this is none, or a damaged one"),
        ("no numbers", "this is none, or a damaged one"),
        ("of an earlier version", "does not say of which GPU it is"),
        ("damaged", "what it says of its GPU is damaged"),
        ("a replay", "was itself recorded during a replay, of other.parquet 12345678"),
    ],
)
def test_what_is_no_recording_is_refused_in_one_line(mig: Path, change: str, words: str) -> None:
    _changed(mig, change)
    with pytest.raises(ConfigError) as refused:
        recording.read(str(mig))
    said = str(refused.value)
    assert said.startswith(f"gpu.replay={mig}: give the artifact samples.parquet of a group") and words in said
    assert "\n" not in said


@pytest.mark.parametrize(("name", "words"), [("absent.parquet", "No such file"), (".", "not a regular file")])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        recording.read(str(tmp_path / name))


def test_another_model_is_refused_before_a_machine_is_made(mig: Path, tmp_path: Path, compose) -> None:
    recording.refuse_other_model(recording.read(str(mig)), mig_table.find("h100_80gb"))
    machine = tmp_path / "machine.json"
    asked = [f"gpu.replay={mig}", f"gpu.machine={machine}", "gpu=simulated_a100_40gb"]
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError) as refused, rehearsal.prepared(read_configs.read(compose(asked))):
        pytest.fail("it was prepared")
    words = f"gpu.replay={mig} was recorded on NVIDIA H100 80GB HBM3, and the simulated GPU is NVIDIA A100-SXM4-40GB"
    assert str(refused.value).startswith(words)
    assert sorted(tmp_path.iterdir()) == before


def test_it_cannot_be_swept_and_is_for_simulated_gpus(mig: Path, compose, make_plan) -> None:
    both = compose(["gpu=simulated_h100_80gb", f"gpu.replay={mig}"], ["gpu=simulated_h100_80gb"])
    whole = pytest.raises(ConfigError, match=r"gpu\.replay applies to the whole study")
    with whole, rehearsal.prepared(read_configs.read(both)):
        pytest.fail("it was prepared")
    with pytest.raises(ConfigError, match=r"gpu\.replay=.* is for simulated GPUs"):
        make_plan(["gpu=cpu", f"gpu.replay={mig}"])


SIMULATED = ["gpu=simulated_h100_80gb", "scenario=mig"]


@pytest.mark.parametrize(
    ("recorded", "layouts", "refusal"),
    [
        (LAYOUT, ["[1g,3g,1g]"], None),
        (LAYOUT, ["[2g]", "[1g,1g,3g]"], None),
        (LAYOUT, ["[1g,1g]"], "3g.40gb + 2x 1g.10gb, which no group of this study has; they have 2x 1g.10gb: "),
        (LAYOUT, ["[1g,1g,3g,2g]"], "they have 3g.40gb + 2g.20gb + 2x 1g.10gb: "),
        ((), ["[2g]"], "was recorded on the undivided GPU, which no group of this study has; they have 2g.20gb: "),
    ],
)
def test_a_layout_that_no_group_has_is_refused(tmp_path: Path, compose, recorded, layouts, refusal) -> None:
    found = recording.read(str(made_up_recording.write(tmp_path / "x.parquet", recorded, seconds=3)))
    asked = [
        [*SIMULATED, f"scenario.profiles={each}", f"degree={each.count('g')}", "baseline=never"] for each in layouts
    ]
    with planned(read_configs.read(compose(*asked))) as plan:
        groups = plan.groups if len(layouts) > 1 else [group for group in plan.groups if not group.sequential]
        if refusal is None:
            recording.refuse_other_layout(found, groups)
            return
        with pytest.raises(ConfigError) as refused:
            recording.refuse_other_layout(found, groups)
        assert refusal in str(refused.value)
        skipped = [dataclasses.replace(group, skip_reason="no room") for group in groups]
        with pytest.raises(ConfigError, match="they have none that can run: "):
            recording.refuse_other_layout(found, skipped)


def test_rows_with_and_without_a_replay_are_never_one_cell(mig: Path, compose) -> None:
    told = []
    for replay in (str(mig), "null"):
        asked = [*SIMULATED, "degree=1", "scenario.profile=1g", f"gpu.replay={replay}"]
        with planned(read_configs.read(compose(asked))) as plan:
            told.append({(group.settings["device"], group.key) for group in plan.groups})
    with_replay, without = told
    digest = recording.read(str(mig)).digest
    assert {device for device, _ in with_replay} == {f"simulated NVIDIA H100 80GB HBM3, replay {digest}"}
    assert {device for device, _ in without} == {"simulated NVIDIA H100 80GB HBM3"}
    assert not {key for _, key in with_replay} & {key for _, key in without}
