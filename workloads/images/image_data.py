"""Training data for `train_timm`: normalised float32 [batch, 3, px, px] and labels, int64 [batch], on the device."""

from __future__ import annotations

import torch

from workloads.data.batches import TrainingData
from workloads.images import array_data, folder_data
from workloads.images.options import TrainTimm
from workloads.model_options import DataSource

_SOURCES = {
    DataSource.disk: array_data.open_disk,
    DataSource.files: folder_data.open_files,
    DataSource.synthetic_files: folder_data.open_synthetic,
    DataSource.synthetic_host: array_data.open_on_host,
    DataSource.synthetic_device: array_data.open_on_device,
}


def open_data(options: TrainTimm, seed: int, device: torch.device) -> TrainingData:
    """Open the training data; the caller must close it."""
    return _SOURCES[options.source](options, seed, device)
