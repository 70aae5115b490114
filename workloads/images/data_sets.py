"""The image data sets, and those properties that are known before the data is read. Does not import torch."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass

Dataset = enum.Enum("Dataset", "digits cifar10 imagenet64 imagenet", start=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The properties of a data set.

    Attributes:
        native_px: height and width of the images; `None` if sizes vary.
        mean, std: mean and standard deviation of each channel, with pixel values from 0 to 1.
        flips: whether a mirrored image still belongs to its class.
        folder: folder of the published files, below `data_root`; `None` if a package contains the files.
    """

    native_px: int | None
    train_samples: int
    validation_samples: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    flips: bool
    folder: str | None


# Sources of means and standard deviations: for ImageNet, torchvision's reference weights; for CIFAR-10, its training
# images.
_IMAGENET = Facts(
    native_px=None,
    train_samples=1_281_167,
    validation_samples=50_000,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    flips=True,
    folder="imagenet",
)
FACTS = {
    Dataset.digits: Facts(
        native_px=None,
        train_samples=1500,
        validation_samples=297,
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        flips=False,
        folder=None,
    ),
    Dataset.cifar10: Facts(
        native_px=32,
        train_samples=50_000,
        validation_samples=10_000,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        flips=True,
        folder="cifar-10-batches-py",
    ),
    Dataset.imagenet64: dataclasses.replace(_IMAGENET, native_px=64, folder="imagenet64"),
    Dataset.imagenet: _IMAGENET,
}
