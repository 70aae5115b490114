"""Tables written for radT become experiments that plan, and rows that cannot be taken are named."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest
import yaml

from pipeline.base.domain.workload import fill_placeholders, refuse_unknown_placeholders
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.importer import __main__, radt_table
from tests.support.experiments import configs_of, planned
from workloads.model_options import DataSource

HEADER = ["Experiment", "Workload", "Status", "Run", "Devices", "Collocation", "File", "Listeners", "Params"]
MIXES = ["MS", "MSS", "MMS", "MSSS", "MMSS", "MMMS", "LS", "LSS", "LSSS", "LM", "LMS", "LMM", "LMSS", "LMSSS"]


def write_published_table(path: Path) -> Path:
    """A table like the one that the authors of the study published: 618 rows, 198 workloads.

    Made here from the description of the study, row by row in the published form; it is not their file.
    """

    def row(workload: tuple[int, int], collocation: str, model: str, data: str, batch_size: int) -> list[object]:
        params = f"--model {model} --data-dir /raid/datasets/{data}/ --warmup-epochs 0 --batch-size {batch_size}"
        device = 0 if collocation in ("-", "MPS") else 2
        return [*workload, "", "", device, collocation, "timm/train.py", "smi+top+dcgmi", params]

    rows: list[list[object]] = []
    data_sets = ("cifar10", "imagenet64_images", "imagenet")
    resnets = ("resnet26", "resnet50", "resnet152")
    experiments = [(resnets, 128), (resnets, 32), (["cait_xxs24_224"] * 3, 128), (["efficientnetv2_s"] * 3, 128)]
    for experiment, (models, batch_size) in enumerate(experiments, start=33):
        number = 0
        for model, data in zip(models, data_sets, strict=True):
            for degree, profiles in ((1, ["7g.40gb", "4g.20gb"]), (2, ["3g.20gb"]), (3, ["2g.10gb"]), (7, ["1g.5gb"])):
                for collocation in ["-", *profiles, "MPS"]:
                    number += 1
                    rows += [row((experiment, number), collocation, model, data, batch_size)] * degree
    jobs = {
        "S": ("1g.5gb", "resnet26", "cifar10", 128),
        "M": ("2g.10gb", "resnet50", "imagenet64_images", 128),
        "L": ("4g.20gb", "resnet152", "imagenet", 32),
    }
    for number, mix in enumerate(MIXES):
        for mode, collocation in enumerate(("-", "MPS", None)):
            rows += [row((37, 10 * number + mode), collocation or jobs[s][0], *jobs[s][1:]) for s in mix]
    return write(path, rows)


def write(path: Path, rows: list[list[object]], header: list[str] = HEADER) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def job(number: int, collocation: str = "-", *, file: str = "train.py", params: str = "", devices: str = "0"):
    return [1, number, "", "", devices, collocation, file, "smi+top", params]


def import_table(tmp_path: Path, rows: list[list[object]], *options: str) -> int:
    table = write(tmp_path / "table.csv", rows)
    return __main__.main(["radt", str(table), "--out", str(tmp_path / "conf"), "--name", "imported", *options])


def list_arguments(tmp_path: Path, *more: str) -> list[str]:
    return [f"hydra.searchpath=[file://{tmp_path / 'conf'}]", "+experiment=imported", *more]


@pytest.mark.slow
def test_the_published_table_is_198_groups(tmp_path, capsys):
    table = write_published_table(tmp_path / "published.csv")
    assert __main__.main(["radt", str(table), "--out", str(tmp_path / "conf"), "--name", "imported"]) == 0
    assert "618 of 618 rows imported, 198 groups" in capsys.readouterr().err
    groups, refused = radt_table.read(table)
    assert not refused
    assert Counter(group.scenario for group in groups) == {"naive": 62, "mps": 62, "mig": 74}
    extra = ["gpu=simulated_a100_40gb", "data.source=synthetic_files", "listeners=[host]"]
    assert "nan" not in (tmp_path / "conf/experiment/imported.yaml").read_text()
    with planned(configs_of(list_arguments(tmp_path, *extra))) as plan:
        collocated = [group for group in plan.groups if not group.sequential]
        assert len(collocated) == 198
        assert sum(group.degree for group in collocated) == 618
        # 4g+2g+2g and 4g+2g+1g+1g are in the table, and no A100 can hold them.
        assert sum(group.skip_reason is not None for group in collocated) == 3
        assert len(plan.groups) - len(collocated) == 12 + 14
        assert len({group.name for group in plan.groups}) == len(plan.groups)


@pytest.mark.slow
def test_arguments_arrive_as_a_shell_would_split_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my script, v2.py").write_text("")
    words = ["--note", 'it\'s 100 %, "really"', "--path", "C:\\", "--json", '{"a": [1, 2]}', "-x", "1e-3", "true"]
    quoted = "--note 'it'\\''s 100 %, \"really\"' --path 'C:\\' --json '{\"a\": [1, 2]}' -x 1e-3 true"
    other = [job(2, file="my script, v2.py", params=quoted), job(2, file="my script, v2.py", params="--home '${HOME}'")]
    assert import_table(tmp_path, [job(1, file="my script, v2.py", params=quoted), *other]) == 0
    alone, mix = configs_of(list_arguments(tmp_path))
    assert alone.workload.args == words
    assert alone.workload.script == "my script, v2.py"
    assert [mix.sizes[size].args for size in mix.mix] == [words, ["--home", "${HOME}"]]


def test_what_looks_like_an_interpolation_is_left_alone(tmp_path):
    assert import_table(tmp_path, [job(1, params="'${HOME}' 'a\\${b}'")] * 2) == 0
    (config,) = configs_of(list_arguments(tmp_path))
    assert [config.sizes[size].args for size in config.mix] == [["${HOME}", "a\\${b}"]] * 2


def test_older_params_are_arguments_too(tmp_path):
    table = write(
        tmp_path / "t.csv",
        [job(1, params="batch-size=128+amp+lr=0.1"), job(2, params="batch-size=8"), job(3, params="lr=0.1 +epochs=3")],
    )
    groups, _ = radt_table.read(table)
    assert [group.rows[0].args for group in groups] == [
        ("--batch-size", "128", "--amp", "--lr", "0.1"),
        ("--batch-size", "8"),
        ("lr=0.1", "+epochs=3"),  # overrides of Hydra
    ]


def test_older_tables_name_model_and_data(tmp_path):
    header = [*HEADER[:6], "Architecture", "Model", "Data", *HEADER[7:]]
    rows = [[1, 1, "", "", 0, "-", "pytorch", "resnet26", "cifar10", "smi", "batch-size=32"]] * 2
    table = write(tmp_path / "old.csv", rows, header)
    assert __main__.main(["radt", str(table), "--out", str(tmp_path / "conf"), "--name", "imported"]) == 0
    (config,) = configs_of(list_arguments(tmp_path))
    assert (config.workload.name, config.workload.batch_size, config.degree) == ("robroek_small", 32, 2)
    assert config.workload.source is DataSource.files


@pytest.mark.slow
def test_profiles_of_a_mix_follow_the_gpu_by_slices(tmp_path):
    rows = [job(1, "4g.20gb", params="--a 1"), job(1, "1g.5gb", params="--a 2")]
    assert import_table(tmp_path, rows) == 0
    assert import_table(tmp_path, rows, "--slices", "--force") == 0
    block = yaml.safe_load((tmp_path / "conf/experiment/imported.yaml").read_text())["blocks"][0]
    assert block["scenario.profiles"] == "['4g','1g']"
    (config,) = configs_of(list_arguments(tmp_path))
    assert config.scenario.profiles == ["4g", "1g"]


@pytest.mark.slow
def test_profiles_that_slices_would_confuse_keep_their_names(tmp_path, capsys):
    names = ["1g.5gb", "1g.10gb", "1g.5gb+me", "2g.10gb"]
    assert import_table(tmp_path, [job(1, name) for name in names], "--slices") == 0
    assert "note: 1g.10gb, 1g.5gb, 1g.5gb+me: full names kept" in capsys.readouterr().err
    (config,) = configs_of(list_arguments(tmp_path))
    assert config.scenario.profiles == [*names[:3], "2g"]


@pytest.mark.slow
def test_what_looks_like_a_placeholder_is_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    words = ["--out", "run-{epoch}", "{job}", "{{job}}", "${HOME}", '{"a": 1}']
    assert import_table(tmp_path, [job(1, params=" ".join(f"'{word}'" for word in words))] * 2) == 0
    (config,) = configs_of(list_arguments(tmp_path, "gpu=cpu", "listeners=[]"))
    (size,) = {config.sizes[size].name: config.sizes[size] for size in config.mix}.values()
    for word in size.args:
        refuse_unknown_placeholders("train", [word])
    assert [fill_placeholders(word, {"job": 1}) for word in size.args] == words


@pytest.mark.parametrize(
    ("rows", "lines", "reason"),
    [
        ([job(1, devices="0+1")], [2], "several GPUs"),
        ([job(1, devices="0"), job(1, devices="1")], [2, 3], "the rows of its group use several GPUs"),
        ([job(1, "vGPU"), job(1)], [2, 3], "its group has the unknown Collocation vGPU"),
        ([job(1, "MPS"), job(1)], [2, 3], "has several values of Collocation"),
        ([job(1, file="")], [2], "name a program"),
        ([job(1, params="--note 'open")], [2], "No closing quotation"),
        ([[*job(1, params="--layers 1"), "2", "3"]], [2], "from '2,3' on"),
        ([job(1), job(1, devices="0+1")], [2, 3], "runs together with line 3"),
    ],
)
def test_rows_that_cannot_be_taken_are_named(tmp_path, capsys, rows, lines, reason):
    assert import_table(tmp_path, [*rows, job(9)]) == 1
    refusals = [line for line in capsys.readouterr().err.splitlines() if line.startswith("not imported")]
    assert [int(line.split()[3].rstrip(":")) for line in refusals] == lines
    assert any(reason in line for line in refusals)
    blocks = yaml.safe_load((tmp_path / "conf/experiment/imported.yaml").read_text())["blocks"]
    assert len(blocks) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "lacks Experiment, Workload"),
        (",".join(HEADER) + "\n", "no row below its header"),
        (",".join(HEADER) + "\n1,1,,,0+1,-,train.py,smi,\n", "none of the 1 rows"),
    ],
)
def test_a_file_that_is_no_table_writes_nothing(tmp_path, capsys, content, message):
    (tmp_path / "t.csv").write_text(content)
    assert __main__.main(["radt", str(tmp_path / "t.csv"), "--out", str(tmp_path / "conf")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "conf").exists()


def test_an_experiment_is_not_replaced_unasked(tmp_path, capsys):
    assert import_table(tmp_path, [job(1)]) == 0
    assert import_table(tmp_path, [job(1)]) == 2
    assert "--force" in capsys.readouterr().err


def test_to_the_terminal(tmp_path, capsys):
    rows = [job(1, "MPS")] * 2 + [[*job(1, "MPS")[:7], "smi+top+iostat+free", ""]]
    assert __main__.main(["radt", str(write(tmp_path / "t.csv", rows)), "--out", "-"]) == 0
    out, err = capsys.readouterr()
    assert "note: Listeners free, iostat: not kept, because this project has no counterpart\n" in err
    printed = yaml.safe_load(out)
    assert printed["blocks"][0]["degree"] == 3
    assert not (PROJECT_DIR / "conf/experiment/t.yaml").exists()


def read_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[list[object]], header: list[str]) -> str:
    table = write(tmp_path / "t.csv", rows, header)
    assert __main__.main(["radt", str(table), "--out", str(tmp_path / "conf"), "--name", "imported", "--force"]) == 0
    return capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "expected", "note"),
    [
        ("1", ["1"], "note: Devices 1: kept as gpu.device"),
        ("2.0", ["2"], "note: Devices 2: kept as gpu.device"),
        ("GPU-0b5e", ["GPU-0b5e"], "note: Devices GPU-0b5e: kept as gpu.device"),
        ("0", ["auto"], "note: Devices 0: replaced by gpu.device=auto"),
        ("", ["auto"], ""),
    ],
)
def test_the_device_of_a_table_is_kept_unless_a_gpu_is_chosen(tmp_path, capsys, devices, expected, note):
    assert import_table(tmp_path, [job(1, devices=devices), job(2, "MPS", devices=devices)]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "Devices" in line]
    assert [line.startswith(note) for line in lines] == [True] * bool(note)
    configs = configs_of(list_arguments(tmp_path))
    assert [config.gpu.device for config in configs] == expected * 2
    chosen = configs_of(list_arguments(tmp_path, "gpu=simulated_a100_40gb"))
    assert [config.gpu.device for config in chosen] == ["auto"] * 2


@pytest.mark.slow
def test_devices_that_are_not_kept_are_said_with_their_groups(tmp_path, capsys):
    rows = [job(number, devices=str(device)) for number, device in enumerate([0, 2, 10, 2])]
    assert import_table(tmp_path, rows) == 0
    note = "note: Devices: not kept (1 group on GPU 0, 2 groups on GPU 2, 1 group on GPU 10), because "
    assert note in capsys.readouterr().err
    assert {config.gpu.device for config in configs_of(list_arguments(tmp_path))} == {"auto"}
    assert import_table(tmp_path, [job(1, devices="cuda")], "--force") == 2
    assert "Devices cuda is not a GPU; use an index or UUID" in capsys.readouterr().err


def test_every_column_that_is_not_kept_is_said(tmp_path, capsys):
    header = [*HEADER[:2], "Name", *HEADER[2:], "WorkloadListener"]
    known = "--model resnet26 --data-dir /raid/cifar10 --warmup-epochs 0 --batch-size 32"
    common = ["0", "-", "timm/train.py"]
    rows = [
        [1, 1, "no sharing", "FINISHED", "a1b2", *common, "smi+free", known, "nsys profile -o x"],
        [2, 1, "again", "", "", *common, "smi+top+nsys", "--lr 0.1", ""],
    ]
    notes = read_notes(tmp_path, capsys, rows, header)
    assert [line for line in notes.splitlines() if line.startswith("note: ")] == [
        "note: Devices 0: replaced by gpu.device=auto, which is the first GPU or the GPU of the allocation",
        "note: Listeners free: not kept, because this project has no counterpart",
        "note: Listeners nsys: not kept; run with profiler=nsys",
        "note: Listeners differ between rows; all groups use the listeners of all rows",
        "note: Experiment 1, 2: merged into one experiment, with groups in random order",
        "note: --data-dir /raid/cifar10: not kept; set data.root=FOLDER to the folder of the data sets",
        "note: Name no sharing, again: not kept, because groups are named after their jobs",
        "note: Status and Run: results of radT, not kept; every row runs again",
        "note: WorkloadListener nsys profile -o x: not kept, because this project has no counterpart",
    ]


def test_warm_up_epochs_are_kept_as_arguments_of_the_script(tmp_path, capsys):
    params = "--model resnet26 --data-dir /raid/cifar10 --warmup-epochs 3 --batch-size 32"
    assert import_table(tmp_path, [job(1, file="timm/train.py", params=params)]) == 0
    (config,) = configs_of(list_arguments(tmp_path))
    assert config.workload.args[4:6] == ["--warmup-epochs", "3"]
