"""Import all modules that `train_timm` imports. A fork server imports this module (docs/warm_start.md)."""

from workloads.images import image_data
from workloads.images.vision import import_torchvision
from workloads.training import recipes, run

import_torchvision()

import timm  # noqa: E402  it imports torchvision itself

__all__ = ["image_data", "recipes", "run", "timm"]
