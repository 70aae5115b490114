"""Made-up batches that lie on the device from the start: no loader and no copy in a step."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from workloads.data.batches import Batch, TrainingData, generator
from workloads.images.request import DataRequest, noise

_DEVICE_BATCHES = 4


def open_synthetic(request: DataRequest, device: torch.device) -> TrainingData:
    """Make up batches.

    Raises:
        ValueError: not one full batch.
    """
    request.require_native_px()
    return TrainingData(train=DeviceBatches(request, device), validation=None, is_made_up=True)


class DeviceBatches:
    """A handful of random batches, in turn."""

    def __init__(self, request: DataRequest, device: torch.device) -> None:
        facts = request.facts
        self.num_batches = (request.samples or facts.train_samples) // request.batch_size
        if self.num_batches == 0:
            raise ValueError(f"--samples {request.samples} is less than one batch of {request.batch_size}")
        mean, std = torch.tensor(facts.mean).view(1, 3, 1, 1), torch.tensor(facts.std).view(1, 3, 1, 1)
        held = min(_DEVICE_BATCHES, self.num_batches)
        images = ((noise(request, held * request.batch_size, request.image_px) / 255 - mean) / std).to(device)
        images = images.contiguous(memory_format=request.memory_format)
        labels = torch.randint(request.num_classes, (len(images),), generator=generator(request.seed, 1)).to(device)
        self._batches = list(zip(images.chunk(held), labels.chunk(held), strict=True))

    def epoch(self, number: int) -> Iterator[Batch]:
        for index in range(self.num_batches):
            yield self._batches[index % len(self._batches)]

    def close(self) -> None: ...
