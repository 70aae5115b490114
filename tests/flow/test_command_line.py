"""A mistake on the command line is one line that says what to give instead, and nothing is made."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from tests.support import forks, studies
from tests.support.tables import refused_programs, refused_words

pytestmark = pytest.mark.covers("pipeline/plan", "hydra_plugins", "run.py")
PACKAGE = "# @package _global_\n"
RUN = f"python {PROJECT_DIR}/run.py"


def run(folder: Path, *arguments: str, is_real: bool = False, **environ: str) -> tuple[int, str]:
    """run.py in an empty folder: exit status and errors."""
    start = forks.start_real if is_real else forks.start
    with start(PROJECT_DIR / "run.py", *arguments, cwd=folder, env={**os.environ, **environ}) as process:
        out, err = process.communicate(timeout=600)
    assert out == ""
    return process.returncode, err


@pytest.fixture
def refusal_of(tmp_path, monkeypatch, capsys):
    """Exit status and errors of a command line without a sweep, which Hydra composes in this process."""

    def refusal(*arguments: str) -> tuple[int, str]:
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            status, _ = studies.execute(arguments, tmp_path / "kept", patch, studies.composed_by_hydra)
        out, err = capsys.readouterr()
        assert out == ""
        return status, err

    return refusal


@pytest.mark.sampled(6)
@refused_programs()
def test_a_mistake_ends_the_program_with_status_2_and_one_line(tmp_path, argv, pattern):
    status, err = run(tmp_path, *argv)
    assert status == 2 and re.fullmatch(f"error: {pattern}\n", err.replace(RUN, "<RUN>")), err
    assert not list(tmp_path.iterdir())


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"{PACKAGE}windw: {{seconds: 3}}", "{file}: windw does not exist; did you mean window?"),
        (f"{PACKAGE}window: {{second: 3}}", "{file}: window.second does not exist; did you mean window.seconds?"),
        (f"{PACKAGE}window: {{seconds: long}}", "{file}: window.seconds must be a number"),
        (
            f"{PACKAGE}hydra: {{mode: MULTIRUN}}\nblocks: [{{degree: 2,3}}]",
            '{file}: blocks[0]: 3 is not a key; quote several values: degree: "2,3"',
        ),
        (
            f"{PACKAGE}blocks:\n  - {{mix: [M,S],[S]}}\n",
            '{folder}/{file}, line 3: a list is not a key; quote several values: mix: "[M,S],[M,S,S]"',
        ),
        *(
            (f"# Mine\n{content}", "{file} must begin with the line # @package _global_")
            for content in ("degree: 2", "blocks: []", "# @package global\ndegree: 2", f"degree: 2\n{PACKAGE}")
        ),
        ("a: [1\nb: {", "the configuration cannot be read: while parsing"),
    ],
)
def test_a_mistake_in_a_file_is_one_line_that_names_the_file(tmp_path, content, message):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text(content)
    status, err = run(tmp_path, "--config-dir", str(tmp_path), "+experiment=mine")
    expected = message.format(file="experiment/mine.yaml", folder=tmp_path)
    is_unreadable = expected.endswith("while parsing") and f'"{tmp_path}/experiment/mine.yaml", line 2' in err
    assert status == 2 and (err == f"error: {expected}\n" or is_unreadable), err
    assert err.startswith(f"error: {expected}") and err.count("\n") == 1


@pytest.mark.sampled(16)
@refused_words()
def test_a_mistake_is_one_line_that_says_what_to_give_instead(refusal_of, tmp_path, argument, message):
    assert refusal_of(argument) == (2, f"error: {message.replace('<RUN>', RUN)}\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("group", "schema", "kind"),
    [
        ("scenario", "scenario/", "pipeline.prepare.sharing.naive.Naive"),
        ("env", "env/", "pipeline.prepare.env.current.CurrentEnv"),
        ("workload", "", "workloads.rates.options.Micro"),
    ],
)
def test_an_option_that_a_copied_yaml_sets_is_refused_with_the_lines_that_add_it(
    refusal_of, tmp_path, group, schema, kind
):
    (tmp_path / "conf" / group).mkdir(parents=True)
    text = f"defaults: [/schema/{schema}{kind}@_here_, _self_]\nlevel: 5\n"
    (tmp_path / f"conf/{group}/polite.yaml").write_text(text)
    assert refusal_of(f"hydra.searchpath=[file://{tmp_path}/conf]", f"{group}=polite") == (
        2,
        f"error: {group}/polite.yaml: {group}.level is not an option of {kind}; write in the class, below @dataclass, "
        f"level: TYPE = DEFAULT, and in the YAML defaults: [/schema/{schema}MODULE.CLASS@_here_, _self_]\n",
    )


@pytest.mark.parametrize(
    ("workload", "setting", "message"),
    [
        (
            "script",
            "batch_size",
            "is not a setting of scripts; write workload.flags.batch_size=VALUE to pass --batch_size",
        ),
        ("micro", "model", "does not exist in this workload; add workload=bert_base or .* or others"),
    ],
)
def test_a_setting_of_other_workloads_is_named_with_what_has_it(refusal_of, workload, setting, message):
    status, err = refusal_of(f"workload={workload}", f"workload.{setting}=3")
    assert status == 2 and re.match(f"error: workload.{setting} {message}", err), err


@pytest.mark.parametrize("workload", [[], ["workload=script"], ["workload=script", "workload.script=a.py"]])
def test_keys_of_a_script_for_a_mix_are_answered_with_the_map_that_works(refusal_of, workload):
    pattern = 'workload.metric_pattern="([0-9.]+) it/s"'
    status, err = refusal_of(*workload, pattern, 'mix=["a.py 1","b.py 2"]')
    assert status == 2
    assert """'mix=[{command: "a.py --lr 1", metric_pattern: "([0-9.]+) it/s", work_unit: steps},{comm""" in err


