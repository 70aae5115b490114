"""U-Nets of diffusers, which remove noise from images. One call is one of the many steps that generate an image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from workloads.images.vision import import_torchvision

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
