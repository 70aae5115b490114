"""Folders of image files, decoded and augmented as timm's `train.py` does by default.

The components are those of timm: RandomResizedCrop with random bilinear or bicubic interpolation, flips, colour jitter
of 0.4, unpinned memory, and timm's prefetcher, which normalises on the device. Validation images are scaled and
centre-cropped. Only the random numbers differ from timm's: they depend on seed, epoch and image, not on the worker.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, get_worker_info

from workloads.data.batches import Batch, TrainingData, require_classes
from workloads.data.loader import Loader
from workloads.images import synthetic_files
from workloads.images.array_data import count_samples, memory_format
from workloads.images.data_sets import FACTS
from workloads.images.image_files import split_folders
from workloads.images.options import TrainTimm
from workloads.images.vision import import_torchvision


def open_files(options: TrainTimm, seed: int, device: torch.device) -> TrainingData:
    """Open the folder of a data set below `data_root`, with `train/CLASS/*` and `val/CLASS/*`."""
    train, validation = split_folders(options.require_root() / options.dataset.name)
    return _open(options, seed, device, train, validation, samples=None)


def open_synthetic(options: TrainTimm, seed: int, device: torch.device) -> TrainingData:
    """Open a folder of synthetic files, which is created if necessary; training and validation repeat the files."""
    folder = synthetic_files.find_or_make(options.dataset, options.cache_root)
    return _open(options, seed, device, folder, folder, samples=count_samples(options))


class FolderImages(Dataset[tuple[Any, int]]):
    """The images of a folder, repeated until there are `samples`; each repeat is augmented anew in every epoch.

    The index is `epoch * samples + image`, as from a numbered `EpochOrder`.
    """

    def __init__(self, folder: Path, transform: Any, samples: int | None, seed: int) -> None:
        from timm.data import ImageDataset

        self._images = ImageDataset(str(folder), transform=transform)
        self._samples, self._seed = samples or len(self._images), seed
        self.classes = sorted(self._images.reader.class_to_idx)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, number: int) -> tuple[Any, int]:
        with torch.random.fork_rng(devices=[]) if get_worker_info() is None else nullcontext():
            random.seed(f"{self._seed} {number}")
            torch.default_generator.manual_seed(random.getrandbits(63))
            image, label = self._images[number % self._samples % len(self._images)]
        return image, label


class FolderBatches(Loader):
    """Batches built by timm's collation and prefetcher."""

    def __init__(
        self, images: FolderImages, options: TrainTimm, seed: int, device: torch.device, *, is_training: bool
    ) -> None:
        from timm.data.loader import PrefetchLoader, fast_collate

        super().__init__(
            images,
            options,
            seed,
            is_training=is_training,
            pin_memory=False,
            collate=fast_collate,
            is_numbered=True,
        )
        self._format = memory_format(options)
        self._prefetched = PrefetchLoader(self, device=device)

    def epoch(self, number: int) -> Iterator[Batch]:
        self.name_epoch(number)
        for images, labels in self._prefetched:
            if images.is_cuda:
                # The prefetcher allocates batches on its own stream, and when they are freed, a step that runs ahead
                # may still need them.
                for tensor in (images, labels):
                    tensor.record_stream(torch.cuda.current_stream())
            yield images.contiguous(memory_format=self._format), labels


def _open(
    options: TrainTimm, seed: int, device: torch.device, train: Path, validation: Path, *, samples: int | None
) -> TrainingData:
    import_torchvision()
    from timm.data import create_transform

    facts = FACTS[options.dataset]
    augment = create_transform(
        options.image_px, is_training=True, interpolation="random", color_jitter=0.4, use_prefetcher=True
    )
    plain = create_transform(options.image_px, interpolation="bicubic", use_prefetcher=True)
    # Synthetic data keeps the ratio of training to validation images.
    ratio = facts.validation_samples / facts.train_samples
    training = FolderImages(train, augment, samples, seed)
    validating = FolderImages(validation, plain, samples and max(1, round(samples * ratio)), seed)
    if training.classes != validating.classes:
        raise ValueError(f"{train} and {validation} have different classes; create the same class folders in both")
    require_classes(len(training.classes), options.num_classes)
    return TrainingData(
        train=FolderBatches(training, options, seed, device, is_training=True),
        validation=FolderBatches(validating, options, seed, device, is_training=False),
        is_made_up=samples is not None,
    )
