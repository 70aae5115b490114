"""A report on disk: replaced whole by the next one, whenever it was cut off, and never at the cost of anything else."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.report import publish
from pipeline.report.page.page import Content, make_content
from tests.support.report_rows import copies, study

STEPS = ("write_bytes", "write_text", "replace", "unlink", "mkdir")


class KilledError(BaseException):
    """Stands for SIGKILL: nothing handles it."""


@pytest.fixture(scope="module")
def content() -> Content:
    full_content = make_content(study(*(copies(mode, degree, 9.0) for mode in ("naive", "mps") for degree in (1, 2))))
    return dataclasses.replace(full_content, figures=full_content.figures[:1], tables=full_content.tables[:2])


@pytest.fixture(scope="module")
def before(content: Content) -> Content:
    """Another report: one figure and one table of it are not in the next one."""
    figure = dataclasses.replace(content.figures[0], name="stale")
    return dataclasses.replace(content, figures=(figure,), tables=content.tables[1:])


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def kill_at_step(step: int, monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> bool:
    """Do it, but stop dead at one of its changes of the disk, a file half written; whether it came that far."""
    count = -1

    def dies(real: Callable[..., object]) -> Callable[..., object]:
        def call(path: Path, *arguments: object, **options: object) -> object:
            nonlocal count
            count += 1
            if count == step:
                if isinstance(arguments[0] if arguments else None, (bytes, str)):
                    real(path, arguments[0][: len(arguments[0]) // 2], *arguments[1:], **options)
                raise KilledError
            return real(path, *arguments, **options)

        return call

    with monkeypatch.context() as patched:
        for name in STEPS:
            patched.setattr(Path, name, dies(getattr(Path, name)))
        try:
            action()
        except KilledError:
            return True
    return False


@pytest.mark.slow
def test_a_report_that_was_killed_at_any_moment_is_replaced_by_the_next(
    content: Content, before: Content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish.write(content, tmp_path / "whole")
    complete_files = read_files(tmp_path / "whole")
    step = 0
    for step in range(1000):
        fresh, replaced = tmp_path / f"fresh{step}", tmp_path / f"replaced{step}"
        publish.write(before, replaced)
        assert "figures/stale.svg" in read_files(replaced)
        (replaced / "figures/mine.svg").write_text("mine")
        was_killed = [
            kill_at_step(step, monkeypatch, lambda to=to: publish.write(content, to)) for to in (fresh, replaced)
        ]
        for folder in (fresh, replaced):
            publish.write(content, folder)
        assert read_files(fresh) == complete_files
        assert read_files(replaced) == complete_files | {"figures/mine.svg": b"mine"}
        if not any(was_killed):
            break
    assert 15 < step < 999


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "says", ['{"files": null}', '{"files": ', "", "[]", "3", '{"experiment": "x"}', '{"files": ["index.html"]}', "\xff"]
)
def test_a_manifest_that_says_nothing_is_one_error_and_nothing_is_touched(
    says: str, content: Content, tmp_path: Path
) -> None:
    publish.write(content, tmp_path)
    (tmp_path / publish.MANIFEST).write_bytes(says.encode("latin-1"))
    files_before = read_files(tmp_path)
    for attempt in (lambda: publish.check_folder(tmp_path, "synthetic"), lambda: publish.write(content, tmp_path)):
        with pytest.raises(ConfigError, match=r"report\.json is damaged .* --out"):
            attempt()
    assert read_files(tmp_path) == files_before


@pytest.mark.parametrize(("experiment", "held"), [("other", "the report of 'other'"), (["synthetic"], "a board")])
def test_a_report_of_another_study_and_a_board_are_not_replaced(
    experiment: str | list[str], held: str, content: Content, tmp_path: Path
) -> None:
    publish.replace(tmp_path, experiment, {}, {publish.PAGE: b"theirs"})
    files_before = read_files(tmp_path)
    with pytest.raises(ConfigError, match=f"the folder has {held}; choose another folder with --out"):
        publish.write(content, tmp_path)
    assert read_files(tmp_path) == files_before


def test_what_no_report_wrote_is_neither_removed_nor_written_over(content: Content, tmp_path: Path) -> None:
    publish.write(dataclasses.replace(content, figures=()), tmp_path)
    user_file = tmp_path / f"figures/{content.figures[0].name}.svg"
    user_file.parent.mkdir()
    user_file.write_text("mine")
    outside = tmp_path.parent / "outside.svg"
    outside.write_text("of others")
    manifest = json.loads((tmp_path / publish.MANIFEST).read_text())
    manifest["files"] += ["figures/../../outside.svg", "../outside.svg", 3, None, "notes.txt"]
    (tmp_path / publish.MANIFEST).write_text(json.dumps(manifest))
    files_before = read_files(tmp_path)
    with pytest.raises(ConfigError, match=rf"the folder has figures/{user_file.name}, which no report wrote; move"):
        publish.write(content, tmp_path)
    assert read_files(tmp_path) == files_before
    user_file.unlink()
    publish.write(content, tmp_path)
    assert outside.read_text() == "of others"
