"""Texts of `python run.py --help` and `--help-keys [PREFIX]`, printed without Hydra, whose import is slow."""

from __future__ import annotations

import itertools
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence

from pipeline.base.domain.config_choices import list_choices
from pipeline.base.system import entry_points, startup, words
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR, config_folders

_CONF, _KEYS = PROJECT_DIR / "conf", PROJECT_DIR / "docs/configuration.md"
_WIDTH = 118

_HEAD = """\
Measure what GPU jobs gain by running together: side by side, under MPS, or on MIG instances.

usage: {run} [-m] [GROUP=CHOICE ...] [KEY=VALUE ...]

{examples}

Choices, as GROUP=CHOICE (* is the default; a plus is part of the argument, as in +experiment=robroek_quick):
"""
_EXAMPLES = (
    (("run", "workload=tiny", "degree=3"), "three copies side by side"),
    (("run", "-m", "scenario=serial,naive,mps,mig", "degree=1,2,3,7"), "a sweep: one study, with its baselines"),
    (("run", "-m", "scenario=naive,mps,mig", "degree=2,3", "gpu=simulated_a100_40gb"), "rehearsed without a GPU"),
    (("run", "degree=2", "--", "train.py", "--epochs", "3"), "your own script, unchanged"),
    (("run", "+experiment=robroek_quick", "+rehearse=tiny"), "a study that comes with the project, rehearsed"),
    (("report", "--experiment", "robroek_quick-rehearsal"), "its report"),
)
_KEYS_OF_MANY = """
Most used keys (--help-keys lists all keys, --help-keys gpu the keys of one group):
  degree=3  mix=[S,M]  repeats=5  window.seconds=30  workload.batch_size=64  gpu.device=1  dry_run=true  resume=true
  --help-keys [PREFIX]   every key with its type, default and meaning
  --cfg job              the composed configuration (--hydra-help: options of Hydra, which reads this command line)

Exit status: 0: every group has a result; 1: some groups failed or did not run; 2: refused, nothing was changed.
Guides are in docs/; begin with docs/your_own_script.md, docs/sweeps.md and docs/method.md.
"""
# Descriptions of the groups of `conf/`, in their order in the help. Other groups follow without a description.
_GROUPS = {
    "scenario": "the sharing mode of the GPU",
    "workload": "the program of the jobs",
    "+experiment": "committed studies",
    "gpu": "the device, or a simulated one",
    "env": "the interpreter of the jobs",
    "window": "when throughput is measured",
    "listeners": "sensors to sample: listeners=[host,nvml]",
    "profiler": "a profiler before each job",
    "exporter": "live metrics of the running group",
    "tracking": "the store of the results",
    "+rehearse": "any study in seconds, with small workloads",
    "+duration": "studies of whole epochs in windows of seconds",
}
_NOT_SHOWN = {"schema"}
_OF_A_SIZE = re.compile(r"^sizes(\.\w+)?(?=\.|$)")  # a workload of a mix, with the same keys


def exit_if_asked(arguments: Sequence[str]) -> None:
    """Print the requested help and exit; return if no help is requested. Words after `--` are ignored."""
    options = list(itertools.takewhile(lambda one: one != "--", arguments))
    if "--help-keys" in options:
        prefix = next((one for one in options[options.index("--help-keys") + 1 :] if not one.startswith("-")), "")
        try:
            text = format_keys(_OF_A_SIZE.sub("workload", prefix))
        except ConfigError as error:
            words.say(f"error: {error}")
            sys.exit(2)
        if text is None:
            command = entry_points.spell("run", "--help-keys")
            words.say(f"error: no key begins with {prefix}; {command} prints all keys")
            sys.exit(2)
    elif {"--help", "-h"} & set(options):
        text = format_overview()
    else:
        return
    sys.stdout.write(text)
    sys.exit(startup.check_output(0))


