"""No file of a record, and nothing that is printed of a plan, holds a secret, in whatever form it was given."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.domain.script_runs import ScriptRun
from pipeline.launch.job_state import Ending
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.plan import config_reader, plan_text
from pipeline.plan import plan_builder as planning
from pipeline.record import group_record, provenance, tracking_server
from pipeline.record.invocation import Invocation
from pipeline.record.spool import Spool
from pipeline.record.store.content import RunContent
from pipeline.record.tracking_server import RequestHandler
from tests.conftest import inventory_of
from tests.support import secret_forms
from tests.support.experiments import composed
from tests.support.tracking_cases import Recorded

FORMS = dict(secret_forms.word_forms())
VARIABLES = dict(secret_forms.variables())
IN_CODE, PROGRAM = secret_forms.program()


@pytest.fixture(scope="module")
def recorded_texts(tmp_path_factory) -> Iterator[Mapping[str, str]]:
    """Everything that a failed group with all of the secrets leaves behind, by the path of the file."""
    folder = tmp_path_factory.mktemp("recorded")
    words = secret_forms.list_words()
    script = folder / "program" / "train.py"
    script.parent.mkdir()
    script.write_text(PROGRAM)
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *command], cwd=script.parent, check=True)
    script.write_text(PROGRAM.replace("done", "changed"))
    overrides = [
        "workload=script",
        f"workload.script={script}",
        f"workload.args={secret_forms.format_for_hydra(words)}",
        *(f"+workload.environ.{name}='{secret}'" for secret, name in VARIABLES.items()),
        *(f"+workload.flags.opt{n}={secret_forms.format_for_hydra(words)}" for n, words in enumerate(FORMS.values())),
        "tracking.uri='https://me:s3cr3t-uri@mlflow.example.org'",
        "degree=1",
    ]
    configs = config_reader.read([composed(overrides)])
    plan = planning.build_plan(configs, inventory_of(configs), is_sweep=False)
    (group,) = plan.groups
    invocation = Invocation(words=["run.py", *overrides, "--", "train.py", *words])
    facts, resume = provenance.collect({}, invocation), invocation.masked_resume_command
    workload = group.jobs[0].workload
    origins = {workload.script: provenance.find_origin(workload)}
    spool = Spool(
        folder, Recorded(), facts, {"plan.txt": plan_text.format_plan(plan)}, {}, configs[0].tracking.uri, origins
    )
    lines = [*(" ".join(words) for words in FORMS.values()), *(f"{n}={s}" for s, n in VARIABLES.items())]
    with spool.open(group) as run:
        endings = [Ending(Result.FAILED, f"ended with status 1: {line}") for line in lines]
        reason = "; ".join(ending.reason for ending in endings)
        job = JobResult(job=group.jobs[0], result=Result.FAILED, reason=reason, params={"api_key": "s3cr3t-param"})
        run.add_artifact("orchestrator_error.txt", "\n".join(lines))
        run.close(GroupResult(group=group, result=Result.FAILED, reason="\n".join(lines), jobs=(job,)))
    files = {
        str(path): path.read_text() for path in folder.rglob("*") if path.is_file() and "program" not in path.parts
    }
    yield files | {
        "printed": plan_text.format_plan(plan),
        "resume": resume,
        "json": json.dumps(plan_text.export_plan(plan, {})),
    }


@pytest.mark.sampled(1)
@pytest.mark.parametrize("secret", [*FORMS, *VARIABLES, *IN_CODE, "s3cr3t-uri", "s3cr3t-param"])
def test_no_file_holds_a_secret(recorded_texts, secret):
    assert [
        name for name, text in recorded_texts.items() if secret in text or secret in text.replace("\\\\", "\\")
    ] == []


def test_what_is_no_secret_is_there(recorded_texts):
    texts = {Path(name).name: text for name, text in recorded_texts.items()}
    assert "print('changed')" in texts["script-train.py"]
    assert texts["script-train.py"].count("\n") == PROGRAM.count("\n")
    compile(texts["script-train.py"], "train.py", "exec")
    assert "+print('changed')" in texts["uncommitted.diff"] and "-print('done')" in texts["uncommitted.diff"]
    params = json.loads(texts["record.json"])["jobs"][0]["params"]
    assert params["args"].count("--lr=1") == len(FORMS)
    assert "Database=d" in params["args"] and "https://h/?access_token=" in params["args"]
    assert json.loads(texts["group.json"])["key"] != "<hidden>"


def test_a_changed_program_without_its_secrets_is_still_a_diff(recorded_texts, tmp_path):
    diff = next(text for name, text in recorded_texts.items() if name.endswith("uncommitted.diff"))
    (tmp_path / "train.py").write_text(
        next(t for name, t in recorded_texts.items() if name.endswith("script-train.py"))
    )
    applied = subprocess.run(
        ["git", "apply", "--check", "--reverse"], cwd=tmp_path, input=diff, text=True, capture_output=True
    )
    assert applied.returncode == 0, applied.stderr


def test_a_name_that_only_looks_like_that_of_a_secret_hides_nothing(tmp_path):
    values = {name: f"visible-value-{number}" for number, name in enumerate(secret_forms.INNOCENT)}
    values |= {f"x{number}": value for number, value in enumerate(secret_forms.INNOCENT_VALUES) if "$" not in value}
    overrides = ["workload=script", "workload.script=tests/toys/no_such", "degree=1"]
    (tmp_path / "train.py").write_text("print(1)\n")
    overrides[1] = f"workload.script={tmp_path / 'train.py'}"
    overrides += [f"+workload.flags.{name}={secret_forms.format_for_hydra([value])}" for name, value in values.items()]
    configs = config_reader.read([composed(overrides)])
    (group,) = planning.build_plan(configs, inventory_of(configs), is_sweep=False).groups
    with Spool(tmp_path, Recorded(), {}, {}).open(group) as run:
        record = group_record.read(run.folder)
    params = record.jobs[0].params
    assert {name: json.loads(params[f"flags.{name}"]) for name in values} == {name: [v] for name, v in values.items()}
    config = (run.folder / "artifacts" / "config.yaml").read_text()
    assert "<hidden>" not in config


def test_a_server_in_the_spool_is_reached_with_the_login_of_this_process(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking_server, "open_store", lambda root, uri: uri)
    handler = RequestHandler(tmp_path, None, series_points=100)
    handler._uri = "https://me:s3cr3t@mlflow.example.org"  # as of a study that was opened
    assert handler._open("https://<hidden>@mlflow.example.org") == "https://me:s3cr3t@mlflow.example.org"
    assert handler._open("https://<hidden>@other.example.org") == "https://other.example.org"
    assert handler._open("https://other.example.org/a") == "https://other.example.org/a"


def test_what_a_script_logs_is_masked_by_names_that_are_clear():
    content = RunContent()
    params = {
        "api_key": "s3cr3t",
        "key": "image",
        "hub_token": "s3cr3t",
        "pad_token_id": "0",
        "url": "https://u:s3cr3t@h",
    }
    tags = {"note": "password=s3cr3t"}
    script = ScriptRun(prefix="", params=params, tags=tags, metrics={}, metric_files={}, artifacts=())
    assert not list(content.add_script_run(script, most_points=10))
    assert "s3cr3t" not in str((content.params, content.tags))
    assert (content.params["key"], content.params["pad_token_id"]) == ("image", "0")
