"""Profilers: their command lines and files, and the profiling of DCGM that pauses for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.base.domain.records import Commands, ProfilerSpec
from pipeline.base.system import helper_program
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.base.system.factory import Spec
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.clean.journal import replay
from pipeline.launch.profilers.none import NoProfiler
from pipeline.launch.profilers.nsight import Ncu, Nsys
from pipeline.observe import baseline_comparison
from pipeline.simulation import dcgmi
from tests.conftest import GPU
from tests.support.programs import write_script
from tests.support.rows import group as make_group
from tests.support.simulated import Machine


def test_nsys_writes_into_the_folder_of_the_job(tmp_path):
    nsys = write_script(tmp_path / "nsys")
    words = Nsys(program=str(nsys), options=["--trace=cuda"]).prefix(Path("/spool/100%/jobs/0"))
    assert words == (
        str(nsys),
        "profile",
        "--output=/spool/100%%/jobs/0/profile",
        "--force-overwrite=true",
        "--trace=cuda",
    )


def test_ncu_follows_every_process_of_the_job(tmp_path):
    ncu = write_script(tmp_path / "ncu")
    words = Ncu(program=str(ncu), options=("--launch-count", "5")).prefix(Path("/spool/jobs/1"))
    where = ("--export", "/spool/jobs/1/profile", "--force-overwrite")
    assert words == (str(ncu), "--target-processes", "all", *where, "--launch-count", "5")


def test_by_default_ncu_locks_no_clocks(compose):
    (config,) = compose(["profiler=ncu"])
    options = list(config.profiler.options)
    assert options[options.index("--clock-control") + 1] == "none"


def test_the_newest_installed_version_is_taken_where_path_has_none(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for version in ("2024.10.1", "2024.9.2", "2023.11.0"):
        write_script(tmp_path / "nsight-compute" / version / "ncu")
    monkeypatch.setattr(Ncu, "places", (f"{tmp_path}/nsight-compute/*/ncu",))
    assert Ncu().prefix(tmp_path)[0] == f"{tmp_path}/nsight-compute/2024.10.1/ncu"
    assert Ncu(program=str(write_script(tmp_path / "mine" / "ncu"))).prefix(tmp_path)[0] == f"{tmp_path}/mine/ncu"
    on_path = write_script(tmp_path / "ncu")
    assert Ncu().prefix(tmp_path)[0] == str(on_path)


def test_a_missing_profiler_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(Nsys, "places", (f"{tmp_path}/opt/*/nsys",))
    with pytest.raises(
        ConfigError, match=rf"profiler=nsys needs .* is not in PATH, {tmp_path}/opt/\*/nsys; install it"
    ):
        Nsys().check(make_group("a"))
    (tmp_path / "nsys").write_text("not executable")
    with pytest.raises(ConfigError, match="profiler=nsys needs"):
        Nsys().check(make_group("a"))


@pytest.mark.parametrize(
    ("kind", "option"), [(Nsys, "-o"), (Nsys, "--output=/x"), (Ncu, "--export"), (Ncu, "--target-processes")]
)
def test_options_that_are_decided_here_are_refused(kind, option):
    with pytest.raises(ConfigError, match=f"sets {option.split(chr(61))[0]}"):
        kind(options=[option])


def test_no_profiler_takes_no_options():
    with pytest.raises(ConfigError, match=r"profiler\.options=\['-x'\] has no effect without a profiler"):
        NoProfiler(options=["-x"])
    assert NoProfiler().prefix(Path("/x")) == () and NoProfiler().report(Path("/x")) is None


def test_an_empty_report_is_none(tmp_path):
    assert Nsys().report(tmp_path) is None
    (tmp_path / "profile.nsys-rep").touch()
    assert Nsys().report(tmp_path) is None
    (tmp_path / "profile.nsys-rep").write_text("x")
    assert Nsys().report(tmp_path) == tmp_path / "profile.nsys-rep"


def test_the_plan_says_what_a_profiler_does_to_figures():
    assert len(Nsys().notes(GPU)) == 1 and "compared only with each other" in Nsys().notes(GPU)[0]
    assert "do not show the effect of sharing" in Ncu().notes(GPU)[-1]


def test_the_digest_covers_what_the_profiler_does_and_not_where_it_lies(make_plan, tmp_path):
    places = [write_script(tmp_path / name / "nsys") for name in ("here", "there")]
    digests = [
        make_plan(["profiler=nsys", f"profiler.program={place}", f"profiler.options=['{options}']"]).groups[0].digest
        for place, options in ((places[0], "--trace=cuda"), (places[1], "--trace=cuda"), (places[0], "--trace=osrt"))
    ]
    unprofiled = make_plan([]).groups[0]
    assert digests[0] == digests[1] != digests[2]
    assert unprofiled.digest not in digests and unprofiled.profiler.is_none


def test_a_baseline_of_another_profiler_is_no_baseline():
    nsys = ProfilerSpec(name="nsys", build=Spec(target="pipeline.launch.profilers.nsight.Nsys"))
    assert baseline_comparison.make_comparison_key(make_group("a")) != baseline_comparison.make_comparison_key(
        make_group("a", profiler=nsys)
    )


def test_every_profiler_has_a_configuration():
    conf = PROJECT_DIR / "conf/profiler"
    assert {path.stem for path in conf.glob("*.yaml")} == {kind.name for kind in (NoProfiler, Nsys, Ncu)}


@pytest.fixture
def make_machine(tmp_path: Path) -> Callable[..., Machine]:
    def make(model: str = "a100_40gb", *, fails: str | None = None) -> Machine:
        machine = Machine.make(tmp_path, model)
        if fails:
            machine.fail(fails, 999, times=None)
        return machine

    return make


def is_paused(machine: Machine) -> bool:
    return machine.file.read().dcgm_is_paused


def test_it_is_paused_meanwhile_and_resumed_at_the_end(make_machine):
    machine = make_machine()
    with pytest.raises(RuntimeError, match="on the way"), Nsys().prepare(machine.group("a")):
        assert is_paused(machine)
        assert [step.kind for step in machine.journal.read_steps()] == ["dcgm_profiling"]
        raise RuntimeError("on the way")
    assert not is_paused(machine) and machine.journal.read_steps() == ()


def test_what_a_killed_run_paused_is_resumed_by_the_journal(make_machine):
    machine = make_machine()
    context = Nsys().prepare(machine.group("a"))
    context.__enter__()
    assert is_paused(machine)
    assert [step.kind for step in replay(machine.journal)] == ["dcgm_profiling"]
    assert not is_paused(machine)


def test_the_commands_are_known_before(make_machine):
    machine = make_machine()
    commands = Nsys().list_setting_commands(machine.group("a"))
    assert commands.do == ((machine.programs["dcgmi"], "profile", "--pause"),)
    assert commands.undo == ((machine.programs["dcgmi"], "profile", "--resume"),)


@pytest.mark.parametrize("model", ["h100_80gb", "b200_180gb"])
def test_from_hopper_on_nothing_is_paused(make_machine, model):
    machine = make_machine(model)
    assert Nsys().list_setting_commands(machine.group("a")) == Commands()
    with Nsys().prepare(machine.group("a")):
        assert not is_paused(machine)


def test_without_a_profiler_nothing_is_paused(make_machine):
    machine = make_machine()
    group = machine.group("a", gpu={"admin": None})
    NoProfiler().check(group)
    assert NoProfiler().list_setting_commands(group) == Commands()
    with NoProfiler().prepare(group):
        assert not is_paused(machine)


def test_where_no_host_engine_answers_there_is_nothing_to_pause(make_machine):
    machine = make_machine(fails=dcgmi.CONNECT)
    with Nsys().prepare(machine.group("a")):
        pass
    assert machine.journal.read_steps() == ()


def test_an_engine_that_does_not_pause_is_an_error(make_machine):
    machine = make_machine(fails=dcgmi.PAUSE)
    with (
        pytest.raises(SharingError, match="--pause` failed with status 219: The third-party Profiling module"),
        Nsys().prepare(machine.group("a")),
    ):
        pytest.fail("the counters are not free")
    assert machine.journal.read_steps() == ()


def test_an_engine_that_does_not_resume_stays_in_the_journal(make_machine):
    machine = make_machine(fails=dcgmi.RESUME)
    with pytest.raises(SharingError, match="--resume`"), Nsys().prepare(machine.group("a")):
        pass
    assert [step.kind for step in machine.journal.read_steps()] == ["dcgm_profiling"]


def test_it_is_refused_where_nothing_may_be_changed(make_machine):
    machine = make_machine()
    group = machine.group("a", gpu={"admin": None})
    nsys = Nsys(program="/bin/true")
    with pytest.raises(ConfigError, match=r"gpu\.admin=null forbids pausing DCGM"):
        nsys.check(group)
    with pytest.raises(ConfigError, match=r"gpu\.admin=null forbids pausing DCGM"), nsys.prepare(group):
        pytest.fail("was not refused")
    assert not is_paused(machine)


def test_the_simulated_dcgmi_says_what_the_real_one_says(make_machine):
    machine = make_machine()
    for what, message in (
        ("--pause", "Successfully paused profiling.\n"),
        ("--resume", "Successfully resumed profiling.\n"),
    ):
        assert helper_program.run([machine.programs["dcgmi"], "profile", what], timeout_s=30).stdout == message
    assert helper_program.run([machine.programs["dcgmi"], "profile", "--stop"], timeout_s=30, check=False).status != 0
