"""Recipes of training: loss, optimiser and learning rate, and whether the host reads each loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workloads.images.vision import import_torchvision

Loss = Callable[[Tensor, Tensor], Tensor]
"""A function from logits [batch, ..., classes] and labels [batch, ...] to a scalar."""

_MOMENTUM = 0.9
_PLAIN_RATE = 0.1
# Source: the defaults of timm's train.py: --opt sgd --momentum 0.9 --weight-decay 2e-5 --smoothing 0.1 --lr-base 0.1
# --lr-base-size 256 --sched cosine --epochs 300. Its optimiser uses Nesterov momentum, and no weight decay for biases
# and norms.
_WEIGHT_DECAY = 2e-5
_SMOOTHING = 0.1
_RATE_PER_IMAGE = 0.1 / 256
_DEFAULT_EPOCHS = 300
# Source: BERT (arXiv 1810.04805), appendix A.2.
_ADAMW_DECAY = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings with which a model is trained.

    Attributes:
        learning_rate: learning rate of the first epoch.
        falls_over: number of epochs in which the learning rate falls to 0 along a cosine; `None` if it is constant.
        reads_loss: whether the host reads each loss before it issues the next step, for which it waits for the device.
    """

    loss: Loss
    optimizer: torch.optim.Optimizer
    learning_rate: float
    falls_over: int | None = None
    reads_loss: bool = False

    def begin_epoch(self, number: int) -> None:
        """Set the learning rate of an epoch; the first epoch has number 1."""
        if self.falls_over is None:
            return
        rate = self.learning_rate * (1 + math.cos(math.pi * min(1.0, (number - 1) / self.falls_over))) / 2
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


def make_plain(model: nn.Module, learning_rate: float | None) -> Recipe:
    """Return a recipe of cross-entropy and SGD with momentum at a constant learning rate; losses are not read."""
    rate = _PLAIN_RATE if learning_rate is None else learning_rate
    return Recipe(
        loss=nn.functional.cross_entropy,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate, momentum=_MOMENTUM),
        learning_rate=rate,
    )


def make_adamw(model: nn.Module, learning_rate: float, *, is_captured: bool) -> Recipe:
    """Return a recipe of cross-entropy over all labels and AdamW at a constant learning rate; losses are not read.

    If a step is captured as a CUDA graph, the optimiser counts its steps on the device.
    """
    return Recipe(
        loss=lambda logits, labels: nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten()),
        optimizer=torch.optim.AdamW(
            model.parameters(), lr=learning_rate, weight_decay=_ADAMW_DECAY, capturable=is_captured
        ),
        learning_rate=learning_rate,
    )


def make_timm(
    model: nn.Module, learning_rate: float | None, *, batch_size: int, num_epochs: int, rate_on: torch.device | None
) -> Recipe:
    """Return a recipe with the defaults of timm's `train.py`.

    Args:
        model: model, already on its device.
        learning_rate: learning rate of the first epoch; `None`: proportional to the batch size.
        batch_size: images per step.
        num_epochs: epochs in which the learning rate falls to 0; 0: timm's default number.
        rate_on: device of the learning rate, if it is a tensor that a captured graph reads at every replay.
    """
    import_torchvision()
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import param_groups_weight_decay

    rate = _RATE_PER_IMAGE * batch_size if learning_rate is None else learning_rate
    optimizer = torch.optim.SGD(
        param_groups_weight_decay(model, _WEIGHT_DECAY),
        lr=rate if rate_on is None else torch.tensor(rate, device=rate_on),
        momentum=_MOMENTUM,
        nesterov=True,
        fused=None if rate_on is None else True,  # all implementations except the fused one read the tensor on the host
    )
    return Recipe(
        loss=LabelSmoothingCrossEntropy(_SMOOTHING),
        optimizer=optimizer,
        learning_rate=rate,
        falls_over=num_epochs or _DEFAULT_EPOCHS,
        reads_loss=True,
    )
