"""Synthetic image files with as many pixels and bytes as the files of a real data set. Does not import torch.

A limited number of files is enough, because the loader reads them repeatedly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workloads.data.folders import cache_folder, make_once
from workloads.images.data_sets import Dataset

if TYPE_CHECKING:
    from PIL import Image

# This version is part of the folder's name; increase it when the content of the files changes.
_VERSION = 1
_BLOT_PX = 8
_NOISE_PX = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The properties of the files of one data set.

    Attributes:
        sizes: widths and heights, which the files have in turn.
        suffix, options: suffix of the file format, and options for saving it.
        noise: standard deviation of the noise added to each pixel; it determines the file size.
    """

    count: int
    classes: int
    sizes: tuple[tuple[int, int], ...]
    suffix: str
    options: dict[str, Any]
    noise: float


# A file has about 2.3 kB for CIFAR-10 (PNG), 9 kB for ImageNet64 (PNG) and 110 kB for ImageNet (JPEG).
KINDS = {
    Dataset.cifar10: Kind(count=4000, classes=10, sizes=((32, 32),), suffix=".png", options={}, noise=8),
    Dataset.imagenet64: Kind(count=4000, classes=1000, sizes=((64, 64),), suffix=".png", options={}, noise=8),
    Dataset.imagenet: Kind(
        count=1000,
        classes=1000,
        sizes=((500, 375), (500, 333), (375, 500)),
        suffix=".JPEG",
        options={"quality": 90},
        noise=18,
    ),
}


def find_or_make(dataset: Dataset, cache_root: str | Path | None) -> Path:
    """Return a folder of synthetic files `CLASS/*` that resemble a data set's files; create it if it does not exist.

    By default, the folder is in the user's cache.
    """
    kind = KINDS[dataset]
    root = cache_folder(cache_root, "synthetic-files")
    return make_once(root / f"{dataset.name}-{kind.count}-v{_VERSION}", lambda partial: _make(partial, kind))


def _make(folder: Path, kind: Kind) -> None:
    for label in range(kind.classes):
        (folder / f"{label:04}").mkdir()
    for number, image in enumerate(_paint(kind)):
        image.save(folder / f"{number % kind.classes:04}" / f"{number:05}{kind.suffix}", **kind.options)


def _paint(kind: Kind) -> Iterator[Image.Image]:
    """Yield images of coloured blots with noise, identical on every machine."""
    from PIL import Image

    random = np.random.default_rng(0)
    # Each image uses another portion of one noise field, because new noise per image would take most of the time.
    field = np.rint(random.normal(0, kind.noise, (2 * _NOISE_PX, 2 * _NOISE_PX, 3))).astype(np.int16)
    for number in range(kind.count):
        width, height = kind.sizes[number % len(kind.sizes)]
        coarse = random.integers(256, size=(height // _BLOT_PX, width // _BLOT_PX, 3), dtype=np.uint8)
        blots = Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR)
        y, x = random.integers(_NOISE_PX, size=2)
        pixels: npt.NDArray[np.int16] = np.asarray(blots) + field[y : y + height, x : x + width]
        yield Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
