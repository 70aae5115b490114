"""Training data for `train_text`: from what is asked for to batches of token ids on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from workloads.data.batches import PASSED_OVER, Batch, TrainingData, generator, mixed
from workloads.data.loader import EpochOrder, Loader
from workloads.text import tokens
from workloads.text.documents import LanguageReference, TextFolder
from workloads.text.models import CAUSAL_LM, CLASSIFICATION, MASKED_LM
from workloads.text.request import PYDOC, TextRequest
from workloads.text.tokens import Rows

SYNTHETIC_SAMPLES = 10_000
"""Sequences an epoch of made-up data, if nobody says how many."""
_SYNTHETIC_POOL = 256
_DEVICE_BATCHES = 4
# Made-up ids, and the mask among them, stay clear of what special tokens usually are.
_SYNTHETIC_MASK, _SYNTHETIC_FIRST = 3, 4
# Source: BERT (arXiv 1810.04805): of the tokens, so many are to be said; of those, so many are masked, and as many are
# replaced by others as are left alone.
_SAID, _MASKED, _REPLACED = 0.15, 0.8, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class TextData:
    """Batches, and what the model must know of them.

    Attributes:
        padding: the id that fills short sequences up, where some are short.
    """

    batches: TrainingData
    padding: int | None


def open_data(request: TextRequest, vocabulary_size: int, device: torch.device) -> TextData:
    """Open the data that was asked for; its batches must be closed.

    Args:
        request: what was asked for.
        vocabulary_size: as many tokens as the model can tell apart.
        device: where batches go.

    Raises:
        FileNotFoundError: a file or folder is missing.
        ValueError: the data has other classes, less text or fewer samples than asked for, or more tokens than the
            model knows.
    """
    if request.source.startswith("synthetic"):
        return TextData(batches=_open_synthetic(request, vocabulary_size, device), padding=None)
    cache = tokens.cache_folder(request.cache_root)
    if request.weights is None:
        vocabulary = tokens.own_vocabulary(vocabulary_size, cache)
    else:
        vocabulary = tokens.vocabulary_in(request.weights)
    if vocabulary.size > vocabulary_size:
        raise ValueError(f"{vocabulary.file} has {vocabulary.size} tokens, and the model knows {vocabulary_size}")
    classes = request.num_classes if request.task == CLASSIFICATION else None
    source = LanguageReference(classes) if request.dataset == PYDOC else _folder(request)
    if request.task == CLASSIFICATION:
        found = tokens.samples_of(source, vocabulary, request.sequence_tokens, cache)
        if classes is not None and found.num_classes > classes:
            raise ValueError(f"the data set has {found.num_classes} classes: --num-classes {classes} is too few")
    else:
        # What comes next is said of every token: the last one needs one more.
        length = request.sequence_tokens + (request.task == CAUSAL_LM)
        found = tokens.stream_of(source, vocabulary, length, cache)
    masking = _Masking(vocabulary_size, vocabulary.mask) if request.task == MASKED_LM else None
    train = _fewer(found.train, request.samples)
    return TextData(
        batches=TrainingData(
            train=TokenBatches(RowSet(train), request, masking, device, training=True),
            validation=TokenBatches(RowSet(found.validation), request, masking, device, training=False),
            is_made_up=False,
        ),
        padding=vocabulary.padding if found.is_padded else None,
    )


class RowSet(Dataset[Batch]):
    """Samples that are mapped into memory; a whole batch is one indexing operation."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows.ids)

    def __getitems__(self, indices: list[int]) -> Batch:
        labels = np.zeros(len(indices), np.int64) if self._rows.labels is None else self._rows.labels[indices]
        return torch.from_numpy(np.asarray(self._rows.ids[indices])), torch.from_numpy(labels)


class SyntheticSet(Dataset[Batch]):
    """Samples from a small pool, as many as asked for: the loader's work without a file."""

    def __init__(self, request: TextRequest, vocabulary_size: int) -> None:
        self._ids = _noise(request, vocabulary_size, _SYNTHETIC_POOL)
        self._labels = torch.randint(
            request.num_classes or 1, (request.samples or SYNTHETIC_SAMPLES,), generator=generator(request.seed, 1)
        )

    def __len__(self) -> int:
        return len(self._labels)

    def __getitems__(self, indices: list[int]) -> Batch:
        wanted = torch.tensor(indices)
        return self._ids[wanted % len(self._ids)], self._labels[wanted]


