"""Texts and their classes, in their published form. Does not import torch; nothing is downloaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

Text = tuple[str, int]
"""A text and its class number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """The texts of a data set.

    Attributes:
        classes: names of the classes, in order of class number.
        validation: validation texts; `None` if the data set has none.
        are_long: whether a text is split into many samples.
    """

    classes: tuple[str, ...]
    train: tuple[Text, ...]
    validation: tuple[Text, ...] | None
    are_long: bool


class LanguageReference:
    """Python's language reference, whose topics are the classes: all topics, or the `num_topics` longest topics.

    The digest depends on the texts.

    Raises:
        ValueError: there are fewer topics than requested.
    """

    def __init__(self, num_topics: int | None) -> None:
        from pydoc_data.topics import topics

        names = sorted(topics, key=lambda name: (-len(topics[name]), name))[:num_topics]
        if num_topics is not None and len(names) < num_topics:
            raise ValueError(
                f"--num-classes {num_topics} is more than the {len(names)} topics of pydoc; use {len(names)} or less"
            )
        self._classes = tuple(names)
        self._texts = tuple((topics[name], number) for number, name in enumerate(names))
        self.digest = _digest(self._texts)

    def read(self) -> Documents:
        return Documents(classes=self._classes, train=self._texts, validation=None, are_long=True)


class TextFolder:
    """A folder with one folder of text files per class, or with two such folders, `train` and `val`.

    The digest depends on paths, sizes and modification times of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._halves = list_halves(folder)
        files = [path for half in self._halves for paths in half.values() for path in paths]
        self.digest = _digest([(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files])

    def read(self) -> Documents:
        halves = [
            tuple(
                (path.read_text("utf-8", "replace"), label)
                for label, paths in enumerate(half.values())
                for path in paths
            )
            for half in self._halves
        ]
        validation = halves[1] if len(halves) == 2 else None
        return Documents(classes=tuple(self._halves[0]), train=halves[0], validation=validation, are_long=False)


Source = LanguageReference | TextFolder


def list_halves(folder: Path) -> list[dict[str, list[Path]]]:
    """Return the text files of each class in a folder or, if they exist, in its folders `train` and `val`.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError: the folder has fewer than two classes, or `train` and `val` have different classes.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} does not exist; create it, with a folder of text files for each class")
    halves = [folder / "train", folder / "val"]
    files = [_list_classes(half) for half in (halves if all(half.is_dir() for half in halves) else [folder])]
    if len(files[0]) < 2:
        raise ValueError(f"{folder} has {len(files[0])} folders of text files; add one for each class, at least two")
    if files[0].keys() != files[-1].keys():
        raise ValueError(
            f"{folder}/train and {folder}/val have different classes; create the same class folders in both"
        )
    return files


def _list_classes(folder: Path) -> dict[str, list[Path]]:
    classes = {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and path.name[0] not in "._"}
    files = {
        name: sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
        for name, folder in classes.items()
    }
    return {name: paths for name, paths in files.items() if paths}


def _digest(content: object) -> str:
    return sha256(json.dumps(content).encode()).hexdigest()
