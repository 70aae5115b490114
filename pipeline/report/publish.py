"""The files of a report or board in its folder, and their upload as artifacts of a run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain.tags import REPORT, Tag
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.base.system.words import announce
from pipeline.record.store.run_artifacts import make_run_link
from pipeline.record.store.store_access import open_named
from pipeline.record.store.upload import log_files
from pipeline.report.evaluate.study_board import summarize_devices, to_json
from pipeline.report.page.page import Content, render
from pipeline.report.page.table_format import to_csv, to_latex
from pipeline.report.read.study_records import Study

PAGE, MANIFEST, CASES, BOARD = "index.html", "report.json", "cases.json", "board.csv"
Experiment = str | list[str]
"""The experiment of a report, or the experiments of a board."""
_PART = f".{MANIFEST}.part"
_OURS = re.compile(r"(index\.html|cases\.json|board\.csv|figures/[\w.-]+\.(svg|pdf)|tables/[\w.-]+\.(csv|tex))")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenReport:
    """A report on disk: its folder, and the paths of its files relative to the folder."""

    folder: Path
    files: tuple[str, ...]

    @property
    def page(self) -> Path:
        return self.folder / PAGE


def default_folder(experiment: str) -> Path:
    """Return `reports/NAME`; in `NAME`, `_` replaces characters that do not suit a folder."""
    return Path("reports") / (re.sub(r"[^\w.-]", "_", experiment).lstrip(".")[:120] or "_")


def check_folder(folder: Path, experiment: Experiment) -> None:
    """Refuse a folder with files other than those of an earlier, possibly incomplete report of the same experiment.

    Raises:
        ConfigError: the folder has other files, or is a file itself.
    """
    if folder.exists() and not folder.is_dir():
        raise _make_refusal(folder, "this path is a file; set --out to a folder")
    if (folder / MANIFEST).is_file():
        _list_earlier(folder, experiment)
    elif folder.is_dir() and {path.name for path in folder.iterdir()} - {_PART}:
        raise _make_refusal(
            folder, "the folder has files that no report wrote; move them away, or choose another folder with --out"
        )


def write(content: Content, folder: Path) -> WrittenReport:
    """Write page, figures (SVG and PDF) and tables (CSV and LaTeX) of a report; replace an earlier report.

    Raises:
        ConfigError: the folder is not writable, or has files that no report wrote.
    """
    simulated = {"simulated": content.study.is_simulated}
    return replace(folder, content.study.experiment, simulated, dict(_files(content)))


def replace(
    folder: Path, experiment: Experiment, metadata: Mapping[str, object], contents: Mapping[str, bytes]
) -> WrittenReport:
    """Write files, by path, and remove those of an earlier report or board; the manifest includes `metadata`.

    The manifest lists each file before the file is written, so the next report can also replace an incomplete one.

    Raises:
        ConfigError: the folder is not writable, or has files that no report wrote.
    """
    check_folder(folder, experiment)
    metadata = {"experiment": experiment, **metadata}
    try:
        earlier = _list_earlier(folder, experiment)
        if foreign := [name for name in contents if name not in earlier and os.path.lexists(folder / name)]:
            names = f"{foreign[0]} and {len(foreign) - 1} more files" if len(foreign) > 1 else foreign[0]
            instead = "move your files away, or choose another folder with --out"
            raise _make_refusal(folder, f"the folder has {names}, which no report wrote; {instead}")
        folder.mkdir(parents=True, exist_ok=True)
        _write_manifest(folder, metadata, [*contents, *(name for name in earlier if name not in contents)])
        for name in earlier:
            (folder / name).unlink(missing_ok=True)
        for name, data in contents.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        _write_manifest(folder, metadata, list(contents))
    except OSError as error:
        raise _make_refusal(folder, f"{error}; choose another folder with --out") from error
    return WrittenReport(folder=folder, files=(*contents, MANIFEST))


@announce("logging the report")
def log(written: WrittenReport, root_or_uri: Path | str, study: Study) -> tuple[str, str]:
    """Log a report as artifacts of a new run of its experiment; return the id and the link of the run.

    Raises:
        TrackingError: the store is not writable.
    """
    store = open_named(root_or_uri)
    tags: dict[str, str] = {Tag.ROLE: REPORT, Tag.SIMULATED: str(study.is_simulated).lower()}
    try:
        run_id = log_files(store, study.experiment, REPORT, tags, written.folder, written.files)
        return run_id, make_run_link(None if store.root else store.uri, store.open_experiment(study.experiment), run_id)
    except TrackingError as error:
        raise TrackingError(
            f"cannot log the report {written.folder} to {root_or_uri}: {error}; try again, or add --no-log"
        ) from error


def _files(content: Content) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a report; the page is last, because it refers to the others."""
    for figure in content.figures:
        yield f"figures/{figure.name}.svg", figure.svg.encode("utf-8", "replace")
        yield f"figures/{figure.name}.pdf", figure.pdf
        if figure.column_pdf:
            yield f"figures/{figure.name}-column.pdf", figure.column_pdf
    for table in content.tables:
        yield f"tables/{table.name}.csv", to_csv(table).encode("utf-8", "replace")
        yield f"tables/{table.name}.tex", to_latex(table).encode("utf-8", "replace")
    studies = summarize_devices(content.study, content.cells, content.verdicts, content.winners)
    yield CASES, to_json(studies).encode()
    yield PAGE, render(content).encode("utf-8")


def _write_manifest(folder: Path, metadata: Mapping[str, object], files: Sequence[str]) -> None:
    """Replace the manifest in one step."""
    (folder / _PART).write_text(json.dumps({**metadata, "files": files}, indent=2) + "\n", encoding="utf-8")
    (folder / _PART).replace(folder / MANIFEST)


def _list_earlier(folder: Path, experiment: Experiment) -> list[str]:
    """Return the files of an earlier report, by its manifest; other names are ignored.

    Raises:
        ConfigError: the manifest is damaged, or belongs to another experiment.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return []
    seen = "no experiment or no list of files"
    try:
        match json.loads(path.read_text(encoding="utf-8")):
            case {"experiment": str() | list() as whose, "files": [*names]}:
                # A board may replace a board of other studies.
                if (isinstance(whose, str) or isinstance(experiment, str)) and whose != experiment:
                    held = f"the report of {whose!r}" if isinstance(whose, str) else "a board"
                    raise _make_refusal(folder, f"the folder has {held}; choose another folder with --out")
                return [name for name in names if isinstance(name, str) and _OURS.fullmatch(name)]
    except (OSError, ValueError, RecursionError) as error:
        seen = str(error)
    raise _make_refusal(
        folder,
        f"{MANIFEST} is damaged ({seen}); remove the folder if it contains only a report, or choose another "
        "folder with --out",
    )


def _make_refusal(folder: Path, reason: str) -> ConfigError:
    return ConfigError(f"cannot write the report to {folder}: {reason}")
