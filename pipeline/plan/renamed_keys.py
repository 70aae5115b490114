"""Renamed keys of the configuration: refused with the new name, translated in recorded studies."""

from __future__ import annotations

from typing import Any

from pipeline.base.domain.stored_names import KEYS, find_new_key

_PLACES = {
    "experiment=neighbour_gpus": "experiment=other_gpus",
    **dict.fromkeys(("hydra.sweeper.blocks", "hydra.sweeper.params"), "blocks: [...] at the top level"),
}


def explain_old_key(key: str) -> str | None:
    """Explain what to write instead of an old key; `None` if the key was not renamed."""
    remedy = _PLACES.get(key) or find_new_key(key)
    return f"{key} was renamed; write {remedy}" if remedy else None


def rename_keys(config: dict[str, Any]) -> None:
    """Replace old keys in a recorded configuration by the current keys."""
    sizes = config.get("sizes")
    for old, new in KEYS.items():
        parent, _, name = old.rpartition(".")
        nodes = [config.get(parent) if parent else config]
        if parent == "workload" and isinstance(sizes, dict):
            nodes += sizes.values()
        for node in nodes:
            if isinstance(node, dict) and name in node:
                node[new.rpartition(".")[2]] = node.pop(name)