def format_overview() -> str:
    """Return the text of `--help`: purpose, choices and the most used keys."""
    defaults = set(re.findall(r"^  - (\w+: .*)$", (_CONF / "config.yaml").read_text(encoding="utf-8"), re.MULTILINE))
    folders = [path for folder in config_folders() if folder.is_dir() for path in folder.iterdir() if path.is_dir()]
    groups_there = sorted({path.name for path in folders} - _NOT_SHOWN)
    described_groups = {name.lstrip("+"): name for name in _GROUPS}
    shown = [*_GROUPS, *(name for name in groups_there if name not in described_groups)]
    groups = "\n".join(_group(name, defaults) for name in shown if name.lstrip("+") in groups_there)
    lines = [(entry_points.spell(*words), description) for words, description in _EXAMPLES]
    width = max(len(command) for command, _ in lines)
    examples = "\n".join(f"  {command:<{width}}  {description}" for command, description in lines)
    return f"{_HEAD.format(run=entry_points.spell('run'), examples=examples)}{groups}\n{_KEYS_OF_MANY}"


def format_keys(prefix: str) -> str | None:
    """Return a paragraph for each key of docs/configuration.md that begins with `prefix`; `None` without a match."""
    shown = []
    for section, names, cells in (*_read_rows(_KEYS.read_text(encoding="utf-8")), *_list_own_workloads()):
        keys_found = [name for name in re.findall(r"`([^`]*)`", names) if name == prefix or name.startswith(prefix)]
        if keys_found:
            *kinds, default, meaning = (strip_markdown(cell) for cell in cells)
            head = f"{', '.join(keys_found)}  ({'; '.join(kind for kind in kinds if kind)}; default: {default})"
            shown.append((section, f"{head}\n{_indent(meaning, 6)}"))
    if not shown:
        return None
    parts, last = [], ""
    for section, text in shown:
        parts.append(text if section == last else f"{'' if not last else chr(10)}{section}\n\n{text}")
        last = section
    return "\n".join(parts) + "\n"


def _group(name: str, defaults: set[str]) -> str:
    group = name.lstrip("+")
    marked = [f"{choice}*" if _is_default(group, choice, defaults) else choice for choice in list_choices(group)]
    head, listed = f"  {name:<12} {_GROUPS.get(name, '')}".rstrip(), ", ".join(marked)
    in_one_line = f"{head} ({listed})"
    return in_one_line if len(in_one_line) <= _width() else f"{head}\n{_indent(listed, 15)}"


def _is_default(group: str, choice: str, defaults: set[str]) -> bool:
    default = next((line.partition(": ")[2] for line in defaults if line.startswith(f"{group}: ")), "")
    return choice in re.findall(r"\w+", default)


def _read_rows(text: str) -> Iterator[tuple[str, str, list[str]]]:
    section = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = strip_markdown(line.removeprefix("## "))
        elif line.startswith("| `"):
            first, *cells = (cell.strip() for cell in line.strip().strip("|").split(" | "))
            yield section, first, cells


def _list_own_workloads() -> Iterator[tuple[str, str, list[str]]]:
    from pipeline.plan import option_loader, option_tables  # imported here, because the import is too slow for `--help`

    for folder in config_folders()[1:]:
        for name, kind in option_loader.list_classes([folder], is_strict=True).items():
            if name not in option_loader.KINDS:
                section = f"{name}: {(kind.__mro__[1].__doc__ or '').partition(chr(10))[0]}"
                rows = option_tables.list_rows(kind, is_whole=True)
                settings = option_loader.read_settings(folder, name)
                for key, type_name, default, meaning in rows:
                    option = key.removeprefix("workload.")
                    set_to = [f"{file[option]} in {choice}" for choice, file in settings.items() if option in file]
                    yield section, f"`{key}`", [type_name, ", ".join([default, *set_to]), meaning]


def strip_markdown(cell: str) -> str:
    """Return a Markdown text as plain text, with the pages that its links name."""
    cell = re.sub(r"\[[^]]*\.md\]\(([^)#]*)[^)]*\)", r"docs/\1", cell)
    return re.sub(r"\[([^]]*)\]\(([^)#]*)[^)]*\)", r"\1 (docs/\2)", cell).replace("`", "")


def _indent(text: str, columns: int) -> str:
    return textwrap.fill(text, _width(), initial_indent=" " * columns, subsequent_indent=" " * columns)


def _width() -> int:
    return min(_WIDTH, shutil.get_terminal_size((_WIDTH, 50)).columns)
