"""Conversion of the groups of a radT table to an experiment file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.base.domain.workload import escape_placeholders
from pipeline.base.system import entry_points, override_values
from pipeline.base.system.words import format_count
from pipeline.importer import experiment_file, radt_table
from pipeline.importer.experiment_file import Imported, Program, assign_name, override_value
from pipeline.importer.radt_table import LISTENERS, Refused, Row, RowGroup

_EPOCHS = 5  # radT's default
# Workloads of this project for the models and data sets of the published tables.
_EFFICIENTNET = {
    "cifar10": "robroek_efficientnetv2_s_small",
    "imagenet64": "robroek_efficientnetv2_s_medium",
    "imagenet": "robroek_efficientnetv2_s_large",
}
_MODELS = {
    "resnet26": {"cifar10": "robroek_small"},
    "resnet50": {"imagenet64": "robroek_medium"},
    "resnet152": {"imagenet": "robroek_large"},
    "efficientnetv2_s": _EFFICIENTNET,
    "efficientnet_v2_s": _EFFICIENTNET,
    # The model does not accept images of 32 or 64 px, so the images of cifar10 and imagenet64 are scaled up.
    "cait_xxs24_224": {
        "cifar10": "cait_xxs24_cifar10",
        "imagenet64": "cait_xxs24_imagenet64",
        "imagenet": "robroek_cait_large",
    },
}
_DATASETS = {
    "cifar10": "cifar10",
    "imagenet64": "imagenet64",
    "imagenet64_images": "imagenet64",
    "imagenet": "imagenet",
}
_KNOWN_SCRIPT = ("timm", "train.py")


def choose_program(row: Row) -> Program:
    """Return the workload of this project for a row, or else a workload that runs the row's script.

    Raises:
        ValueError: the row names an unknown model or data set, and no script.
    """
    options = _options(row)
    if options is not None:
        model, data = options.pop("model", ""), Path(options.pop("data-dir", "")).name
        workload = _MODELS.get(model, {}).get(_DATASETS.get(data, ""))
        batch_size = options.pop("batch-size", "128")
        if options.get("warmup-epochs") == "0":  # equals the default of these workloads
            del options["warmup-epochs"]
        if workload is not None and not options and batch_size.isdecimal():
            return Program(workload=workload, values=(("batch_size", int(batch_size)),))
    if not row.file:
        raise ValueError(
            f"Model {row.model} on Data {row.data} with Params {' '.join(row.args)} is an unknown combination; name a "
            "script in the column File"
        )
    name = re.sub(r"\W", "_", Path(row.file).stem)
    arguments = (("args", tuple(map(escape_placeholders, row.args))),) if row.args else ()
    return Program(workload="script", values=(("name", name), ("script", row.file), *arguments))


def _is_known(row: Row) -> bool:
    try:
        return choose_program(row).workload != "script"
    except ValueError:
        return False


def _options(row: Row) -> dict[str, str] | None:
    """Return the options of radT's training program by name; `None` for other programs, or for other arguments."""
    if row.file and Path(row.file).parts[-2:] != _KNOWN_SCRIPT:
        return None
    words = row.args
    if len(words) % 2 or not all(word.startswith("--") for word in words[::2]):
        return None
    options = {key[2:]: value for key, value in zip(words[::2], words[1::2], strict=True)}
    return options if row.file else {"model": row.model, "data-dir": row.data} | options


def find_slices(groups: Sequence[RowGroup]) -> dict[str, str]:
    """Map plain profiles to their slices: `1g.5gb` to `1g`, if no other profile of the table has one slice."""
    plain = {profile for group in groups for profile in group.profiles if re.fullmatch(r"\d+g\.\d+gb", profile)}
    number = Counter(profile.partition(".")[0] for profile in plain)
    return {profile: slices for profile in plain if number[slices := profile.partition(".")[0]] == 1}


def make_block(
    group: RowGroup, sizes: dict[Program, str], profiles: Mapping[str, str], device: str | None
) -> dict[str, Any]:
    """Return a group as an entry of `blocks`, and add the programs of a mix to `sizes`."""
    programs = [choose_program(row) for row in group.rows]
    block: dict[str, Any] = {"scenario": group.scenario}
    # An override would resolve an interpolation such as `${x}`; in `sizes` it stays text.
    if len(set(programs)) == 1 and "${" not in str(programs[0]):
        block |= {"workload": programs[0].workload, "degree": len(programs)}
        block |= {f"workload.{key}": override_value(value) for key, value in programs[0].values}
    else:
        block["mix"] = override_value(tuple(assign_name(program, sizes) for program in programs))
    if device is not None:
        block["gpu.device"] = override_values.format_override(device)  # gpu=CHOICE on the command line removes this key
    if group.profiles:
        block["scenario.profiles"] = override_value(tuple(profiles.get(profile, profile) for profile in group.profiles))
    return block


def format_experiment(
    groups: Sequence[RowGroup], name: str, source: str, profiles: Mapping[str, str]
) -> tuple[str, list[Refused]]:
    """Return the text of the experiment file, and the rows that cannot be imported."""
    sizes: dict[Program, str] = {}
    blocks, refused = [], []
    device = radt_table.find_kept_device(groups)
    for group in groups:
        try:
            blocks.append(make_block(group, sizes, profiles, device))
        except ValueError as error:
            refused += [Refused(line=row.line, reason=str(error)) for row in group.rows]
    listener_words = {word for group in groups for row in group.rows for word in row.listeners}
    listeners = sorted({LISTENERS[word] for word in listener_words if word in LISTENERS} | {"host"})
    origin = f"imported from {source} by `{entry_points.spell('importer')}`"
    text = experiment_file.format_file(
        blocks,
        sizes,
        head=f"{format_count(len(blocks), 'group')}, {origin}.",
        defaults=[{"override /window": "work"}, {"override /listeners": listeners}],
        settings={
            "window": {"epochs": _EPOCHS},
            "data": {"source": "files"},  # timm's train.py reads image files
            "tracking": {"experiment": name},
        },
    )
    return text, refused


def read(path: Path, name: str, *, has_slices: bool) -> Imported:
    """Import a table as an experiment with this name; `has_slices` writes MIG profiles as slices if possible.

    Raises:
        ConfigError: the file cannot be read, or is not a radT table.
    """
    groups, left_out = radt_table.read(path)
    profiles = find_slices(groups) if has_slices else {}
    text, unknown = format_experiment(groups, name, path.name, profiles)
    refused = sorted([*left_out, *unknown], key=lambda row: row.line)
    notes = list(radt_table.describe_groups(groups, [row for group in groups for row in group.rows if _is_known(row)]))
    table_profiles = {profile for group in groups for profile in group.profiles}
    if has_slices and (full := sorted(table_profiles - profiles.keys())):
        notes.append(f"{', '.join(full)}: full names kept despite --slices, because their slices are ambiguous")
    return Imported(
        text=text,
        num_read=sum(len(group.rows) for group in groups) + len(left_out),
        unit="row",
        refused=[f"line {row.line}: {row.reason}" for row in refused],
        notes=notes,
    )
