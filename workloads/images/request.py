"""What is asked of image data, and what is known of each data set.

Every source delivers normalised float32 [batch, 3, px, px] and labels, int64 [batch].
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from workloads.data.batches import generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a data set without reading it.

    Attributes:
        native_px: the size of its images; `None` where it is not the same for all.
        mean, std: by channel, of values from 0 to 1.
        flips: a mirrored image is still of its class.
    """

    native_px: int | None
    train_samples: int
    validation_samples: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    flips: bool


# Means and deviations. Source for ImageNet: torchvision's reference weights; for CIFAR-10: of its training images.
_IMAGENET = Facts(
    native_px=None,
    train_samples=1_281_167,
    validation_samples=50_000,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    flips=True,
)
FACTS = {
    "digits": Facts(
        native_px=None, train_samples=1500, validation_samples=297, mean=(0.5,) * 3, std=(0.5,) * 3, flips=False
    ),
    "cifar10": Facts(
        native_px=32,
        train_samples=50_000,
        validation_samples=10_000,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        flips=True,
    ),
    "imagenet64": dataclasses.replace(_IMAGENET, native_px=64),
    "imagenet": _IMAGENET,
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

    @property
    def facts(self) -> Facts:
        return FACTS[self.dataset]

    @property
    def memory_format(self) -> torch.memory_format:
        return torch.channels_last if self.channels_last else torch.contiguous_format

    def require_native_px(self) -> None:
        """Refuse with `ValueError` to scale images down, where they are scaled up to the nearest pixel only."""
        native_px = self.facts.native_px
        if native_px is not None and native_px > self.image_px:
            raise ValueError(f"{self.dataset} has {native_px} px: --image-px cannot be {self.image_px}, less")

    def require_classes(self, found: int) -> None:
        """Refuse with `ValueError` a data set of more classes than the model has."""
        if found > self.num_classes:
            raise ValueError(f"the data set has {found} classes: --num-classes {self.num_classes} is too few")


def noise(request: DataRequest, count: int, px: int) -> Tensor:
    """Return bytes [count, 3, px, px] at random, the same for each seed."""
    return torch.randint(256, (count, 3, px, px), dtype=torch.uint8, generator=generator(request.seed, 0))
