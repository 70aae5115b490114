"""Batches of training data, real or synthetic, and random generators seeded from several small numbers."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from workloads.model_options import Training

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


_JOIN_LIMIT_S = 5.0


class EpochOrder(Sampler[int]):
    """A random order per epoch, which depends only on the seed and the epoch.

    The order of PyTorch's loader cannot be used, because it depends on whether the loader's workers have run an epoch
    before. With `is_numbered`, the index of a sample is `epoch * num_samples + sample`, from which a worker computes
    both numbers.
    """

    def __init__(self, num_samples: int, seed: int, *, is_numbered: bool) -> None:
        self._num_samples, self._seed, self._is_numbered = num_samples, seed, is_numbered
        self.epoch = 0

    def __len__(self) -> int:
        return self._num_samples

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self._num_samples, generator=generator(self._seed, 2, self.epoch))
        return iter((order + self.epoch * self._num_samples if self._is_numbered else order).tolist())


class Loader:
    """The batches of a data set, epoch by epoch.

    Training gets full batches in the order of the epoch; validation gets all samples in their stored order. Workers are
    forked when the first epoch begins, and run until `close`. For training, the first epoch begins in the constructor,
    for two reasons: the workers start to read early, and a child that is forked after this process has used the GPU
    would hold the GPU open. If the data set has `__getitems__`, it returns complete batches; for other data sets,
    `collate` assembles the batches.

    Raises:
        ValueError: there is no batch, or for training no full batch.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        options: Training,
        seed: int,
        *,
        is_training: bool,
        pin_memory: bool,
        collate: Callable[[Any], Any] | None = None,
        is_numbered: bool = False,
    ) -> None:
        workers = options.loader_workers
        num_samples = len(dataset)  # type: ignore[arg-type]
        self._order = EpochOrder(num_samples, seed, is_numbered=is_numbered) if is_training else None
        self._first_epoch: Iterator[Any] | None = None
        self._loader = DataLoader(
            dataset,
            batch_size=options.batch_size,
            sampler=self._order,
            drop_last=is_training,
            num_workers=workers,
            pin_memory=pin_memory,
            persistent_workers=workers > 0,
            generator=generator(seed, 4),  # the default would be the global generator, which models use
            collate_fn=(lambda batch: batch) if hasattr(dataset, "__getitems__") else collate,
            # Forked workers share the data; each spawned worker would copy a memory-mapped array.
            multiprocessing_context="fork" if workers > 0 else None,
        )
        self.num_batches = len(self._loader)
        if self.num_batches == 0:
            raise ValueError(f"the data set has {num_samples} samples, less than one batch; use a smaller --batch-size")
        if workers > 0 and is_training:
            self.name_epoch(1)
            self._first_epoch = iter(self._loader)

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the epoch set by `name_epoch`."""
        first_epoch, self._first_epoch = self._first_epoch, None
        return iter(self._loader) if first_epoch is None else first_epoch

    def name_epoch(self, number: int) -> None:
        """Set the number of the next epoch."""
        if self._order is not None and self._order.epoch != number:
            self._order.epoch, self._first_epoch = number, None

    def close(self) -> None:
        """Kill the workers at once; they have no data to save.

        PyTorch's shutdown would wait up to five seconds per worker, and without limit for locks that a worker may hold.
        """
        iterator = getattr(self._loader, "_iterator", None)
        workers = getattr(iterator, "_workers", ())
        if not workers:
            return
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would report the exit of a worker as an error
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.join(_JOIN_LIMIT_S)
        iterator._shutdown = True  # type: ignore[union-attr]  # or it asks the dead when Python ends
