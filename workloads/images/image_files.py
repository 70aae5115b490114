"""Image data sets, read from their published formats into arrays of bytes. Does not import torch.

Images are `uint8` arrays of shape [images, channel, row, column]. Labels are `int64` arrays; the first class is 0.
Nothing is downloaded, and reading a data file never executes code in the file.
"""

from __future__ import annotations

import codecs
import logging
import os
import pickle
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from workloads.data.folders import make_once

_log = logging.getLogger(__name__)

Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

_DIGITS_VALIDATION = 297
_CIFAR10_PX = 32
_IMAGENET64_PX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageArrays:
    """Images as bytes [images, channel, row, column], and one label per image."""

    images: Bytes
    labels: Labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The training and validation parts of a data set."""

    train: ImageArrays
    validation: ImageArrays


def read_digits(image_px: int) -> Split:
    """Return scikit-learn's handwritten digits, with three equal channels and pixels repeated up to `image_px`.

    1500 images are for training and 297 for validation; the split is the same for all seeds.

    Source: scikit-learn, `sklearn.datasets.load_digits` (1797 images of 8x8 values from 0 to 16).
    """
    if image_px < 8 or image_px % 8 != 0:
        raise ValueError(
            f"--image-px {image_px} is not a multiple of 8, the width of the images of digits in pixels; use a "
            "multiple of 8"
        )
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    grey = np.round(digits.images[order] * (255 / 16)).astype(np.uint8)
    scaled = grey.repeat(image_px // 8, axis=1).repeat(image_px // 8, axis=2)
    images = np.repeat(scaled[:, None], 3, axis=1)
    labels = digits.target[order].astype(np.int64)
    return Split(
        train=ImageArrays(images=images[:-_DIGITS_VALIDATION], labels=labels[:-_DIGITS_VALIDATION]),
        validation=ImageArrays(images=images[-_DIGITS_VALIDATION:], labels=labels[-_DIGITS_VALIDATION:]),
    )


def read_cifar10(data_root: Path) -> Split:
    """Return CIFAR-10 (Python version), read from the unpacked files in `data_root`.

    Source: https://www.cs.toronto.edu/~kriz/cifar.html, "CIFAR-10 python version".
    """
    folder = data_root / "cifar-10-batches-py"
    names = [f"data_batch_{number}" for number in range(1, 6)]
    layout = f"put data_batch_1 to data_batch_5 and test_batch (CIFAR-10, Python version) into {folder}"
    _require([folder / name for name in (*names, "test_batch")], layout)
    parts = [_read_batch(folder / name, px=_CIFAR10_PX, first_label=0) for name in names]
    train = ImageArrays(
        images=np.concatenate([part.images for part in parts]), labels=np.concatenate([part.labels for part in parts])
    )
    return Split(train=train, validation=_read_batch(folder / "test_batch", px=_CIFAR10_PX, first_label=0))


def read_imagenet64(data_root: Path, cache_root: str | Path | None) -> Split:
    """Return downsampled ImageNet 64x64 as read-only memory maps, which all processes of a machine share.

    The first caller converts the published files, one at a time, while other callers wait. The converted files are
    written to `cache_root`, by default the data set's own folder.

    Source: P. Chrabaszcz et al., "A Downsampled Variant of ImageNet", arXiv:1707.08819; files of image-net.org.
    """
    folder = data_root / "imagenet64"
    converted = Path(cache_root or folder) / "imagenet64-npy"
    if not converted.is_dir():
        train = [folder / f"train_data_batch_{number}" for number in range(1, 11)]
        layout = f"put train_data_batch_1 to train_data_batch_10 and val_data (ImageNet 64x64, Python) into {folder}"
        _require([*train, folder / "val_data"], layout)
        make_once(converted, partial(_convert, splits={"train": train, "validation": [folder / "val_data"]}))
    return Split(train=_open_map(converted, "train"), validation=_open_map(converted, "validation"))


def split_folders(folder: Path) -> tuple[Path, Path]:
    """Return the folders `train` and `val` of a data set; each contains files `CLASS/*`."""
    for name in ("train", "val"):
        if not (folder / name).is_dir():
            raise FileNotFoundError(f"{folder / name} does not exist; put train/CLASS/* and val/CLASS/* into {folder}")
    return folder / "train", folder / "val"


def _open_map(folder: Path, split: str) -> ImageArrays:
    return ImageArrays(
        images=np.load(folder / f"{split}_images.npy", mmap_mode="r"), labels=np.load(folder / f"{split}_labels.npy")
    )


def _convert(folder: Path, splits: dict[str, list[Path]]) -> None:
    for split, sources in splits.items():
        labels = []
        with (folder / f"{split}_images.npy").open("wb") as file:
            _write_header(file, (0, 3, _IMAGENET64_PX, _IMAGENET64_PX))
            for source in sources:
                _log.info("converting %s", source)
                part = _read_batch(source, px=_IMAGENET64_PX, first_label=1)
                file.write(part.images.data)
                labels.append(part.labels)
            all_labels = np.concatenate(labels)
            file.seek(0)
            _write_header(file, (len(all_labels), 3, _IMAGENET64_PX, _IMAGENET64_PX))
            _sync(file)
        with (folder / f"{split}_labels.npy").open("wb") as file:
            np.save(file, all_labels)
            _sync(file)


def _write_header(file: BinaryIO, shape: tuple[int, ...]) -> None:
    """Write the .npy header; its length does not depend on the number of images, so it can be overwritten later."""
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _require(files: list[Path], layout: str) -> None:
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(f"{', '.join(missing)} do not exist; {layout}")


def _read_batch(path: Path, *, px: int, first_label: int) -> ImageArrays:
    """Read one pickled batch: `data`, uint8 [images, 3 * px * px], one colour plane after another, and `labels`."""
    with path.open("rb") as file:
        batch = _ArrayUnpickler(file, encoding="latin1").load()
    try:
        data, labels = np.asarray(batch["data"]), np.asarray(batch["labels"], dtype=np.int64) - first_label
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a batch of images ({error}); replace it by the published file") from error
    if data.dtype != np.uint8 or data.shape != (len(labels), 3 * px * px):
        expected = f"uint8 of shape {(len(labels), 3 * px * px)}"
        raise ValueError(
            f"{path} has {data.dtype} of shape {data.shape} instead of {expected}; replace it by the published file"
        )
    if len(labels) == 0 or labels.min() < 0:
        raise ValueError(f"{path} has no images, or a label below {first_label}; replace it by the published file")
    return ImageArrays(images=np.ascontiguousarray(data).reshape(-1, 3, px, px), labels=labels)


def _list_admitted() -> dict[tuple[str, str], Any]:
    """Return every name that a pickled array may look up, with `numpy.core` and its new name in NumPy 2."""
    rebuild = np.empty(0).__reduce__()[0]
    from_buffer = np.empty(1).__reduce_ex__(5)[0]
    admitted: dict[tuple[str, str], Any] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): codecs.encode,  # pickled bytes of Python 3 at protocol 2 need this name
    }
    for core in ("numpy.core", "numpy._core"):
        admitted[f"{core}.multiarray", "_reconstruct"] = rebuild
        admitted[f"{core}.numeric", "_frombuffer"] = from_buffer
    return admitted


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler for containers, numbers, text and arrays; it refuses all other names, which could run code."""

    _names = _list_admitted()

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._names[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"the file refers to {module}.{name}, which could run code; use the published file"
            ) from None
