"""Paths of the measuring machine: replaced everywhere alike, so that a bundle names no machine."""

from __future__ import annotations

import re

import pytest

from pipeline.base.domain.package_locks import make_portable, parse_lock
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.record.group_record import GroupRecord
from pipeline.record.store import portable_paths
from pipeline.record.store.portable_paths import PortablePaths
from tests.support.tracking_cases import record

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
