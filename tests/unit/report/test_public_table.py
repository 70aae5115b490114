"""The public table: what an entry must have, which edits of a bundle are evaluated, and what the table says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from functools import partial

import pytest
import yaml

from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.record.store import bundle_archive
from pipeline.report import community_command, entries, share_command
from pipeline.report.evaluate import entry
from pipeline.report.evaluate.case_matching import Program
from pipeline.report.evaluate.entry import EntryFigure, Evaluation
from pipeline.report.evaluate.public_table import OVER_GRAPH, find_surprises, make_rows
from pipeline.report.evaluate.statistics import Estimate

pytestmark = pytest.mark.covers(
    "pipeline/report/entries.py",
    "pipeline/report/entry_limits.py",
    "pipeline/report/community_command.py",
    "pipeline/report/share_command.py",
    "pipeline/report/evaluate/entry.py",
    "pipeline/report/evaluate/public_table.py",
)
STUDY = PROJECT_DIR / "docs/results/advise_bert_h200.tar.xz"
GOOD = {"licence": "CC-BY-4.0", "bundle": "study.tar.xz"}


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory):
    """The files of a published bundle."""
    folder = tmp_path_factory.mktemp("bundle")
    experiment = bundle_archive.extract(STUDY, folder)
    return folder, experiment


@pytest.fixture(scope="session")
def published():
    """The evaluation of that bundle."""
    return entry.evaluate(STUDY, ["advise"])


def pack(file, folder, experiment):
    names = sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.name != "record.json")
    bundle_archive.write(file, experiment, {path.relative_to(folder).as_posix(): path for path in names})
    return file


def records(folder):
    return {path: json.loads(path.read_text()) for path in sorted(folder.glob("groups/*/record.json"))}


def edit(folder, change, *, choose=lambda record: True):
    """Change the records that are chosen."""
    changed = 0
    for path, record in records(folder).items():
        if choose(record):
            change(record)
            path.write_text(json.dumps(record))
            changed += 1
    assert changed


def is_shared(record):
    return len(record["jobs"]) > 1 and record["result"] == "ok"


def scale_rates(record, *, with_total):
    for run in (*record["jobs"], *([record] if with_total else [])):
        run["metrics"].update({k: 1.2 * v for k, v in run["metrics"].items() if k.startswith("throughput_")})


def load_the_host(record):
    """Other programs used the CPUs, and a mark of that was removed."""
    record["metrics"] |= {"busy_mean_cpus": 15.9, "idle_mean_cpus": 0.1}
    for job in record["jobs"]:
        job["metrics"] |= {"host_cpu_mean_pct": 50.0, "run_queue_delay_pct": 60.0}


def overlap_little(record):
    record["window"] |= {"kind": "steady"}
    record["metrics"]["overlap_ratio"] = 0.5


def remove_block(folder):
    for path, record in records(folder).items():
        if record["block"] == 2:
            shutil.rmtree(path.parent)


def name_another_gpu(record):
    record["device"] = record["settings"]["device"] = "NVIDIA H100 80GB HBM3"


def remove(name):
    def change(folder):
        for path in folder.rglob(name):
            path.unlink()

    return change


def claim_more_multiprocessors(record):
    record["facts"]["multiprocessors"] = "144"


def remove_groups_but_one(folder):
    for path in list(records(folder))[1:]:
        shutil.rmtree(path.parent)


def call_it_by_script(record):
    record["experiment"] = "<script>alert(1)</script>"


def simulate(record):
    record["is_simulated"] = True


def command_of(text):
    def change(record):
        record["facts"]["command_line"] = text

    return change


def edit_all(change):
    return partial(edit, change=change)


def edit_shared(change):
    return partial(edit, change=change, choose=is_shared)


EDITS = {
    "rates": (edit_shared(partial(scale_rates, with_total=True)), "contradicts the time stamps"),
    "rates of jobs": (edit_shared(partial(scale_rates, with_total=False)), "the sum of its jobs"),
    "a mark of foreign load removed": (edit_shared(load_the_host), "while other programs used"),
    "a mark of low overlap removed": (edit_shared(overlap_little), "overlapped for 0.50"),
    "times of slices removed": (remove("slices.json"), "rates lack the time stamps"),
    "time stamps removed": (remove("events.jsonl"), "rates lack the time stamps"),
    "a block removed": (remove_block, "block 2 lacks groups, although a later block ran"),
    "all but one group removed": (remove_groups_but_one, "no valid group has a speed over its baseline"),
    "another GPU's name": (edit_all(name_another_gpu), "a program saw another GPU"),
    "more multiprocessors": (edit_all(claim_more_multiprocessors), "a program saw other multiprocessors"),
    "simulated": (edit_all(simulate), "simulated"),
    "another experiment": (edit_all(command_of("run.py +experiment=mine")), "experiment mine is not one of"),
    "no experiment": (edit_all(command_of("run.py")), "is not one of the project"),
}


def copy_bundle(unpacked, tmp_path):
    source, experiment = unpacked
    folder = tmp_path / "edited"
    shutil.copytree(source, folder)
    return folder, experiment


ONE, *OTHERS = EDITS


@pytest.mark.parametrize("name", [ONE, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_an_edit_of_a_bundle_is_refused_with_its_reason(name, unpacked, tmp_path):
    folder, experiment = copy_bundle(unpacked, tmp_path)
    change, reason = EDITS[name]
    change(folder)
    evaluation = entry.evaluate(pack(tmp_path / "study.tar.xz", folder, experiment), ["advise"])
    assert reason in " ".join(evaluation.refusals)


def test_the_published_bundle_is_accepted_and_has_its_figures(published):
    assert published.refusals == () and published.device == "NVIDIA H200"
    three = next(figure for figure in published.figures if (figure.mode, figure.degree) == ("MPS", 3))
    assert three.over_serial.median == pytest.approx(1.19, abs=0.01) and three.over_graph is None
    assert published.date == "2026-11-29" and published.torch.startswith("2.11")


@pytest.mark.parametrize("folder", entries.list_folders(PROJECT_DIR), ids=lambda folder: folder.name)
def test_an_entry_of_the_project_has_the_digest_of_its_bundle(folder, published):
    # A study that is measured again replaces its bundle; `make community`, which evaluates all, takes most of a minute.
    bundle = yaml.safe_load((folder / "entry.yaml").read_text())["bundle"]
    expected = entries.choose_folder(published, PROJECT_DIR / bundle).name.rpartition("-")[2]
    assert folder.name.endswith(f"-{expected}")


def test_bytes_that_are_no_bundle_are_refused(tmp_path):
    zeros = tmp_path / "study.tar.xz"
    with tarfile.open(zeros, "w:xz") as archive:
        member = tarfile.TarInfo("manifest.json")
        member.size = 1 << 27
        with open("/dev/zero", "rb") as source:
            archive.addfile(member, source)
    with pytest.raises(ConfigError, match="is not a bundle"):
        entry.evaluate(zeros, ["advise"])


@pytest.fixture
def clone(tmp_path, published):
    """A clone with one entry, whose bundle lies in its folder."""
    root = tmp_path / "clone"
    folder = root / entries.choose_folder(published, STUDY)
    folder.mkdir(parents=True)
    shutil.copyfile(STUDY, folder / "study.tar.xz")
    content = {"gpu": published.device, "driver": published.driver, "torch": published.torch, **GOOD}
    (folder / "entry.yaml").write_text(yaml.safe_dump(content))
    (root / "docs").mkdir()
    shutil.copyfile(PROJECT_DIR / "docs/community.md", root / "docs/community.md")
    return root, folder, content


def add_a_file(folder, content):
    (folder / "run.py").write_text("")


def link_elsewhere(folder, content):
    (folder / "study.tar.xz").unlink()
    (folder / "study.tar.xz").symlink_to("/etc/passwd")


def rename_folder(folder, content):
    folder.rename(folder.with_name("2026-01-01-00000000"))


def tell(**changed):
    return lambda folder, content: (folder / "entry.yaml").write_text(yaml.safe_dump({**content, **changed}))


ENTRIES = {
    "another gpu": (tell(gpu="NVIDIA B200"), "gpu: 'NVIDIA B200', but the bundle has 'NVIDIA H200'"),
    "another driver": (tell(driver="1.0"), "driver: '1.0'"),
    "a licence that is none": (tell(licence="mine"), "licence: choose one of CC-BY-4.0"),
    "a contact with a control character": (tell(contact="a\x1b[31m"), "contact: write at most"),
    "a key of its own": (tell(speedup="9"), "entry.yaml is damaged"),
    "a bundle outside": (tell(bundle="../../x.tar.xz"), "bundle: '../../x.tar.xz' is not"),
    "a bundle that is not there": (tell(bundle="acceptance.tar.xz"), "does not exist"),
    "YAML that builds objects": (
        lambda folder, content: (folder / "entry.yaml").write_text("!!python/object/apply:os.system [exit]"),
        "entry.yaml is damaged",
    ),
    "lists of lists of lists": (
        lambda folder, content: (folder / "entry.yaml").write_text("gpu: &a [&b [x, x], &c [*b, *b], [*c, *c]]"),
        "write one text for each key",
    ),
    "a large file": (lambda folder, content: (folder / "entry.yaml").write_text("#" * 5000), "larger than 4096"),
    "another file": (add_a_file, "the folder has other files: run.py"),
    "a link": (link_elsewhere, "does not exist"),
    "another folder": (rename_folder, "the folder is not community/nvidia-h200/2026-11-29-"),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_a_wrong_entry_is_refused_and_the_page_stays(name, clone, published, capsys, monkeypatch):
    root, folder, content = clone
    monkeypatch.setattr(entries, "evaluate", lambda bundle: published)
    change, reason = ENTRIES[name]
    change(folder, content)
    before = (root / "docs/community.md").read_text()
    assert community_command.main(["--root", str(root)]) == 1
    out = capsys.readouterr().out
    assert "refused: " in out and reason in out and "0 entries accepted, 1 refused" in out
    assert (root / "docs/community.md").read_text() == before


def test_an_entry_becomes_rows_and_a_page_that_is_not_up_to_date_fails(clone, capsys):
    root, _, _ = clone
    page = root / "docs/community.md"
    page.write_text(f"# Table\n\n{community_command._BEGIN}{community_command._END}\n\nThe rest.\n")
    assert community_command.main(["--root", str(root), "--check"]) == 1
    assert "docs/community.md is not up to date; run make community" in capsys.readouterr().out
    assert community_command.main(["--root", str(root)]) == 0
    assert community_command.main(["--root", str(root), "--check"]) == 0
    text = page.read_text()
    assert "## NVIDIA H200" in text and '<tr id="nvidia-h200-bert-base' in text and "None has been tried" in text
    assert text.startswith("# Table\n") and text.endswith("\nThe rest.\n")
    assert 'href="community/nvidia-h200/2026-11-29-' in text


def test_the_same_measurements_count_once(clone, published, capsys, monkeypatch):
    root, folder, _ = clone
    monkeypatch.setattr(entries, "evaluate", lambda bundle: published)
    again = folder.parent / "copied"
    shutil.copytree(folder, again)
    monkeypatch.setattr(entries, "choose_folder", lambda evaluated, bundle: bundle.parent.relative_to(root))
    assert community_command.main(["--root", str(root)]) == 1
    assert "it has the measurements of" in capsys.readouterr().out


def figure(median, *, degree=7, mode="MPS", label="<script>alert(1)</script>"):
    program = Program(workload=label, size="", number=degree, params={})
    ratio = Estimate(median=median, low=median * 0.99, high=median * 1.01, n=5)
    return EntryFigure(
        label=label,
        degree=degree,
        programs=(program,),
        settings={},
        mode=mode,
        over_graph=ratio,
        over_serial=ratio,
        energy=None,
    )


def evaluation(number, *figures):
    facts = {"experiment": "advise", "device": "NVIDIA X", "driver": "1", "torch": "2", "date": "2026-01-01"}
    return Evaluation(**facts, gpus=(f"GPU-{number}",), start=str(number), num_groups=1, figures=figures)


def test_machines_are_pooled_and_those_that_differ_are_shown_as_a_range():
    alike = make_rows([evaluation(number, figure(value)) for number, value in enumerate((1.10, 1.11, 1.12))])
    apart = make_rows([evaluation(number, figure(value)) for number, value in enumerate((1.03, 1.2, 1.53))])
    assert alike[0].describe(OVER_GRAPH) == "1.11 (1.10 to 1.12)" and len(alike[0].machines) == 3
    assert apart[0].describe(OVER_GRAPH) == "1.03 to 1.53"
    assert make_rows([evaluation(0, figure(1.1))])[0].describe(OVER_GRAPH) == "1.10 (1.09 to 1.11)"
    twice = make_rows([evaluation(0, figure(1.1)), evaluation(0, figure(1.1))])
    assert len(twice[0].machines) == 1  # the same GPU


def test_a_figure_far_from_other_machines_is_asked_about():
    values = (1.10, 1.11, 1.12, 1.4)
    rows = make_rows([evaluation(number, figure(value)) for number, value in enumerate(values)])
    (surprise,) = find_surprises(rows, 3)
    assert "7 jobs, MPS: 1.40; 3 other machines predict 1.0" in surprise
    assert list(find_surprises(rows, 1)) == []


def test_a_name_with_a_script_is_text_on_the_page():
    one = evaluation(0, figure(1.1))
    line = community_command._make_line(make_rows([one])[0], [make_entry(one)])
    assert "<script" not in line and "&lt;script&gt;" in line


def make_entry(evaluated):
    file = entries.EntryFile(gpu="", driver="", torch="", **GOOD)
    folder = entries.FOLDER / "x" / "2026"
    return entries.Entry(folder=folder, file=file, bundle=folder / "study.tar.xz", evaluation=evaluated, refusals=())


def test_a_process_that_evaluates_may_not_use_the_network_nor_start_programs():
    code = """
