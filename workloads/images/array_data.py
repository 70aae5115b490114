"""Data sets that are read into arrays, and made-up ones of the same shape, through torch's loader.

The loader handles bytes; they are scaled, flipped and normalised on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import Dataset

from workloads.data.batches import Batch, TrainingData, generator, mixed
from workloads.data.loader import EpochOrder, Loader
from workloads.images.image_files import ImageArrays, read_cifar10, read_digits, read_imagenet64, split_folders
from workloads.images.request import DataRequest, noise
from workloads.images.vision import import_torchvision

_SYNTHETIC_POOL = 256


def open_disk(request: DataRequest, device: torch.device) -> TrainingData:
    """Open a data set in the format in which it is published.

    Raises:
        FileNotFoundError: a file or folder of the data set is missing.
        ValueError: the data set has other image sizes or classes, or not one full batch.
    """
    request.require_native_px()
    train, validation = _read(request)
    return TrainingData(
        train=LoaderBatches(train, request, device, training=True),
        validation=LoaderBatches(validation, request, device, training=False),
        is_made_up=False,
    )


def open_synthetic(request: DataRequest, device: torch.device) -> TrainingData:
    """Make up what the loader of the real data set handles.

    Raises:
        ValueError: not one full batch.
    """
    request.require_native_px()
    pool = noise(request, _SYNTHETIC_POOL, request.facts.native_px or request.image_px)
    synthetic = SyntheticImages(pool, request)
    return TrainingData(
        train=LoaderBatches(synthetic, request, device, training=True), validation=None, is_made_up=True
    )


class ArrayImages(Dataset[Batch]):
    """Images in an array, in memory or mapped; a whole batch is one indexing operation."""

    def __init__(self, arrays: ImageArrays, request: DataRequest) -> None:
        request.require_classes(int(arrays.labels.max()) + 1)
        self._arrays = arrays

    def __len__(self) -> int:
        return len(self._arrays.labels)

    def __getitems__(self, indices: list[int]) -> Batch:
        images, labels = self._arrays.images[indices], self._arrays.labels[indices]
        return torch.from_numpy(np.asarray(images)), torch.from_numpy(labels)


class SyntheticImages(Dataset[Batch]):
    """Images from a small pool, as many as asked for: the loader's work without a disk."""

    def __init__(self, pool: Tensor, request: DataRequest) -> None:
        self._pool = pool
        samples = request.samples or request.facts.train_samples
        self._labels = torch.randint(request.num_classes, (samples,), generator=generator(request.seed, 1))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitems__(self, indices: list[int]) -> Batch:
        wanted = torch.tensor(indices)
        return self._pool[wanted % len(self._pool)], self._labels[wanted]


class LoaderBatches:
    """Bytes from the host, scaled, flipped and normalised on the device."""

    def __init__(self, dataset: Dataset[Any], request: DataRequest, device: torch.device, *, training: bool) -> None:
        order = EpochOrder(len(dataset), request.seed) if training else None  # type: ignore[arg-type]
        # A dataset with `__getitems__` returns whole batches: nothing is left to collate.
        collate = (lambda batch: batch) if hasattr(dataset, "__getitems__") else None
        self._loader = Loader(dataset, request, order, collate, pin_memory=device.type == "cuda")
        if training:
            self._loader.begin()
        self.num_batches = len(self._loader)
        facts = request.facts
        self._request, self._device = request, device
        self._mean = torch.tensor(facts.mean, device=device).mul_(255).view(1, 3, 1, 1)
        self._std = torch.tensor(facts.std, device=device).mul_(255).view(1, 3, 1, 1)
        self._flip = torch.Generator(device) if training and facts.flips else None

    def epoch(self, number: int) -> Iterator[Batch]:
        self._loader.name_epoch(number)
        if self._flip is not None:
            self._flip.manual_seed(mixed(self._request.seed, 3, number))
        for images, labels in self._loader:
            yield self._prepare(images), labels.to(self._device, non_blocking=True)

    def close(self) -> None:
        self._loader.close()

    def _prepare(self, images: Tensor) -> Tensor:
        images = images.to(self._device, non_blocking=True)
        px = self._request.image_px
        if images.shape[-1] != px:
            images = interpolate(images, size=(px, px), mode="nearest")
        images = images.contiguous(memory_format=self._request.memory_format)
        if self._flip is not None:
            flipped = torch.rand(len(images), 1, 1, 1, generator=self._flip, device=self._device) < 0.5
            images = torch.where(flipped, images.flip(3), images)
        return images.float().sub_(self._mean).div_(self._std)


def _read(request: DataRequest) -> tuple[Dataset[Any], Dataset[Any]]:
    if request.dataset == "digits":
        split = read_digits(request.image_px)
    elif request.data_root is None:
        raise ValueError(f"--data-root must name the folder that holds {request.dataset}")
    elif request.dataset == "imagenet":
        return _open_image_folders(request.data_root / "imagenet", request)
    elif request.dataset == "cifar10":
        split = read_cifar10(request.data_root)
    else:
        split = read_imagenet64(request.data_root, request.cache_root)
    return ArrayImages(split.train, request), ArrayImages(split.validation, request)


def _open_image_folders(folder: Path, request: DataRequest) -> tuple[Dataset[Any], Dataset[Any]]:
    import_torchvision()
    from torchvision.datasets import ImageFolder

    scaled = partial(_to_square, px=request.image_px)
    train, validation = (ImageFolder(split, scaled) for split in split_folders(folder))
    if train.classes != validation.classes:
        raise ValueError(f"{folder}: train and val hold different classes")
    request.require_classes(len(train.classes))
    return train, validation


def _to_square(image: Any, px: int) -> Tensor:
    """Scale an image of PIL to px * px by the nearest pixel; bytes [3, px, px]."""
    nearest = 0  # PIL.Image.Resampling.NEAREST
    pixels = np.array(image.convert("RGB").resize((px, px), nearest))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
