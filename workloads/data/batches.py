"""Batches of training data, made-up ones among them, and random numbers that depend on few small ones."""

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
"""Inputs and labels, [batch, ...] each, both on the device."""
IGNORED = -100
"""The label of a token that the loss leaves out, as torch's cross-entropy has it."""


class Batches(Protocol):
    """Batches of one split, epoch after epoch.

    Order and augmentation of an epoch depend on the seed and the number of the epoch alone, so an epoch can be begun,
    left and begun again.
    """

    num_batches: int

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of one epoch, the same ones at every call."""
        ...

    def close(self) -> None:
        """End what delivers them; no epoch can begin afterwards."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """Batches to train with, all full, and those to validate with, if there are any.

    Made-up data has no accuracy.
    """

    train: Batches
    validation: Batches | None
    is_made_up: bool

    def close(self) -> None:
        self.train.close()
        if self.validation is not None:
            self.validation.close()


class PooledSamples(Dataset[Batch]):
    """One sample a label, from a small pool of inputs: the loader's work without a disk."""

    def __init__(self, pool: Tensor, labels: Tensor) -> None:
        self._pool, self._labels = pool, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitems__(self, indices: list[int]) -> Batch:
        positions = torch.tensor(indices)
        return self._pool[positions % len(self._pool)], self._labels[positions]


class DeviceBatches:
    """A handful of random batches that lie on the device from the start, in turn: no loader and no copy in a step.

    `make` makes a number of samples; `ValueError` if an epoch has no full batch.
    """

    def __init__(self, make: Callable[[int], Batch], samples: int, batch_size: int, device: torch.device) -> None:
        self.num_batches = samples // batch_size
        if self.num_batches == 0:
            raise ValueError(f"--samples {samples} is less than one batch of {batch_size}")
        count = min(_DEVICE_BATCHES, self.num_batches)
        inputs, labels = (tensor.to(device).chunk(count) for tensor in make(count * batch_size))
        self._batches = list(zip(inputs, labels, strict=True))

    def epoch(self, number: int) -> Iterator[Batch]:
        for index in range(self.num_batches):
            yield self._batches[index % len(self._batches)]

    def close(self) -> None: ...


def mix_seeds(*parts: int) -> int:
    """Return one well mixed 64-bit seed from several small numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])


def generator(*parts: int) -> torch.Generator:
    """Return a generator on the CPU with such a seed."""
    return torch.Generator().manual_seed(mix_seeds(*parts))


def require_classes(count: int, num_classes: int) -> None:
    """Refuse with `ValueError` a data set of more classes than the model has."""
    if count > num_classes:
        raise ValueError(f"the data set has {count} classes; --num-classes {num_classes} is too few")
