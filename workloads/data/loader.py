"""Torch's data loader with an order of our own, and with worker processes that start early and end at once."""

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
    """A random order for each epoch; the loader's own would depend on whether its processes ran an epoch before.

    With `is_numbered`, a sample is given as `epoch * num_samples + sample`, so that a worker knows both.
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
    """Batches of a data set, epoch after epoch; `ValueError` if there is not one.

    For training, full batches in the order of the epoch; else all samples as they come. The workers are forked when the
    first epoch begins, which is at once for training, so that they read while other things are prepared: what is forked
    after this process uses the GPU holds on to it as well. They live until `close`. A data set with `__getitems__`
    returns whole batches; of another one, `collate` makes them.
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
            generator=generator(seed, 4),  # else it would draw from torch's own, which models draw from
            collate_fn=(lambda batch: batch) if hasattr(dataset, "__getitems__") else collate,
            # Forked workers share the data; where Python starts them afresh, each would get a copy of a mapped array.
            multiprocessing_context="fork" if workers > 0 else None,
        )
        self.num_batches = len(self._loader)
        if self.num_batches == 0:
            raise ValueError(f"the data set has {num_samples} samples, less than one batch of {options.batch_size}")
        if workers > 0 and is_training:
            self.name_epoch(1)
            self._first_epoch = iter(self._loader)

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the epoch that was named last."""
        first_epoch, self._first_epoch = self._first_epoch, None
        return iter(self._loader) if first_epoch is None else first_epoch

    def name_epoch(self, number: int) -> None:
        """Choose the epoch that is iterated next."""
        if self._order is not None and self._order.epoch != number:
            self._order.epoch, self._first_epoch = number, None

    def close(self) -> None:
        """End the workers at once; they hold nothing to keep.

        Torch's own way asks them and waits up to five seconds for each, and without a limit for locks that a worker
        may hold.
        """
        iterator = getattr(self._loader, "_iterator", None)
        workers = getattr(iterator, "_workers", ())
        if not workers:
            return
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch takes the end of a worker for an error
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.join(_JOIN_LIMIT_S)
        iterator._shutdown = True  # type: ignore[union-attr]  # or it asks the dead when Python ends