from pipeline.report import entry_limits
import os, socket, subprocess
entry_limits.enter()
for attempt in (lambda: socket.create_connection(("127.0.0.1", 9)), lambda: subprocess.run(["true"]), os.fork):
    try:
        attempt()
        print("allowed")
    except entry_limits.RefusedError as error:
        print(error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120).stdout.splitlines()
    assert len(out) == 3 and all("is refused while a bundle is evaluated" in line for line in out)


def test_a_study_is_shared_as_an_entry_that_the_check_accepts(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert share_command.main(["--root", str(STUDY)]) == 0
    out = capsys.readouterr().out
    (folder,) = (tmp_path / "community/nvidia-h200").iterdir()
    assert "git switch --create" in out and "advise_bert2 on NVIDIA H200: " in out
    assert yaml.safe_load((folder / "entry.yaml").read_text())["licence"] == "CC-BY-4.0"
    assert entries.read(tmp_path, folder).refusals == ()
    assert share_command.main(["--root", str(STUDY)]) == 2
    assert "exists; remove it" in capsys.readouterr().err


def test_a_study_that_names_its_user_is_not_shared(tmp_path, capsys, monkeypatch, unpacked):
    folder, experiment = copy_bundle(unpacked, tmp_path)
    log = next(folder.glob("groups/*/jobs/*/stdout.log"))
    log.write_text("saved to /data/zaphod/model.pt\n")
    file = pack(tmp_path / "x.tar.xz", folder, experiment)
    monkeypatch.setattr("getpass.getuser", lambda: "zaphod")
    assert share_command.main(["--root", str(file), "--out", str(tmp_path / "out")]) == 2
    assert "1 file named 'zaphod', such as" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_acceptance_counts_as_an_entry(tmp_path):
    data = {
        "facts": {"gpu": "NVIDIA A30", "driver": "580", "is_simulated": False, "began": "2026-11-29T10:00:00"},
        "is_restored": True,
        "checks": {"profiles": {"verdict": "holds"}},
    }
    file = tmp_path / "acceptance.tar.xz"
    with tarfile.open(file, "w:xz") as archive:
        (tmp_path / "acceptance.json").write_text(json.dumps(data))
        archive.add(tmp_path / "acceptance.json", "acceptance/acceptance.json")
    evaluated = entry.evaluate(file, [])
    assert evaluated.promises == {"profiles": "holds"} and evaluated.refusals == () and evaluated.device == "NVIDIA A30"
    file.write_bytes(b"\0" * 100)
    with pytest.raises(ConfigError, match="is not the bundle of an acceptance"):
        entry.evaluate(file, [])


def test_an_entry_of_a_cpu_needs_no_driver_and_stands_in_a_section_of_its_own(tmp_path):
    folder = tmp_path / "community/cpu-x"
    folder.mkdir(parents=True)
    entries.write_file(folder, entries.EntryFile(gpu="CPU: X", **GOOD))
    assert "driver" not in (folder / "entry.yaml").read_text()
    evaluated = evaluation(0, figure(1.9, label="tiny"))
    on_cpu, on_gpu = replace(evaluated, device="CPU: X", driver=""), replace(evaluated, start="1")
    lines = list(community_command._list_lines([make_entry(on_cpu), make_entry(on_gpu)], make_rows([on_cpu, on_gpu])))
    text = "\n".join(lines)
    assert text.index("## NVIDIA X") < text.index("## CPU: X") < text.index("about that machine, not about a GPU")
