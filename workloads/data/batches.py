"""What every source of training data delivers, and random numbers that depend on few small ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor]
"""What a model takes and what it should say, [batch, ...] each, both on the device."""
PASSED_OVER = -100
"""The label of a token that nothing is to be said of: torch's cross-entropy passes it over."""


class Batches(Protocol):
    """Batches of one split, epoch after epoch.

    Order and augmentation of an epoch depend on the seed and the number of the epoch alone, so an epoch can be begun,
    left and begun again.
    """

    num_batches: int

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of one epoch, the same ones each time it is asked for."""
        ...

    def close(self) -> None:
        """End what delivers them; nothing can be asked for afterwards."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """Batches to train with, all full, and those to validate with.

    Attributes:
        validation: `None` where there is nothing to validate with.
        is_made_up: the data shows nothing, so an accuracy would say nothing.
    """

    train: Batches
    validation: Batches | None
    is_made_up: bool

    def close(self) -> None:
        """End what delivers the batches."""
        self.train.close()
        if self.validation is not None:
            self.validation.close()


def mixed(*parts: int) -> int:
    """Return one well mixed 64-bit seed from several small numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])


def generator(*parts: int) -> torch.Generator:
    """Return a generator on the CPU with such a seed."""
    return torch.Generator().manual_seed(mixed(*parts))
