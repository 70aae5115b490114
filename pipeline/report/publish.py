"""Writes a report: its page, figures and tables in a folder, and all of it as artifacts of a run of its own.

A board is written to its folder in the same way.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain.tags import REPORT, Tag
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.record.store.links import make_run_link
from pipeline.record.store.store_access import open_named
from pipeline.record.store.upload import log_files
from pipeline.report.evaluate import outcomes
from pipeline.report.page.page import Content, render
from pipeline.report.page.table_format import to_csv, to_latex
from pipeline.report.read.records import Study

PAGE, MANIFEST, CASES, BOARD = "index.html", "report.json", "cases.json", "board.csv"
Experiment = str | list[str]
"""That of a report; of a board, those of all its studies."""
_PART = f".{MANIFEST}.part"
_OURS = re.compile(r"(index\.html|cases\.json|board\.csv|figures/[\w.-]+\.(svg|pdf)|tables/[\w.-]+\.(csv|tex))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A report on disk: its folder and the paths of its files within it."""

    folder: Path
    files: tuple[str, ...]

    @property
    def page(self) -> Path:
        return self.folder / PAGE


def default_folder(experiment: str) -> Path:
    """`reports/NAME`, the name made fit for a folder."""
    return Path("reports") / (re.sub(r"[^\w.-]", "_", experiment).lstrip(".")[:120] or "_")


def check_folder(folder: Path, experiment: Experiment) -> None:
    """Refuse a folder that holds something else than an earlier report of the same, whole or cut off.

    Raises:
        ConfigError: it is a file, or has content that no report wrote, or cannot say what a report wrote there, or that
            is of another study, or a board and not a report.
    """
    if folder.exists() and not folder.is_dir():
        raise _refused(folder, "that is a file; choose another folder with --out")
    if (folder / MANIFEST).is_file():
        _earlier(folder, experiment)
    elif folder.is_dir() and {path.name for path in folder.iterdir()} - {_PART}:
        instead = "empty it, or choose another one with --out"
        raise _refused(folder, f"the folder has content that no report wrote; {instead}")


def write(content: Content, folder: Path) -> Written:
    """Write the page, every figure as SVG and PDF, every table as CSV and LaTeX; an earlier report there is replaced.

    Raises:
        ConfigError: the folder cannot be written, or holds something else.
    """
    study = content.study
    says = {"simulated": study.is_simulated}
    return replace(folder, study.experiment, says, dict(_files(content)))


def replace(folder: Path, experiment: Experiment, says: Mapping[str, object], contents: Mapping[str, bytes]) -> Written:
    """Write files, by their path in a folder, in the place of those of an earlier report or board; the page is last.

    Whenever it is cut off, the manifest names every file of a report that lies there, so that the next one replaces it.

    Args:
        folder: to write to.
        experiment: what the files are of.
        says: what else the manifest says of them.
        contents: the files.

    Raises:
        ConfigError: the folder cannot be written, or holds something else.
    """
    check_folder(folder, experiment)
    says = {"experiment": experiment, **says}
    try:
        earlier = _earlier(folder, experiment)
        if foreign := [name for name in contents if name not in earlier and os.path.lexists(folder / name)]:
            and_more = f" (and {len(foreign) - 1} more of its files)" if len(foreign) > 1 else ""
            instead = "move what is yours away, or choose another folder with --out"
            raise _refused(folder, f"no report wrote {foreign[0]} there{and_more}; {instead}")
        folder.mkdir(parents=True, exist_ok=True)
        _write_manifest(folder, says, [*contents, *(name for name in earlier if name not in contents)])
        for name in earlier:
            (folder / name).unlink(missing_ok=True)
        for name, data in contents.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        _write_manifest(folder, says, list(contents))
    except OSError as error:
        raise _refused(folder, f"{error}; choose another folder with --out") from error
    return Written(folder=folder, files=(*contents, MANIFEST))


def log(written: Written, root_or_uri: Path | str, study: Study) -> tuple[str, str]:
    """Log a report of a study as artifacts of a new run of its experiment. What is there stays as it is.

    Returns:
        The id of the run, and the link to its page.

    Raises:
        TrackingError: the store cannot be written.
    """
    store = open_named(root_or_uri)
    tags: dict[str, str] = {Tag.ROLE: REPORT, Tag.SIMULATED: str(study.is_simulated).lower()}
    try:
        run_id = log_files(store, study.experiment, REPORT, tags, written.folder, written.files)
        return run_id, make_run_link(None if store.root else store.uri, store.open_experiment(study.experiment), run_id)
    except TrackingError as error:
        raise TrackingError(
            f"the report lies in {written.folder}, but could not be logged to {root_or_uri}: {error}; "
            "try again, or leave it out with --no-log"
        ) from error


def _files(content: Content) -> Iterator[tuple[str, bytes]]:
    """The page last: where there is one, its figures and tables are there."""
    for figure in content.figures:
        yield f"figures/{figure.name}.svg", figure.svg.encode("utf-8", "replace")
        yield f"figures/{figure.name}.pdf", figure.pdf
    for table in content.tables:
        yield f"tables/{table.name}.csv", to_csv(table).encode("utf-8", "replace")
        yield f"tables/{table.name}.tex", to_latex(table).encode("utf-8", "replace")
    found = outcomes.measured(content.study, content.cells, content.verdicts, content.winners)
    yield CASES, outcomes.to_json(found).encode()
    yield PAGE, render(content).encode("utf-8")


def _write_manifest(folder: Path, says: Mapping[str, object], files: Sequence[str]) -> None:
    """Put a manifest in the place of the one before, which stands until this one is whole."""
    (folder / _PART).write_text(json.dumps({**says, "files": files}, indent=2) + "\n", encoding="utf-8")
    (folder / _PART).replace(folder / MANIFEST)


def _earlier(folder: Path, experiment: Experiment) -> list[str]:
    """The files that an earlier report wrote here, or was about to, by its manifest: those of other names are not ours.

    Raises:
        ConfigError: the manifest is damaged, or of something else.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return []
    seen = "it has no experiment with a list of files"
    try:
        match json.loads(path.read_text(encoding="utf-8")):
            case {"experiment": str() | list() as whose, "files": [*names]}:
                # Boards have one folder for all of them, of whatever studies they are.
                if (isinstance(whose, str) or isinstance(experiment, str)) and whose != experiment:
                    held = f"the report of {whose!r}" if isinstance(whose, str) else "a board"
                    raise _refused(folder, f"it holds {held}; choose another folder with --out")
                return [name for name in names if isinstance(name, str) and _OURS.fullmatch(name)]
    except (OSError, ValueError, RecursionError) as error:
        seen = str(error)
    raise _refused(
        folder,
        f"{MANIFEST} there does not say what a report wrote ({seen}), so nothing is removed; "
        "remove the folder if all in it is of a report, or choose another one with --out",
    )


def _refused(folder: Path, why: str) -> ConfigError:
    return ConfigError(f"cannot write the report to {folder}: {why}")
