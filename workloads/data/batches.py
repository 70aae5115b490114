"""Batches of training data, real or synthetic, and random generators seeded from several small numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

_DEVICE_BATCHES = 4

Batch = tuple[Tensor, Tensor]
"""Inputs and labels on the device, each of shape [batch, ...]."""
IGNORED = -100
"""The label of a token that the loss ignores, as in torch's cross-entropy."""


class Batches(Protocol):
    """The batches of one split (training or validation), epoch by epoch.

    Order and augmentation depend only on the seed and the epoch number, so an epoch that was abandoned can be started
    again.
    """

    num_batches: int

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of one epoch; every call with the same number yields the same batches."""
        ...

    def close(self) -> None:
        """Stop the processes that load the batches; afterwards, no epoch can begin."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """Training batches, which are all full, and validation batches, if there are any.

    If `is_made_up`, the data is synthetic, and accuracy is meaningless.
    """

    train: Batches
    validation: Batches | None
    is_made_up: bool

    def close(self) -> None:
        self.train.close()
        if self.validation is not None:
            self.validation.close()


class PooledSamples(Dataset[Batch]):
    """A dataset with one sample per label, whose inputs repeat from a small pool.

    It keeps the loader as busy as a real data set, but does not read the disk.
    """

    def __init__(self, pool: Tensor, labels: Tensor) -> None:
        self._pool, self._labels = pool, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitems__(self, indices: list[int]) -> Batch:
        positions = torch.tensor(indices)
        return self._pool[positions % len(self._pool)], self._labels[positions]


class DeviceBatches:
    """A few random batches that stay on the device and are used in turn, so a step needs neither a loader nor a copy.

    `make` creates a given number of samples.

    Raises:
        ValueError: an epoch has no full batch.
    """

    def __init__(self, make: Callable[[int], Batch], samples: int, batch_size: int, device: torch.device) -> None:
        self.num_batches = samples // batch_size
        if self.num_batches == 0:
            raise ValueError(f"--samples {samples} is less than one batch of {batch_size}; use {batch_size} or more")
        count = min(_DEVICE_BATCHES, self.num_batches)
        inputs, labels = (tensor.to(device).chunk(count) for tensor in make(count * batch_size))
        self._batches = list(zip(inputs, labels, strict=True))

    def epoch(self, number: int) -> Iterator[Batch]:
        for index in range(self.num_batches):
            yield self._batches[index % len(self._batches)]

    def close(self) -> None: ...


def mix_seeds(*parts: int) -> int:
    """Return one well-mixed 64-bit seed from several small numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])


def generator(*parts: int) -> torch.Generator:
    """Return a CPU generator seeded with `mix_seeds`."""
    return torch.Generator().manual_seed(mix_seeds(*parts))


def require_classes(count: int, num_classes: int) -> None:
    """Raise `ValueError` if the data set has more classes than the model."""
    if count > num_classes:
        raise ValueError(f"--num-classes {num_classes} is too few for the {count} classes of the data set; use {count}")
