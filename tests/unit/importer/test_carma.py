"""Job files of CARMA become experiments that plan; what is no such file is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pipeline.importer import __main__
from tests.support.experiments import configs_of, planned

# As the files of CARMA's repository are, with and without the comment and the memory.
LINES = (
    "# assumption is that model.txt file is in this directory",
    "conda activate tf",
    "python train.py --batch_size 32 --note 'a (b) & c'",
    "BERT_base.model",
    "MNIST dataset",
    "32",
    "exclusive",
    "1",
    "19828",
    "17456.9336",
    "40000",
    "32000",
)

GPU = "gpu=simulated_a100_40gb"


def write(folder: Path, name: str, *lines: str) -> str:
    path = folder / f"{name}.rad"
    path.write_text("\n".join(lines or LINES))
    return str(path)


def changed(**lines: str) -> tuple[str, ...]:
    """Return the lines with others in the places of some: `n6="collocated"`."""
    return tuple(lines.get(f"n{number}", line) for number, line in enumerate(LINES))


def run(folder: Path, *arguments: str) -> int:
    return __main__.main(["carma", *arguments, "--out", str(folder / "conf"), "--name", "imported"])


def read(folder: Path) -> str:
    return (folder / "conf/experiment/imported.yaml").read_text()


def blocks_of(folder: Path) -> list[dict[str, object]]:
    return yaml.safe_load(read(folder))["blocks"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("lines", [LINES, LINES[1:], LINES[2:], LINES[:8], (*LINES, "", ""), ("", *LINES)])
def test_a_job_file_is_an_experiment_that_plans(tmp_path, monkeypatch, capsys, lines):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert run(tmp_path, write(tmp_path, "j", *lines)) == 0
    err = capsys.readouterr().err
    assert err.splitlines()[-1].startswith("1 of 1 files imported, 1 group; run it: ")
    assert ("note: conda environment tf: not kept" in err) == (lines != LINES[2:])
    (config,) = configs_of([f"hydra.searchpath=[file://{tmp_path / 'conf'}]", "+experiment=imported", GPU])
    assert (config.workload.name, config.workload.script) == ("BERT_base_bs32", "train.py")
    assert config.workload.args == ["--batch_size", "32", "--note", "a (b) & c"]
    with planned([config]) as plan:
        assert {group.name.partition("-")[2] for group in plan.groups} == {"1x-BERT_base_bs32"}
    assert "data set MNIST dataset" in read(tmp_path)
    has_memory = "19828 MB measured, 17456.9 MB estimated by Horus" in read(tmp_path)
    assert has_memory == (lines != LINES[:8])


def test_exclusive_jobs_run_alone_and_collocated_ones_together(tmp_path, capsys):
    jobs = [
        write(tmp_path, "a"),
        write(tmp_path, "b", *changed(n2="python x.py", n6="collocated")),
        write(tmp_path, "c", *changed(n2="python y.py", n5="64", n6="Collocated")),
        write(tmp_path, "d", *changed(n2="CUDA_VISIBLE_DEVICES=1 python x.py", n6="collocated")),
    ]
    jobs[0] = write(tmp_path, "a", *changed(n2="python train.py"))
    assert run(tmp_path, *jobs) == 0
    alone, together = blocks_of(tmp_path)
    assert (alone["degree"], alone["workload.script"]) == (1, "'train.py'")
    assert together["mix"] == "['BERT_base_bs32_b','BERT_base_bs64','BERT_base_bs32_d']"
    assert "note: CUDA_VISIBLE_DEVICES: not kept" in capsys.readouterr().err
    assert run(tmp_path, *jobs, "--together", "--force") == 0
    (block,) = blocks_of(tmp_path)
    assert block["mix"].count("BERT_base") == 4
    assert "note: exclusive: not kept for 1 job" in capsys.readouterr().err
    assert run(tmp_path, jobs[1], jobs[1], "--force") == 0
    assert [block["degree"] for block in blocks_of(tmp_path)] == [2]


def test_environments_are_kept_where_their_folder_is_known(tmp_path):
    by_path = write(tmp_path, "p", *changed(n1="source /opt/conda/bin/activate /envs/own"))
    assert run(tmp_path, write(tmp_path, "a"), by_path, "--together", "--envs", str(tmp_path)) == 0
    content = yaml.safe_load(read(tmp_path))
    assert {"override /env": "existing"} in content["defaults"]
    assert [size["env_prefix"] for size in content["sizes"].values()] == [str(tmp_path / "tf"), "/envs/own"]
    assert run(tmp_path, by_path, "--force") == 0
    assert blocks_of(tmp_path)[0]["workload.env_prefix"] == "'/envs/own'"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (changed(n7="2"), "the job uses 2 GPUs"),
        (changed(n2="cd x && python train.py"), "needs a shell for '&&'"),
        (changed(n2="python train.py > log"), "needs a shell for '>'"),
        (changed(n2="python $HOME/train.py"), "needs a shell"),
        (changed(n2="OMP_NUM_THREADS=1 python train.py"), "sets OMP_NUM_THREADS"),
        (changed(n2="python 'train.py"), "No closing quotation"),
        (changed(n2="/usr/bin/python3 train.py"), "names an interpreter by its path"),
    ],
)
def test_a_job_that_cannot_be_run_here_is_listed_and_the_others_are_taken(tmp_path, capsys, lines, reason):
    job = write(tmp_path, "j", *lines)
    assert run(tmp_path, job, write(tmp_path, "k", *changed(n2="python x.py"))) == 1
    err = capsys.readouterr().err
    assert f"not imported: {job}: " in err and reason in err and "1 of 2 files imported, 1 group" in err
    assert run(tmp_path, job, "--force") == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: none of the 1 files of ")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("",), "its command '' does not run python"),
        (("Experiment,Workload", "1,1"), "its command 'Experiment,Workload' does not run python"),
        (LINES[:2], "its command '' does not run python"),
        (LINES[:5], "it has no line for its batch size"),
        ((*LINES, "9"), "it has a line after its memory: '9'"),
        (changed(n5="x"), "its batch size 'x' is not a whole number above 0"),
        (changed(n5="0"), "its batch size '0' is not a whole number above 0"),
        (changed(n6="maybe"), "its mode 'maybe' is neither exclusive nor collocated"),
        (changed(n7="-1"), "its number of GPUs '-1' is no"),
        (changed(n8="12 MB"), "its memory (measured) '12 MB' is not a number of MB"),
        (changed(n9="nan"), "its memory (Horus) 'nan' is not a number"),
        (changed(n4="a\0b"), "it is not text"),
        (("x" * 70_000,), "it is longer than 64 KiB"),
    ],
)
def test_what_is_no_job_file_is_refused_in_one_line(tmp_path, capsys, lines, reason):
    wrong = write(tmp_path, "wrong", *lines)
    assert run(tmp_path, write(tmp_path, "right", *changed(n2="python x.py")), wrong) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {wrong} is not a job file of CARMA: {reason}")
    assert not (tmp_path / "conf").exists()


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "bytes.rad").write_bytes(b"\xff\xfe")
    for path in (tmp_path, tmp_path / "absent.rad", tmp_path / "bytes.rad"):
        assert run(tmp_path, str(path)) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {path} ")
