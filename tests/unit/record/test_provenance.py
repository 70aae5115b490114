"""Origin of a row, with portable paths and without secrets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pipeline.base.domain.package_locks import make_portable, parse_lock
from pipeline.base.domain.records import Result
from pipeline.base.domain.script_runs import ScriptRun
from pipeline.base.domain.workload import Workload
from pipeline.base.system import git
from pipeline.base.system.factory import Spec
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.launch.job_state import Ending
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.plan import config_reader, plan_text
from pipeline.plan import plan_builder as planning
from pipeline.plan.source_digest import read_code
from pipeline.record import group_record, invocation, provenance, tracking_server
from pipeline.record.group_record import GroupRecord, name_script_artifacts
from pipeline.record.invocation import Invocation
from pipeline.record.spool import Spool
from pipeline.record.store import portable_paths
from pipeline.record.store.content import RunContent
from pipeline.record.store.portable_paths import PortablePaths
from pipeline.record.tracking_server import RequestHandler
from tests.conftest import inventory_of
from tests.support import secret_forms
from tests.support.experiments import composed
from tests.support.programs import commit_all, run_git
from tests.support.tracking_cases import Recorded, record


def test_the_command_line_is_recorded_without_passwords(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run.py", "degree=2", "tracking.uri=https://me:s3cret@mlflow.example.org/x"])
    facts = provenance.collect({}, invocation.get_current())
    assert facts["command_line"] == "run.py degree=2 'tracking.uri=https://<hidden>@mlflow.example.org/x'"


def test_the_commit_around_an_installed_package_is_not_that_of_the_project(monkeypatch):
    assert "git_commit" in provenance.collect({}, invocation.get_current()) or git.read(PROJECT_DIR) is None
    monkeypatch.setattr(provenance, "PROJECT_DIR", PROJECT_DIR / "pipeline")
    assert "git_commit" not in provenance.collect({}, invocation.get_current())


def test_a_worker_records_the_command_line_that_its_launcher_was_given_and_hands_it_to_no_job(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run.py", "degree=2", "shard=3"])
    monkeypatch.setattr(invocation, "_current", None)
    monkeypatch.setenv(invocation.STUDY, "run.py degree=2 hydra/launcher=slurm")
    monkeypatch.setenv(invocation.TASK, "cluster/12_3")
    invocation.begin()
    assert {invocation.STUDY, invocation.TASK}.isdisjoint(os.environ)
    facts = provenance.collect({}, invocation.get_current())
    assert facts["command_line"] == "run.py degree=2 hydra/launcher=slurm"
    assert facts["slurm_task"] == "cluster/12_3"


@pytest.mark.parametrize("handed", [None, "", "it's"])
def test_what_no_launcher_hands_over_is_nothing(monkeypatch, handed):
    monkeypatch.setattr(sys, "argv", ["run.py", "degree=2"])
    monkeypatch.setattr(invocation, "_current", None)
    if handed is not None:
        monkeypatch.setenv(invocation.STUDY, handed)
    invocation.begin()
    facts = provenance.collect({}, invocation.get_current())
    assert facts["command_line"] == "run.py degree=2" and "slurm_task" not in facts


def test_the_machine_is_recorded():
    facts = provenance.collect({}, invocation.get_current())
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    assert int(facts["memory_mib"]) == pytest.approx(int(lines["MemTotal"].split()[0]) / 1024, rel=0.01)
    assert facts["cpu_model"] and facts["os"]
    assert all(int(facts[name]) >= 1 for name in ("cpu_sockets", "numa_nodes") if name in facts)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.py").write_text("import model, fresh\n")
    (folder / "model.py").write_text("WIDTH = 1\n")
    commit_all(folder)
    return folder


def origin(folder: Path) -> provenance.Origin:
    code = read_code(folder / "train.py", PROJECT_DIR)
    return provenance.find_origin(
        Workload(
            name="train",
            script=str(code.path),
            argv=(),
            ends_by_itself=True,
            env=Spec(target=""),
            digest="",
            sources=(*code.sources, *read_code(PROJECT_DIR / "workloads/script.py", PROJECT_DIR).sources),
        )
    )


def test_a_clean_repository_is_told_by_its_commit(repository, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(PROJECT_DIR / ".git"))  # as a hook of git has it
    program_origin = origin(repository)
    monkeypatch.delenv("GIT_DIR")
    assert program_origin.facts["program_commit"] == run_git(repository, "rev-parse", "HEAD").strip()
    assert program_origin.facts["program_changed"] == "false" and program_origin.uncommitted == ()


def test_what_no_commit_tells_can_be_applied_to_the_commit(repository, tmp_path):
    commit = run_git(repository, "rev-parse", "HEAD").strip()
    (repository / ".gitignore").write_text("fresh.py\n")
    (repository / "model.py").write_text("WIDTH = 2\nURL = 'https://me:s3cret@example.org'\n")
    (repository / "fresh.py").write_text("import model\nNEW = True")
    ends = "A = '\f \u2028'\r\nB = 1\n".encode()
    (repository / "ends.py").write_bytes(ends)
    (repository / "notes.txt").write_text("not of the program")
    (tmp_path / "elsewhere.py").write_text("TOKEN = 's3cret'\n")
    (repository / "linked.py").symlink_to(tmp_path / "elsewhere.py")
    (repository / "train.py").write_text("import model, fresh, linked, ends\n")
    index = (repository / ".git/index").read_bytes()
    program_origin = origin(repository)
    assert (repository / ".git/index").read_bytes() == index
    assert (program_origin.facts["program_commit"], program_origin.facts["program_changed"]) == (commit, "true")
    text = provenance.join_uncommitted([program_origin, program_origin])
    assert "s3cret" not in text and "notes" not in text and text.count("+WIDTH = 2") == 1
    run_git(tmp_path, "clone", "-q", str(repository), "clone")
    (tmp_path / "diff").write_text(text)
    run_git(tmp_path / "clone", "apply", str(tmp_path / "diff"))
    assert (tmp_path / "clone/fresh.py").read_text() == "import model\nNEW = True"
    assert (tmp_path / "clone/ends.py").read_bytes() == ends
    assert (tmp_path / "clone/train.py").read_text() == (repository / "train.py").read_text()


def test_a_repository_that_would_run_programs_runs_none(repository):
    for key in ("diff.external", "core.fsmonitor", "diff.x.textconv"):
        run_git(repository, "config", key, f"touch {repository}/ran; false")
    (repository / ".gitattributes").write_text("*.py diff=x\n")
    (repository / "model.py").write_text("WIDTH = 2\n")
    assert "+WIDTH = 2" in provenance.join_uncommitted([origin(repository)])
    assert not (repository / "ran").exists()


def test_bytes_that_are_no_text_are_told_of(repository):
    (repository / "model.py").write_bytes(b"WIDTH = '\xe9'\n")
    assert "# bytes that are not UTF-8 are replaced by \ufffd\n" in provenance.join_uncommitted([origin(repository)])


def test_the_artifacts_of_scripts_have_names_that_a_disk_takes():
    long = "x" * 246 + ".py"
    script_artifacts = name_script_artifacts(["a/t.py", f"a/{long}", f"a/y{long}", "a/t.py", "b/u.py"])
    assert script_artifacts["a/t.py"] == "script-t.py" and script_artifacts["b/u.py"] == "script-u.py"
    assert len(set(script_artifacts.values())) == 4 and script_artifacts[f"a/{long}"].startswith("script-1-x")
    assert all(len(name) <= 255 and name.endswith(".py") for name in script_artifacts.values())


def test_modules_of_a_script_without_a_repository_are_kept(tmp_path):
    (tmp_path / "train.py").write_text("import model\n")
    (tmp_path / "model.py").write_text("WIDTH = 1\n")
    if git.find_root(tmp_path) is not None:
        pytest.skip("temporary folders lie in a repository here")
    program_origin = origin(tmp_path)
    assert program_origin.facts == {} and "+WIDTH = 1" in provenance.join_uncommitted([program_origin])
    assert "import model" not in provenance.join_uncommitted([program_origin]), "the script is an artifact of its own"


def test_what_is_too_long_is_cut_and_says_so(repository, monkeypatch):
    monkeypatch.setattr(provenance, "_MOST_BYTES", 200)
    (repository / "model.py").write_text("WIDTH = 2\n" * 100)
    text = provenance.join_uncommitted([origin(repository)])
    assert len(text) < 260 and "# cut: the first 200 of " in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_repository_of_somebody_else_is_not_asked(repository, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (repository, *repository.rglob("*")):
        os.chown(path, 12345, 12345)
    assert git.read(repository) is None


FACTS = {
    "working_folder": "/home/alice/study",
    "program_repository": "/fast/alice/clone",
    "environment_0_python": "/opt/torch/.venv/bin/python3",
    "user": "alice",
    "host": "gpu-node-17",
    "command_line": "run.py tracking.root=/tmp/runs data.root=/datasets/imagenet",
}


def group(**facts: str) -> GroupRecord:
    params = {"script": "workloads/train_timm.py"}
    return record((), params=params, facts=FACTS | facts, host="gpu-node-17", reason="no /home/alice/x", uri="http://h")


@pytest.fixture
def paths() -> PortablePaths:
    return PortablePaths([group()])


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("/fast/alice/clone/workloads/a.py", "$PROJECT/workloads/a.py"),
        ('{"path": "/fast/alice/clone"}', '{"path": "$PROJECT"}'),
        ("/fast/alice/clone2/a.py", "$FOLDER_a246bb/clone2/a.py"),
        ("/home/alice/study/x and /home/alice/y", "$WORKING_FOLDER/x and $HOME/y"),
        ("file:///opt/torch/.venv/lib/a.so:3", "file://$ENVIRONMENT/lib/a.so:3"),
        ("sqlite:////tmp/runs/mlflow.db", "sqlite:///$TMPDIR/runs/mlflow.db"),
        ("PATH=/home/alice/bin:/usr/bin -I/home/alice/include", "PATH=$HOME/bin:/usr/bin -I$HOME/include"),
        ("/var/tmp, /proc/stat.busy_ratio and 5 requests/s", "/var/tmp, /proc/stat.busy_ratio and 5 requests/s"),
        ("https://example.org/home/alice/x", "https://example.org/home/alice/x"),
        ("host gpu-node-17 failed, gpu-node-170 did not", "host host-2f073d failed, gpu-node-170 did not"),
        ("user: alice\n", "user: user-2bd806\n"),
        ("alice in wonderland", "alice in wonderland"),
        ("alice@gpu-node-17:/x", "user-2bd806@host-2f073d:/x"),
        ("ssh -l alice alice@example.org", "ssh -l user-2bd806 user-2bd806@example.org"),
        ("user=alice LOGNAME=alice --user=alice", "user=user-2bd806 LOGNAME=user-2bd806 --user=user-2bd806"),
        ("~alice/x ~/x", "~user-2bd806/x ~/x"),
        ("run 2>/home/alice/log >>/home/alice/log", "run 2>$HOME/log >>$HOME/log"),
        ("-I/home/alice/include", "-I$HOME/include"),
        ("a=%2Fhome%2Falice%2Fx&b=%2Fusr%2Flib", "a=$HOME%2Fx&b=%2Fusr%2Flib"),
    ],
)
def test_paths_in_texts_are_replaced_and_other_texts_are_not(paths: PortablePaths, text: str, masked: str) -> None:
    assert paths.mask(text) == masked


def test_equal_folders_stay_equal_and_different_ones_stay_different(paths: PortablePaths) -> None:
    texts = ["/datasets/imagenet/a", "/datasets/imagenet/b", "/scratch/imagenet/a", "/home/bob/a", "/home/alice/a"]
    masked = [paths.mask(text) for text in texts]
    assert len(set(masked)) == len(texts) and not any(text.startswith("/") for text in masked)
    assert masked[0][:-1] == masked[1][:-1] and masked[0].startswith("$FOLDER_")
    other = PortablePaths([group(host="x", user="bob")])
    assert other.mask(texts[0]) == masked[0]


def test_the_short_name_of_a_host_is_replaced_like_the_long_one() -> None:
    paths = PortablePaths([group(host="gpu-node-17.example.org")])
    short, long, domain = (paths.mask(f"{name} failed") for name in ("gpu-node-17", "gpu-node-17.example.org", "b.org"))
    assert short == long and short.startswith("host-") and domain == "b.org failed"


def test_the_path_of_a_url_is_no_folder() -> None:
    url_path = "/v1/chat/completions"
    assert PortablePaths([group(command_line=f"run.py workload.path={url_path}")]).mask(url_path) == url_path


def test_a_salt_changes_all_digests_and_keeps_equal_names_equal() -> None:
    text = "alice@gpu-node-17:/home/carol/x /datasets/a"
    unsalted, first, again, other = (PortablePaths([group()], salt) for salt in ("", "a", "a", "b"))
    assert first.mask(text) == again.mask(text)
    assert len({paths.mask(text) for paths in (unsalted, first, other)}) == 3
    for digests in zip(*(re.findall(r"[0-9a-f]{6}", paths.mask(text)) for paths in (unsalted, first)), strict=True):
        assert len(set(digests)) == 2
    assert first.mask_record(group()).facts["user"] == first.mask("alice@h").removesuffix("@h")


def test_two_projects_do_not_become_one() -> None:
    paths = PortablePaths([group(), group(program_repository="/app")])
    first, second = paths.mask("/fast/alice/clone/a.py"), paths.mask("/app/a.py")
    assert first != second and first.startswith("$PROJECT_") and second.startswith("$PROJECT_")


def test_masking_twice_changes_nothing_more(paths: PortablePaths) -> None:
    masked = paths.mask_record(group())
    assert (masked.facts["user"], masked.host, masked.machine_id, masked.uri) == (
        "user-2bd806",
        "host-2f073d",
        "",
        None,
    )
    texts = (*masked.facts.values(), masked.reason)
    assert not any("/home" in text or "alice" in text or "17" in text for text in texts)
    again = PortablePaths([masked])
    assert again.mask_record(masked) == masked
    assert again.mask("/home/carol/x") == "$HOME_912ccc/x"


def test_code_keeps_paths_that_belong_to_the_program(paths: PortablePaths) -> None:
    code = "open('/tmp/x'); open('/fast/alice/clone/data'); open('/home/alice/study/y')"
    assert paths.mask_artifact("script-train.py", code) == (
        "open('/tmp/x'); open('$PROJECT/data'); open('$WORKING_FOLDER/y')"
    )
    assert "$TMPDIR/x" in paths.mask_artifact("stdout.log", code)


def test_names_of_folders_are_those_of_the_machine_that_reproduces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/carol")
    monkeypatch.setenv("TMPDIR", "/fast/tmp")
    text = "a: $PROJECT/x\nb: $HOME/y\nc: $TMPDIR/z\nd: $FOLDER_ab12cd/q $HOMES"
    expanded = f"a: {PROJECT_DIR}/x\nb: /home/carol/y\nc: /fast/tmp/z\nd: $FOLDER_ab12cd/q $HOMES"
    assert portable_paths.expand(text) == expanded


LOCK = """# environment lock: venv
# python: 3.12.3
# platform: linux-x86_64
--find-links /home/alice/wheels
--index-url https://example.org/simple
anyio @ file:///home/alice/wheels/anyio-4.16.0-py3-none-any.whl#sha256=ab
anyio==4.15.1
edited @ file:///home/alice/edited#content=12
remote @ https://example.org/remote-1.0-py3-none-any.whl
source @ file:///home/alice/source-1.2.tar.gz
tool @ git+file:///home/alice/tool@0123
torch @ file:///w/torch-2.4.0%2Bcu121-cp312-cp312-linux_x86_64.whl
"""


def test_a_lock_can_be_installed_elsewhere() -> None:
    portable = make_portable(LOCK)
    required = [line for line in portable.splitlines() if not line.startswith("#")]
    assert required == [
        "--index-url https://example.org/simple",
        "anyio==4.16.0",
        "remote @ https://example.org/remote-1.0-py3-none-any.whl",
        "source==1.2",
        "torch==2.4.0+cu121",
    ]
    assert "# installed from local files when it was recorded: anyio, source, torch\n" in portable
    assert "# second version, shadowed by the first: anyio==4.15.1\n" in portable
    assert make_portable(portable) == portable
    assert parse_lock(portable.splitlines()) == parse_lock(LOCK.splitlines())
    assert make_portable("a==1\n") == "a==1\n"


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
    commit_all(script.parent)
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
