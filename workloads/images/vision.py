"""Import torchvision, even with a build of torch for which torchvision was not built."""

from __future__ import annotations

from typing import Any

import torch

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
