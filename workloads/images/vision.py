"""Torchvision with any build of torch, and U-Nets of diffusers, which need torchvision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

_kept: list[Any] = []


def import_torchvision() -> Any:
    """Return the package torchvision; call this before importing packages that import torchvision, such as timm.

    PyPI's torchvision is built against CUDA. With a CPU build of torch, its operators do not load, and its import fails
    because an operator has no schema. This project does not use these operators, so it is enough to define schemas.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        schemas = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            schemas.define(schema)  # type: ignore[no-untyped-call]
        _kept.append(schemas)  # schemas disappear when their library object is garbage-collected
        import torchvision
    return torchvision


# The middle of the 1,000 steps of training; the speed does not depend on the step.
_TIMESTEP = 500


class Denoiser(nn.Module):
    """A U-Net at one step. Its class in diffusers must have images and a step as arguments, as `UNet2DModel` does."""

    def __init__(self, name: str, image_px: int, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        import_torchvision()
        import diffusers

        if not name.startswith("UNet") or not hasattr(diffusers, name):
            raise ValueError(f"diffusers {diffusers.__version__} has no U-Net {name}; use another model")
        self.unet = getattr(diffusers, name)(sample_size=image_px, **arguments)

    def forward(self, images: Tensor) -> Tensor:
        """Return the noise in images [n, 3, px, px]; it has the same shape."""
        noise: Tensor = self.unet(images, _TIMESTEP).sample
        return noise
