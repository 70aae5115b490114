"""PyTorch's data loader with a reproducible order, and with worker processes that start early and stop at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from workloads.data.batches import generator
from workloads.model_options import Training

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
