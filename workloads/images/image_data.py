"""Training data for `train_timm`: from what is asked for to batches on the device."""

from __future__ import annotations

import torch

from workloads.data.batches import TrainingData
from workloads.images import array_data, device_data, folder_data
from workloads.images.request import DataRequest

_SOURCES = {
    "disk": array_data.open_disk,
    "files": folder_data.open_files,
    "synthetic_files": folder_data.open_synthetic,
    "synthetic_host": array_data.open_synthetic,
    "synthetic_device": device_data.open_synthetic,
}


def open_data(request: DataRequest, device: torch.device) -> TrainingData:
    """Open the data that was asked for; it must be closed.

    Raises:
        FileNotFoundError: a file or folder of the data set is missing.
        ValueError: the data set has other image sizes or classes, or not one full batch.
    """
    return _SOURCES[request.source](request, device)
