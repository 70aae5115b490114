"""Training data for `train_timm`: from data set to batches on the device.

Whatever the source, a batch is `(images, labels)`: normalised float32 [batch, 3, px, px] and int64 [batch], both on
the device. Order and augmentation of an epoch depend on the seed and the number of the epoch alone, so an epoch can be
begun, left and begun again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset, Sampler

from workloads.images.image_files import ImageArrays, read_cifar10, read_digits, read_imagenet64
from workloads.images.vision import import_torchvision

Batch = tuple[Tensor, Tensor]

_SYNTHETIC_POOL = 256
_DEVICE_BATCHES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a data set without reading it.

    Attributes:
        native_px: the size of its images, which are scaled up on the device; `None` where they are scaled when read.
        mean, std: by channel, of values from 0 to 1.
        flips: a mirrored image is still of its class.
    """

    native_px: int | None
    train_samples: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    flips: bool


# Means and deviations. Source for ImageNet: torchvision's reference weights; for CIFAR-10: of its training images.
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FACTS = {
    "digits": Facts(native_px=None, train_samples=1500, mean=(0.5,) * 3, std=(0.5,) * 3, flips=False),
    "cifar10": Facts(
        native_px=32, train_samples=50_000, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616), flips=True
    ),
    "imagenet64": Facts(native_px=64, train_samples=1_281_167, mean=_IMAGENET_MEAN, std=_IMAGENET_STD, flips=True),
    "imagenet": Facts(native_px=None, train_samples=1_281_167, mean=_IMAGENET_MEAN, std=_IMAGENET_STD, flips=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRequest:
    """Which data, and how it is delivered. The fields are `train_timm`'s flags of the same names."""

    dataset: str
    source: str
    data_root: Path | None
    cache_root: Path | None
    image_px: int
    num_classes: int
    samples: int | None
    batch_size: int
    loader_workers: int
    channels_last: bool
    seed: int


class Batches(Protocol):
    """Batches of one split, epoch after epoch."""

    num_batches: int

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of one epoch, the same ones each time it is asked for."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """Batches to train with, all full, and every image to validate with, or `None` where there is nothing to learn."""

    train: Batches
    validation: Batches | None


def open_data(request: DataRequest, device: torch.device) -> TrainingData:
    """Open the data that was asked for.

    Raises:
        FileNotFoundError: a file or folder of the data set is missing.
        ValueError: the data set has other image sizes or classes, or not one full batch.
    """
    facts = FACTS[request.dataset]
    if facts.native_px is not None and facts.native_px > request.image_px:
        raise ValueError(f"{request.dataset} has {facts.native_px} px: --image-px cannot be {request.image_px}, less")
    if request.source == "synthetic_device":
        return TrainingData(train=DeviceBatches(request, device), validation=None)
    if request.source == "synthetic_host":
        pool = _synthetic_images(request, _SYNTHETIC_POOL, facts.native_px)  # what the loader of the real one handles
        synthetic = SyntheticImages(pool, request.samples or facts.train_samples, request.num_classes, request.seed)
        return TrainingData(train=LoaderBatches(synthetic, request, device, training=True), validation=None)
    train, validation = _open_disk(request)
    return TrainingData(
        train=LoaderBatches(train, request, device, training=True),
        validation=LoaderBatches(validation, request, device, training=False),
    )


class ArrayImages(Dataset[Batch]):
    """Images in an array, in memory or mapped; a whole batch is one indexing operation."""

    def __init__(self, arrays: ImageArrays, num_classes: int) -> None:
        _require_classes(int(arrays.labels.max()) + 1, num_classes)
        self._arrays = arrays

    def __len__(self) -> int:
        return len(self._arrays.labels)

    def __getitems__(self, indices: list[int]) -> Batch:
        images, labels = self._arrays.images[indices], self._arrays.labels[indices]
        return torch.from_numpy(np.asarray(images)), torch.from_numpy(labels)


class SyntheticImages(Dataset[Batch]):
    """Images from a small pool, as many as asked for: the loader's work without a disk."""

    def __init__(self, pool: Tensor, samples: int, num_classes: int, seed: int) -> None:
        self._pool = pool
        self._labels = torch.randint(num_classes, (samples,), generator=_generator(seed, 1))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitems__(self, indices: list[int]) -> Batch:
        wanted = torch.tensor(indices)
        return self._pool[wanted % len(self._pool)], self._labels[wanted]


class EpochOrder(Sampler[int]):
    """A random order for each epoch; the loader's own would depend on whether its processes ran an epoch before."""

    def __init__(self, num_images: int, seed: int) -> None:
        self._num_images, self._seed = num_images, seed
        self.epoch = 0

    def __len__(self) -> int:
        return self._num_images

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self._num_images, generator=_generator(self._seed, 2, self.epoch))
        return iter(order.tolist())


