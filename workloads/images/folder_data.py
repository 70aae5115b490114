"""Folders of image files, decoded and augmented as timm's `train.py` does by default.

The parts are timm's: RandomResizedCrop with bilinear or bicubic interpolation at random, flips, colour jitter of 0.4,
normalisation on the device by its prefetcher, memory that is not pinned. For validation, images are scaled and cut in
the middle. Only the random numbers are ours: they depend on seed, epoch and image, not on the worker.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, get_worker_info

from workloads.data.batches import Batch, TrainingData
from workloads.data.loader import EpochOrder, Loader
from workloads.images import synthetic_files
from workloads.images.image_files import split_folders
from workloads.images.request import DataRequest
from workloads.images.vision import import_torchvision


def open_files(request: DataRequest, device: torch.device) -> TrainingData:
    """Open the folder of a data set below `data_root`, with `train/CLASS/*` and `val/CLASS/*`.

    Raises:
        FileNotFoundError: a folder is missing.
        ValueError: the data set has other classes, or not one full batch.
    """
    if request.data_root is None:
        raise ValueError(f"--data-root must name the folder that holds {request.dataset}")
    train, validation = split_folders(request.data_root / request.dataset)
    return _open(request, device, train, validation)


def open_synthetic(request: DataRequest, device: torch.device) -> TrainingData:
    """Open a folder of made-up files, made now if it is not there; they train and validate, again and again."""
    folder = synthetic_files.folder_of(request.dataset, request.cache_root)
    return _open(request, device, folder, folder, is_made_up=True)


class FolderImages(Dataset[tuple[Any, int]]):
    """The images of a folder, as many as asked for; each is drawn at random anew in every epoch.

    It is asked for `epoch * samples + image`, as a numbered `EpochOrder` says it.
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


class FolderBatches:
    """Batches through timm's collation and prefetcher."""

    def __init__(self, images: FolderImages, request: DataRequest, device: torch.device, *, training: bool) -> None:
        from timm.data.loader import PrefetchLoader, fast_collate

        order = EpochOrder(len(images), request.seed, numbered=True) if training else None
        self._loader = Loader(images, request, order, fast_collate, pin_memory=False)
        if training:
            self._loader.begin()
        self._format = request.memory_format
        self.num_batches = len(self._loader)
        self._batches = PrefetchLoader(self._loader, device=device)

    def epoch(self, number: int) -> Iterator[Batch]:
        self._loader.name_epoch(number)
        for images, labels in self._batches:
            if images.is_cuda:
                # The prefetcher has them from a stream of its own, and a step that runs ahead still needs them when
                # they are given back.
                for tensor in (images, labels):
                    tensor.record_stream(torch.cuda.current_stream())
            yield images.contiguous(memory_format=self._format), labels

    def close(self) -> None:
        self._loader.close()


def _open(
    request: DataRequest, device: torch.device, train: Path, validation: Path, *, is_made_up: bool = False
) -> TrainingData:
    import_torchvision()
    from timm.data import create_transform

    facts, samples = request.facts, None
    if is_made_up:
        samples = request.samples or facts.train_samples
    augmented = create_transform(
        request.image_px, is_training=True, interpolation="random", color_jitter=0.4, use_prefetcher=True
    )
    plain = create_transform(request.image_px, interpolation="bicubic", use_prefetcher=True)
    training = FolderImages(train, augmented, samples, request.seed)
    # Made-up data keeps the ratio of the two halves.
    left = None if samples is None else max(1, round(samples * facts.validation_samples / facts.train_samples))
    validating = FolderImages(validation, plain, left, request.seed)
    if training.classes != validating.classes:
        raise ValueError(f"{train} and {validation} hold different classes")
    request.require_classes(len(training.classes))
    return TrainingData(
        train=FolderBatches(training, request, device, training=True),
        validation=FolderBatches(validating, request, device, training=False),
        is_made_up=is_made_up,
    )
