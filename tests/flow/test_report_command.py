"""The command of reports as a user types it, and the report of a study that really ran."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks import report as scale
from pipeline.base.domain.layout import DATABASE
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.record.store import results
from pipeline.record.store.local_store import open_store
from pipeline.report.__main__ import main
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.figures import drawing
from pipeline.report.read import group_series, rows
from tests.support import forks
from tests.support.run_cases import TOY
from tests.support.tracking_cases import client, runs_of

pytestmark = pytest.mark.covers("pipeline/report")

NUM_RUNS = 14


@pytest.fixture
def filled(root: Path) -> Path:
    scale.fill(root, NUM_RUNS, 20)
    return root


def command(root: Path, *arguments: object) -> int:
    return main(["--experiment", scale.EXPERIMENT, "--root", str(root), *map(str, arguments)])


@pytest.mark.slow
def test_a_report_lies_in_its_folder_and_in_a_run_that_disturbs_nothing(
    filled: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = drawing._save  # drawing PDFs takes longer than all else; the next test does
    monkeypatch.setattr(drawing, "_save", lambda figure, kind: save(figure, kind) if kind == "svg" else b"%PDF")
    before = results.find_finished(filled, scale.EXPERIMENT)
    assert command(filled, "--out", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert f"report: {tmp_path / 'out' / 'index.html'}" in printed
    written = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert {
        "index.html",
        "figures/gain.svg",
        "figures/gain.pdf",
        "tables/verdicts.csv",
        "tables/verdicts.tex",
    } <= written
    (run,) = [r for r in runs_of(client(filled), scale.EXPERIMENT) if r.data.tags["collocation.role"] == "report"]
    assert run.info.run_id in printed and run.info.status == "FINISHED"
    logged = Path(client(filled).download_artifacts(run.info.run_id, ""))
    assert {str(p.relative_to(logged)) for p in logged.rglob("*") if p.is_file()} == written
    assert results.find_finished(filled, scale.EXPERIMENT) == before
    assert len(results.load_groups(filled, scale.EXPERIMENT)) == NUM_RUNS
    assert len(rows.read([filled], scale.EXPERIMENT).rows) == NUM_RUNS


@pytest.mark.slow
def test_the_same_store_gives_the_same_files_and_a_second_report_replaces_the_first(
    filled: Path, tmp_path: Path
) -> None:
    outs = [tmp_path / "a", tmp_path / "b"]
    for out in outs:
        assert command(filled, "--out", out, "--no-log") == 0
    first, second = ({p.name: p.read_bytes() for p in out.rglob("*") if p.is_file()} for out in outs)
    assert first == second
    notes, stale = outs[0] / "notes.txt", outs[0] / "figures/stale.svg"
    notes.write_text("mine")
    stale.write_text("of an earlier report")
    manifest = json.loads((outs[0] / "report.json").read_text())
    manifest["files"] += ["figures/stale.svg", "notes.txt", "../b/index.html"]
    (outs[0] / "report.json").write_text(json.dumps(manifest))
    assert command(filled, "--out", outs[0], "--no-log") == 0
    assert notes.exists() and not stale.exists() and (outs[1] / "index.html").exists()
    assert not [r for r in runs_of(client(filled), scale.EXPERIMENT) if r.data.tags["collocation.role"] == "report"]


@pytest.mark.slow
def test_a_board_reads_the_same_from_a_report_as_from_its_store(filled: Path, tmp_path: Path) -> None:
    assert command(filled, "--out", tmp_path / "report", "--no-log") == 0
    sources = ["--experiment", scale.EXPERIMENT, "--root", str(filled)], [str(tmp_path / "report")]
    for number, source in enumerate(sources):
        assert main(["board", *source, "--out", str(tmp_path / str(number))]) == 0
    first, second = ((tmp_path / str(number) / "board.csv").read_text() for number in range(2))
    assert first == second and len(first.splitlines()) > 2


@pytest.mark.slow
def test_only_the_artifacts_of_the_chosen_case_are_read(filled: Path, tmp_path: Path, monkeypatch, caplog) -> None:
    study = rows.read([filled], scale.EXPERIMENT)
    chosen = next(row for row in study.rows if row.name == "naive-3x-workloada")
    other_modes = group_series.choose_other_modes(study, chosen)
    assert [other.name for other in other_modes] == ["mps-3x-workloada", "mig-3x-workloada"]
    for path in filled.rglob("samples.parquet"):
        if not any(row.run_id in str(path) for row in (chosen, other_modes[0])):
            path.write_bytes(b"not parquet")
    assert command(filled, "--out", tmp_path / "out", "--no-log", "--group", "naive-3x-workloada") == 0
    assert "in 2 sharing modes" in (tmp_path / "out/index.html").read_text()
    assert "the figure of all sharing modes over time has no MIG" in caplog.text
    assert "Utilisation and memory over time: naive-3x-workloada" in (tmp_path / "out/index.html").read_text()
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    drawn = group_series.read_group(chosen)
    assert not list((tmp_path / "scratch").iterdir()), "no copy is left behind"
    assert drawn is not None
    assert [line.label for line in drawn.activity] == ["GRACT", "SMACT", "DRAM activity"]
    assert [len(line.values) for line in drawn.memory_mib] == [20]
    assert [span.label for span in drawn.spans] == [f"{index} workloada bs128" for index in range(3)]
    monkeypatch.setattr(group_series, "POINTS", 5)
    thinned = group_series.read_group(chosen)
    assert thinned is not None and thinned.thinned_to == 5 and len(thinned.memory_mib[0].values) == 5


@pytest.mark.slow
def test_a_store_is_read_by_its_uri_too(run, tmp_path: Path) -> None:
    status, _, err = run("-m", *TOY, "scenario=serial,naive", "degree=2", "window.seconds=0.3", "window.settle_s=0.1")
    assert status == 0, err
    stores = {
        "by-uri": ("--uri", f"sqlite:///{tmp_path / 'mlruns' / DATABASE}"),
        "by-root": ("--root", str(tmp_path / "mlruns")),
    }
    for name, store in stores.items():
        assert main(["--experiment", "collocation", *store, "--out", str(tmp_path / name), "--no-log"]) == 0
    first, second = ((tmp_path / name / "index.html").read_text() for name in stores)
    assert first == second


@pytest.mark.slow
def test_several_stores_are_one_study_and_a_copy_of_a_store_is_refused(filled: Path, tmp_path: Path, capsys) -> None:
    other, copy = tmp_path / "other", tmp_path / "copy"
    open_store(other)
    scale.fill(other, NUM_RUNS, 20, machine=1)
    both = ["--experiment", scale.EXPERIMENT, "--root", str(filled), "--root"]
    assert main([*both, str(other), "--out", str(tmp_path / "out")]) == 0
    assert f": {2 * NUM_RUNS} groups, " in capsys.readouterr().out
    reports = [
        [run for run in runs_of(client(root), scale.EXPERIMENT) if run.data.tags["collocation.role"] == "report"]
        for root in (filled, other)
    ]
    assert [len(runs) for runs in reports] == [1, 0]
    shutil.copytree(filled, copy)
    assert main([*both, str(copy), "--out", str(tmp_path / "twice")]) == 2
    assert "name only one of them" in capsys.readouterr().err
    assert not (tmp_path / "twice").exists()


@pytest.mark.slow
def test_damaged_samples_cost_one_figure(filled: Path, tmp_path: Path, caplog) -> None:
    for path in filled.rglob("samples.parquet"):
        path.write_bytes(path.read_bytes()[:-40] + bytes(40))
    assert command(filled, "--out", tmp_path / "out", "--no-log") == 0
    assert "cannot read the samples of run " in caplog.text
    assert (tmp_path / "out/figures/gain.svg").is_file() and not (tmp_path / "out/figures/over-time.svg").exists()


# A process of root's that may do no more than the files' modes say.
_WITHOUT_RIGHTS = """
import ctypes, runpy, sys
header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capset(header, nothing) == 0
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("has_log", [True, False])
def test_a_store_that_may_only_be_read_is_reported_also_from_another_place(
    has_log: bool, filled: Path, tmp_path: Path
) -> None:
    client(filled)._tracking_client.store.engine.dispose()
    moved = tmp_path / "moved"
    shutil.copytree(filled, moved)
    if has_log:  # as a study leaves it
        late = "INSERT INTO experiments (name, lifecycle_stage) VALUES ('late', 'active')"
        code = f"import os, sqlite3; c = sqlite3.connect({str(moved / DATABASE)!r}); c.execute({late!r}); c.commit()"
        subprocess.run([sys.executable, "-c", f"{code}; os._exit(0)"], check=True)
    shutil.rmtree(filled)
    for path in (moved, *moved.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
        else:
            path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted(moved.rglob("*"))
    environ = os.environ | {"PYTHONPATH": str(PROJECT_DIR), "TMPDIR": str(tmp_path)}
    for module, out in (("pipeline.report", tmp_path / "out"), ("pipeline.timeline", tmp_path / "trace.json")):
        words = ["--experiment", scale.EXPERIMENT, "--root", moved, "--out", out]
        done = forks.run("-c", _WITHOUT_RIGHTS, module, *words, cwd=tmp_path, env=environ)
        if module == "pipeline.report":
            assert done.returncode == 0, done.stderr
            assert f"report not logged: {moved} is read-only" in done.stdout
            assert (tmp_path / "out/figures/over-time.svg").is_file()  # from the artifacts where they lie now
        else:
            assert "no group of experiment" in done.stderr
    assert sorted(moved.rglob("*")) == before
    assert not list(tmp_path.glob("colloc-scratch-*"))


def test_refusals_name_what_there_is_and_touch_nothing(filled: Path, tmp_path: Path, capsys) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert main(["--experiment", "nothing", "--root", str(filled), *out]) == 2
    assert (
        "no experiment 'nothing'" in (message := capsys.readouterr().err)
        and f"with --experiment: '{scale.EXPERIMENT}'" in message
    )
    assert main(["--experiment", "nothing", "--root", str(tmp_path / "absent"), *out]) == 2
    assert "absent does not exist; run a study first" in capsys.readouterr().err
    assert not (tmp_path / "absent").exists()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        server = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert main(["--uri", server, *out]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: the tracking server at {server} ") and "Connection refused" in message
    assert message.count("\n") == 1
    assert main(["--uri", "unknown://server", *out]) == 2
    assert capsys.readouterr().err.startswith("error: MLflow cannot open unknown://server")
    assert command(filled, *out, "--group", "nobody") == 2
    assert "no such name or run id" in (message := capsys.readouterr().err) and "naive-2x-workloada" in message
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/figures.txt").write_text("mine")
    assert command(filled, "--out", tmp_path / "mine") == 2
    assert "files that no report wrote" in capsys.readouterr().err
    assert not (tmp_path / "out").exists() and len(list((tmp_path / "mine").iterdir())) == 1


@pytest.mark.exhaustive  # python -m benchmarks.report measures it
def test_a_thousand_groups_take_less_than_30_s_and_2_gb(root: Path, tmp_path: Path) -> None:
    scale.fill(root, 1000, 1000)
    _, cpu_s, mib = scale.measure(root, tmp_path / "out")
    assert cpu_s < 30  # not the clock: other tests may run beside this one
    assert mib < 2000


@pytest.mark.slow
def test_the_report_computes_what_the_orchestrator_recorded(run, tmp_path: Path) -> None:
    overrides = ["scenario=serial,naive", "degree=1,2", "repeats=2", "window.seconds=0.3", "window.settle_s=0.1"]
    status, _, err = run("-m", *TOY, *overrides)
    assert status == 0, err
    study = rows.read([tmp_path / "mlruns"], "collocation")
    assert len(study.rows) == study.num_planned == 6
    assert study.num_complete_blocks == 2 and study.left_out == {}
    cells = {(cell.mode, cell.degree): cell for cell in make_cells(study)}
    assert set(cells) == {("serial", 1), ("naive", 1), ("serial", 2), ("naive", 2)}
    names = ("speedup_vs_serial_ratio", "slowdown_worst_ratio", "fairness_jain_ratio")
    for row in study.rows:
        computed = cells[row.mode, row.degree].values
        for name in names:
            assert computed[name][row.block] == pytest.approx(row.metrics[name], rel=1e-9)
