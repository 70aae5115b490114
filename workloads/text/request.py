"""What is asked of text data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PYDOC = "pydoc"
"""The data set that comes with every Python: its language reference. Others are folders of text files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """Which text, and how it is delivered. The fields are `train_text`'s flags of the same names.

    Attributes:
        dataset: `pydoc`, or the name of a folder below `data_root`, with a folder for each class.
        source: `disk` (pydoc), `files`, `synthetic_host` or `synthetic_device`.
        cache_root: where tokens are kept; in the user's cache if not given.
        weights: folder of a trained model, whose tokeniser is taken.
        task: of the model; it decides what a sample is.
        samples: training sequences an epoch; all that there are if not given.
    """

    dataset: str
    source: str
    data_root: Path | None
    cache_root: Path | None
    weights: Path | None
    task: str
    sequence_tokens: int
    num_classes: int | None
    samples: int | None
    batch_size: int
    loader_workers: int
    seed: int
