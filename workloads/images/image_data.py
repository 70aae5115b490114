"""Training data for `train_timm`: normalised float32 [batch, 3, px, px] and labels, int64 [batch], on the device."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import get_worker_info

from workloads.data.batches import (
    Batch,
    DeviceBatches,
    Loader,
    PooledSamples,
    TrainingData,
    generator,
    mix_seeds,
    require_classes,
)
from workloads.data.folders import cache_folder, make_once
from workloads.images.image_files import ImageArrays, read_cifar10, read_digits, read_imagenet64, split_folders
from workloads.images.options import FACTS, Dataset, TrainTimm
from workloads.images.vision import import_torchvision
from workloads.model_options import DataSource

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


class ArrayImages(TorchDataset[Batch]):
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
        self, dataset: TorchDataset[Any], options: TrainTimm, seed: int, device: torch.device, *, is_training: bool
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


def _read(options: TrainTimm) -> tuple[TorchDataset[Any], TorchDataset[Any]]:
    if options.dataset is Dataset.digits:
        split = read_digits(options.image_px)
    elif options.dataset is Dataset.imagenet:
        return _open_image_folders(options.require_root() / "imagenet", options)
    elif options.dataset is Dataset.cifar10:
        split = read_cifar10(options.require_root())
    else:
        split = read_imagenet64(options.require_root(), options.cache_root)
    return ArrayImages(split.train, options.num_classes), ArrayImages(split.validation, options.num_classes)


def _open_image_folders(folder: Path, options: TrainTimm) -> tuple[TorchDataset[Any], TorchDataset[Any]]:
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


def open_files(options: TrainTimm, seed: int, device: torch.device) -> TrainingData:
    """Open the folder of a data set below `data_root`, with `train/CLASS/*` and `val/CLASS/*`."""
    train, validation = split_folders(options.require_root() / options.dataset.name)
    return _open(options, seed, device, train, validation, samples=None)


def open_synthetic(options: TrainTimm, seed: int, device: torch.device) -> TrainingData:
    """Open a folder of synthetic files, which is created if necessary; training and validation repeat the files."""
    folder = find_or_make(options.dataset, options.cache_root)
    return _open(options, seed, device, folder, folder, samples=count_samples(options))


class FolderImages(TorchDataset[tuple[Any, int]]):
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


_SOURCES = {
    DataSource.disk: open_disk,
    DataSource.files: open_files,
    DataSource.synthetic_files: open_synthetic,
    DataSource.synthetic_host: open_on_host,
    DataSource.synthetic_device: open_on_device,
}


def open_data(options: TrainTimm, seed: int, device: torch.device) -> TrainingData:
    """Open the training data; the caller must close it."""
    return _SOURCES[options.source](options, seed, device)