@pytest.mark.slow
@pytest.mark.parametrize("argument", ["degre=1,2", pytest.param("+degre=1,2", marks=pytest.mark.slow)])
def test_a_mistake_in_a_sweep_is_the_same_line(tmp_path, argument):
    message = "degre does not exist; did you mean degree?"
    assert run(tmp_path, "-m", argument, is_real=argument.startswith("+")) == (2, f"error: {message}\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_sweep_sets_what_each_of_its_choices_has_and_names_the_one_that_lacks_it(tmp_path):
    command = [
        PROJECT_DIR / "run.py",
        "gpu=simulated_a100_40gb",
        "workload=tiny",
        "scenario.profile=1g",
        "dry_run=true",
    ]
    done = forks.run(*command, "-m", "scenario=mig,mig_mps", cwd=tmp_path)
    assert done.returncode == 0 and "mig_mps-2x-tiny-profile=1g" in done.stdout, done.stderr
    done = forks.run(*command, "+experiment=robroek_quick", "+rehearse=tiny", "scenario=mig,naive", cwd=tmp_path)
    assert done.returncode == 2
    line = "^error: scenario.profile does not exist in scenario=naive; .* \\(in the combination .*scenario=naive"
    assert re.search(line, done.stderr), done.stderr


def test_a_folder_of_configurations_with_a_typing_mistake_is_named_with_the_right_one(tmp_path):
    (tmp_path / "configs").mkdir()
    message = f"--config-dir {tmp_path}/confgs does not exist; did you mean {tmp_path}/configs?"
    assert run(tmp_path, "--config-dir", "confgs") == (2, f"error: {message}\n")


@pytest.mark.slow
def test_hydra_tells_all_of_it_where_that_is_asked_for(tmp_path):
    status, err = run(tmp_path, "degre=3", HYDRA_FULL_ERROR="1", is_real=True)
    assert status == 2 and "Traceback" in err and err.endswith("did you mean degree?\n")