class LoaderBatches:
    """Batches through torch's loader: bytes from the host, scaled, flipped and normalised on the device."""

    def __init__(self, dataset: Dataset[Any], request: DataRequest, device: torch.device, *, training: bool) -> None:
        facts = FACTS[request.dataset]
        self._seed, self._device, self._px = request.seed, device, request.image_px
        self._format = torch.channels_last if request.channels_last else torch.contiguous_format
        self._mean = torch.tensor(facts.mean, device=device).mul_(255).view(1, 3, 1, 1)
        self._std = torch.tensor(facts.std, device=device).mul_(255).view(1, 3, 1, 1)
        self._flip = torch.Generator(device) if training and facts.flips else None
        self._order = EpochOrder(len(dataset), request.seed) if training else None  # type: ignore[arg-type]
        workers = request.loader_workers
        self._loader = DataLoader(
            dataset,
            batch_size=request.batch_size,
            sampler=self._order,
            drop_last=training,
            num_workers=workers,
            pin_memory=device.type == "cuda",
            persistent_workers=training and workers > 0,
            generator=_generator(request.seed, 4),  # else it would draw from torch's own, which models draw from
            # A dataset with `__getitems__` returns whole batches: nothing is left to collate.
            collate_fn=(lambda batch: batch) if hasattr(dataset, "__getitems__") else None,
            # Forked workers share the images; where Python starts them afresh, each would get a copy of a mapped array.
            multiprocessing_context="fork" if workers > 0 else None,
        )
        self.num_batches = len(self._loader)
        if self.num_batches == 0:
            raise ValueError(f"{request.dataset} holds less than one batch of {request.batch_size} images")

    def epoch(self, number: int) -> Iterator[Batch]:
        if self._order is not None:
            self._order.epoch = number
        if self._flip is not None:
            self._flip.manual_seed(_mix(self._seed, 3, number))
        for images, labels in self._loader:
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


class DeviceBatches:
    """A handful of random batches that lie on the device from the start, in turn: no loader and no copy in a step."""

    def __init__(self, request: DataRequest, device: torch.device) -> None:
        facts = FACTS[request.dataset]
        self.num_batches = (request.samples or facts.train_samples) // request.batch_size
        if self.num_batches == 0:
            raise ValueError(f"--samples {request.samples} is less than one batch of {request.batch_size}")
        mean, std = torch.tensor(facts.mean).view(1, 3, 1, 1), torch.tensor(facts.std).view(1, 3, 1, 1)
        held = min(_DEVICE_BATCHES, self.num_batches)
        images = ((_synthetic_images(request, held * request.batch_size) / 255 - mean) / std).to(device)
        if request.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        labels = torch.randint(request.num_classes, (len(images),), generator=_generator(request.seed, 1)).to(device)
        self._batches = list(zip(images.chunk(held), labels.chunk(held), strict=True))

    def epoch(self, number: int) -> Iterator[Batch]:
        for index in range(self.num_batches):
            yield self._batches[index % len(self._batches)]


def _open_disk(request: DataRequest) -> tuple[Dataset[Any], Dataset[Any]]:
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
    return ArrayImages(split.train, request.num_classes), ArrayImages(split.validation, request.num_classes)


def _open_image_folders(folder: Path, request: DataRequest) -> tuple[Dataset[Any], Dataset[Any]]:
    for name in ("train", "val"):
        if not (folder / name).is_dir():
            raise FileNotFoundError(f"no folder {folder / name}: {folder} must hold train/CLASS/* and val/CLASS/*")
    import_torchvision()
    from torchvision.datasets import ImageFolder

    scaled = partial(_to_square, px=request.image_px)
    train, validation = ImageFolder(folder / "train", scaled), ImageFolder(folder / "val", scaled)
    if train.classes != validation.classes:
        raise ValueError(f"{folder}: train and val hold different classes")
    _require_classes(len(train.classes), request.num_classes)
    return train, validation


def _to_square(image: Any, px: int) -> Tensor:
    """Scale an image of PIL to px * px by the nearest pixel; bytes [3, px, px]."""
    nearest = 0  # PIL.Image.Resampling.NEAREST
    pixels = np.array(image.convert("RGB").resize((px, px), nearest))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def _synthetic_images(request: DataRequest, count: int, px: int | None = None) -> Tensor:
    shape = (count, 3, px or request.image_px, px or request.image_px)
    return torch.randint(256, shape, dtype=torch.uint8, generator=_generator(request.seed, 0))


def _mix(*parts: int) -> int:
    """One well mixed 64-bit seed from several small numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])


def _generator(*parts: int) -> torch.Generator:
    return torch.Generator().manual_seed(_mix(*parts))


def _require_classes(found: int, num_classes: int) -> None:
    if found > num_classes:
        raise ValueError(f"the data set has {found} classes: --num-classes {num_classes} is too few")
