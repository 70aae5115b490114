"""Image data sets in arrays, and synthetic data of the same shape.

Batches come from torch's loader, or stay on the device. The loader delivers bytes, which are scaled, flipped and
normalised on the device.
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

from workloads.data.batches import (
    Batch,
    DeviceBatches,
    PooledSamples,
    TrainingData,
    generator,
    mix_seeds,
    require_classes,
)
from workloads.data.loader import Loader
from workloads.images import data_sets
from workloads.images.data_sets import FACTS
from workloads.images.image_files import ImageArrays, read_cifar10, read_digits, read_imagenet64, split_folders
from workloads.images.options import TrainTimm
from workloads.images.vision import import_torchvision

_SYNTHETIC_POOL = 256


def open_disk(options: TrainTimm, seed: int, device: torch.device) -> TrainingData:
    """Open a data set in its published format."""
    train, validation = _read(options)
    return TrainingData(
        train=LoaderBatches(train, options, seed, device, is_training=True),
        validation=LoaderBatches(validation, options, seed, device, is_training=False),
        is_made_up=False,
    )


def open_on_host(options: TrainTimm, seed: int, device: torch.device) -> TrainingData:
    """Create synthetic data for torch's loader, which has as much work as with the real data set."""
    pool = _noise(_SYNTHETIC_POOL, FACTS[options.dataset].native_px or options.image_px, seed)
    samples = PooledSamples(pool, _make_labels(options, count_samples(options), seed))
    train = LoaderBatches(samples, options, seed, device, is_training=True)
    return TrainingData(train=train, validation=None, is_made_up=True)


def open_on_device(options: TrainTimm, seed: int, device: torch.device) -> TrainingData:
    """Create synthetic batches that stay on the device."""
    facts = FACTS[options.dataset]
    mean, std = torch.tensor(facts.mean).view(1, 3, 1, 1), torch.tensor(facts.std).view(1, 3, 1, 1)

    def make(count: int) -> Batch:
        images = (_noise(count, options.image_px, seed) / 255 - mean) / std
        return images.contiguous(memory_format=memory_format(options)), _make_labels(options, count, seed)

    train = DeviceBatches(make, count_samples(options), options.batch_size, device)
    return TrainingData(train=train, validation=None, is_made_up=True)


def count_samples(options: TrainTimm) -> int:
    """Return the number of training samples per epoch of synthetic data."""
    return options.samples or FACTS[options.dataset].train_samples


def memory_format(options: TrainTimm) -> torch.memory_format:
    """Return the memory layout of images."""
    return torch.channels_last if options.channels_last else torch.contiguous_format


class ArrayImages(Dataset[Batch]):
    """Images in an array, in memory or memory-mapped; one indexing operation returns a complete batch."""

    def __init__(self, arrays: ImageArrays, num_classes: int) -> None:
        require_classes(int(arrays.labels.max()) + 1, num_classes)
        self._arrays = arrays

    def __len__(self) -> int:
        return len(self._arrays.labels)

    def __getitems__(self, indices: list[int]) -> Batch:
        images, labels = self._arrays.images[indices], self._arrays.labels[indices]
        return torch.from_numpy(np.asarray(images)), torch.from_numpy(labels)


class LoaderBatches(Loader):
    """Batches of bytes from the host, which are scaled, flipped and normalised on the device."""

    def __init__(
        self, dataset: Dataset[Any], options: TrainTimm, seed: int, device: torch.device, *, is_training: bool
    ) -> None:
        super().__init__(dataset, options, seed, is_training=is_training, pin_memory=device.type == "cuda")
        facts = FACTS[options.dataset]
        self._px, self._format, self._seed, self._device = options.image_px, memory_format(options), seed, device
        self._mean = torch.tensor(facts.mean, device=device).mul_(255).view(1, 3, 1, 1)
        self._std = torch.tensor(facts.std, device=device).mul_(255).view(1, 3, 1, 1)
        self._flip = torch.Generator(device) if is_training and facts.flips else None

    def epoch(self, number: int) -> Iterator[Batch]:
        self.name_epoch(number)
        if self._flip is not None:
            self._flip.manual_seed(mix_seeds(self._seed, 3, number))
        for images, labels in self:
            yield self._prepare(images), labels.to(self._device, non_blocking=True)

    def _prepare(self, images: Tensor) -> Tensor:
        images = images.to(self._device, non_blocking=True)
        if images.shape[-1] != self._px:
            images = interpolate(images, size=(self._px, self._px), mode="nearest")
        images = images.contiguous(memory_format=self._format)
        if self._flip is not None:
            flipped = torch.rand(len(images), 1, 1, 1, generator=self._flip, device=self._device) < 0.5
            images = torch.where(flipped, images.flip(3), images)
        return images.float().sub_(self._mean).div_(self._std)


def _noise(count: int, px: int, seed: int) -> Tensor:
    return torch.randint(256, (count, 3, px, px), dtype=torch.uint8, generator=generator(seed, 0))


def _make_labels(options: TrainTimm, count: int, seed: int) -> Tensor:
    return torch.randint(options.num_classes, (count,), generator=generator(seed, 1))


def _read(options: TrainTimm) -> tuple[Dataset[Any], Dataset[Any]]:
    if options.dataset is data_sets.Dataset.digits:
        split = read_digits(options.image_px)
    elif options.dataset is data_sets.Dataset.imagenet:
        return _open_image_folders(options.require_root() / "imagenet", options)
    elif options.dataset is data_sets.Dataset.cifar10:
        split = read_cifar10(options.require_root())
    else:
        split = read_imagenet64(options.require_root(), options.cache_root)
    return ArrayImages(split.train, options.num_classes), ArrayImages(split.validation, options.num_classes)


def _open_image_folders(folder: Path, options: TrainTimm) -> tuple[Dataset[Any], Dataset[Any]]:
    import_torchvision()
    from torchvision.datasets import ImageFolder

    scale = partial(_scale_to_square, px=options.image_px)
    train, validation = (ImageFolder(half, scale) for half in split_folders(folder))
    if train.classes != validation.classes:
        raise ValueError(
            f"{folder}/train and {folder}/val have different classes; create the same class folders in both"
        )
    require_classes(len(train.classes), options.num_classes)
    return train, validation


def _scale_to_square(image: Any, px: int) -> Tensor:
    """Scale a PIL image to px * px with nearest-pixel sampling; return bytes [3, px, px]."""
    nearest = 0  # PIL.Image.Resampling.NEAREST
    pixels = np.array(image.convert("RGB").resize((px, px), nearest))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