class TokenBatches:
    """Token ids from the host; what is to be said of them is decided on the device."""

    def __init__(
        self,
        dataset: Dataset[Any],
        request: TextRequest,
        masking: _Masking | None,
        device: torch.device,
        *,
        training: bool,
    ) -> None:
        order = EpochOrder(len(dataset), request.seed) if training else None  # type: ignore[arg-type]
        # The dataset returns whole batches: nothing is left to collate.
        self._loader = Loader(dataset, request, order, lambda batch: batch, pin_memory=device.type == "cuda")
        if training:
            self._loader.begin()
        self.num_batches = len(self._loader)
        self._request, self._masking, self._device = request, masking, device
        self._random = torch.Generator(device)

    def epoch(self, number: int) -> Iterator[Batch]:
        self._loader.name_epoch(number)
        self._random.manual_seed(mixed(self._request.seed, 3, number))
        for ids, labels in self._loader:
            ids, labels = ids.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True)
            yield _posed(self._request.task, ids, labels, self._masking, self._random)

    def close(self) -> None:
        self._loader.close()


class DeviceBatches:
    """A handful of random batches that lie on the device from the start, in turn."""

    def __init__(
        self, request: TextRequest, vocabulary_size: int, masking: _Masking | None, device: torch.device
    ) -> None:
        self.num_batches = (request.samples or SYNTHETIC_SAMPLES) // request.batch_size
        if self.num_batches == 0:
            raise ValueError(f"--samples {request.samples} is less than one batch of {request.batch_size}")
        held = min(_DEVICE_BATCHES, self.num_batches)
        ids = _noise(request, vocabulary_size, held * request.batch_size)
        labels = torch.randint(request.num_classes or 1, (len(ids),), generator=generator(request.seed, 1))
        inputs, wanted = _posed(request.task, ids, labels, masking, generator(request.seed, 3))
        halves = (each.to(device).chunk(held) for each in (inputs, wanted))
        self._batches = list(zip(*halves, strict=True))

    def epoch(self, number: int) -> Iterator[Batch]:
        for index in range(self.num_batches):
            yield self._batches[index % len(self._batches)]

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Masking:
    """How a masked language model is asked: with which token instead of those that it is to say."""

    vocabulary_size: int
    mask: int | None


def _posed(
    task: str, ids: Tensor, labels: Tensor, masking: _Masking | None, random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """What the model takes and what it should say, for a task, of ids [batch, tokens] and labels [batch]."""
    ids = ids.long()
    if task == CAUSAL_LM:
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    return (ids, labels) if masking is None else _masked(ids, masking, random)


def _masked(ids: Tensor, masking: _Masking, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Hide tokens as BERT does: most are masked, some replaced, some left alone; one at least of each sample."""
    drawn = torch.rand((2, *ids.shape), generator=random, device=ids.device)
    said = drawn[0] < _SAID
    said[:, 0] |= ~said.any(1)
    how = drawn[1]
    others = torch.randint(masking.vocabulary_size, ids.shape, generator=random, device=ids.device)
    hidden = torch.where(said & (how < _MASKED), masking.mask or 0, ids)
    hidden = torch.where(said & (how >= _MASKED) & (how < _MASKED + _REPLACED), others, hidden)
    return hidden, torch.where(said, ids, PASSED_OVER)


def _open_synthetic(request: TextRequest, vocabulary_size: int, device: torch.device) -> TrainingData:
    masking = _Masking(vocabulary_size, _SYNTHETIC_MASK) if request.task == MASKED_LM else None
    if request.source == "synthetic_device":
        train: DeviceBatches | TokenBatches = DeviceBatches(request, vocabulary_size, masking, device)
    else:
        train = TokenBatches(SyntheticSet(request, vocabulary_size), request, masking, device, training=True)
    return TrainingData(train=train, validation=None, is_made_up=True)


def _noise(request: TextRequest, vocabulary_size: int, count: int) -> Tensor:
    """Ids [count, tokens] at random, the same for each seed; one token more where the next one is to be said."""
    shape = (count, request.sequence_tokens + (request.task == CAUSAL_LM))
    return torch.randint(_SYNTHETIC_FIRST, vocabulary_size, shape, generator=generator(request.seed, 0))


def _folder(request: TextRequest) -> TextFolder:
    if request.data_root is None:
        raise ValueError(f"--data-root must name the folder that holds {request.dataset}")
    return TextFolder(request.data_root / request.dataset)


def _fewer(rows: Rows, samples: int | None) -> Rows:
    """The samples asked for, the same ones whatever the seed of a run."""
    there = len(rows.ids)
    if samples is None or samples == there:
        return rows
    if samples > there:
        raise ValueError(f"the data set has {there} samples to train with: --samples {samples} is too many")
    chosen = np.sort(np.random.default_rng(0).permutation(there)[:samples])
    return Rows(ids=rows.ids[chosen], labels=None if rows.labels is None else rows.labels[chosen])
