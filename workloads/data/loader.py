"""Torch's data loader with an order of our own, and with worker processes that start early and end at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from workloads.data.batches import generator

_JOIN_LIMIT_S = 5.0


class Request(Protocol):
    """What the loader needs to know of what is asked for."""

    @property
    def dataset(self) -> str:
        """Its name, for messages."""

    @property
    def batch_size(self) -> int: ...
    @property
    def loader_workers(self) -> int: ...
    @property
    def seed(self) -> int: ...


class EpochOrder(Sampler[int]):
    """A random order for each epoch; the loader's own would depend on whether its processes ran an epoch before.

    With `numbered`, a sample is given as `epoch * num_samples + sample`, so that a worker knows both.
    """

    def __init__(self, num_samples: int, seed: int, *, numbered: bool = False) -> None:
        self._num_samples, self._seed, self._numbered = num_samples, seed, numbered
        self.epoch = 0

    def __len__(self) -> int:
        return self._num_samples

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self._num_samples, generator=generator(self._seed, 2, self.epoch))
        return iter((order + self.epoch * self._num_samples if self._numbered else order).tolist())


class Loader:
    """Batches of a data set as its `collate` leaves them, epoch after epoch.

    Without an order, the samples come as they are, all of them; with one, full batches only. The workers are forked
    when the first epoch begins and live until `close`.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        request: Request,
        order: EpochOrder | None,
        collate: Callable[[Any], Any] | None,
        *,
        pin_memory: bool,
    ) -> None:
        workers = request.loader_workers
        self._order, self._has_workers = order, workers > 0
        self._begun: Iterator[Any] | None = None
        self._loader = DataLoader(
            dataset,
            batch_size=request.batch_size,
            sampler=order,
            drop_last=order is not None,
            num_workers=workers,
            pin_memory=pin_memory,
            persistent_workers=workers > 0,
            generator=generator(request.seed, 4),  # else it would draw from torch's own, which models draw from
            collate_fn=collate,
            # Forked workers share the data; where Python starts them afresh, each would get a copy of a mapped array.
            multiprocessing_context="fork" if workers > 0 else None,
        )
        if len(self) == 0:
            raise ValueError(f"{request.dataset} holds less than one batch of {request.batch_size} samples")

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the epoch that was named last."""
        begun, self._begun = self._begun, None
        return iter(self._loader) if begun is None else begun

    def name_epoch(self, number: int) -> None:
        """Say which epoch is asked for next."""
        if self._order is not None and self._order.epoch != number:
            self._order.epoch, self._begun = number, None

    def begin(self) -> None:
        """Begin the first epoch, so that the workers read while other things are prepared.

        Before this process uses the GPU: what is forked later holds on to it as well.
        """
        if self._has_workers:
            self.name_epoch(1)
            self._begun = iter(self._loader)

    def close(self) -> None:
        """End the workers at once, which hold nothing of worth.

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
