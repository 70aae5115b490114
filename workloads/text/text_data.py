"""Training data for `train_text`: batches of token ids on the device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from workloads.data.batches import (
    IGNORED,
    Batch,
    DeviceBatches,
    PooledSamples,
    TrainingData,
    generator,
    mix_seeds,
    require_classes,
)
from workloads.data.folders import cache_folder
from workloads.data.loader import Loader
from workloads.model_options import DataSource
from workloads.text import tokens
from workloads.text.documents import LanguageReference, Source, TextFolder
from workloads.text.options import PYDOC, Task, TrainText
from workloads.text.tokens import Rows

SYNTHETIC_SAMPLES = 10_000
"""Default number of sequences per epoch of synthetic data."""
_SYNTHETIC_POOL = 256
# Synthetic ids, also that of the mask token, are outside the usual ids of special tokens.
_SYNTHETIC_MASK, _SYNTHETIC_FIRST = 3, 4
# The share of tokens to predict, and the shares of these that are masked and that are replaced by random tokens; the
# remaining tokens to predict are unchanged. Source: BERT (arXiv 1810.04805).
_PREDICTED, _MASKED, _REPLACED = 0.15, 0.8, 0.1


def open_data(
    options: TrainText, seed: int, vocabulary_size: int, device: torch.device
) -> tuple[TrainingData, int | None]:
    """Open the training data, which the caller must close; also return the padding id, or `None`.

    Raises:
        ValueError: the data has too many classes, too little text, too few samples, or token ids that the model does
            not have.
    """
    if options.source in (DataSource.synthetic_host, DataSource.synthetic_device):
        return _open_synthetic(options, seed, vocabulary_size, device), None
    cache = cache_folder(options.cache_root, "text")
    if options.weights is None:
        vocabulary = tokens.train_vocabulary(vocabulary_size, cache)
    else:
        vocabulary = tokens.read_vocabulary(Path(options.weights))
    if vocabulary.size > vocabulary_size:
        raise ValueError(
            f"{vocabulary.file} has {vocabulary.size} tokens, but the model has only {vocabulary_size}; use "
            "weights that match their tokeniser, or a larger model_args.vocab_size"
        )
    is_classification = options.task is Task.classification
    if options.dataset == PYDOC:
        source: Source = LanguageReference(options.num_classes if is_classification else None)
    else:
        source = TextFolder(options.require_root() / options.dataset)
    # Predicting the next token of the last position needs one more token.
    length = options.sequence_tokens + (options.task is Task.causal_lm)
    texts = tokens.tokenise(source, vocabulary, length, cache, is_stream=not is_classification)
    if is_classification and options.num_classes is not None:
        require_classes(texts.num_classes, options.num_classes)
    masking = _Masking(vocabulary_size, vocabulary.mask or 0) if options.task is Task.masked_lm else None
    train = RowSet(_take(texts.train, options.samples))
    data = TrainingData(
        train=TokenBatches(train, options, seed, masking, device, is_training=True),
        validation=TokenBatches(RowSet(texts.validation), options, seed, masking, device, is_training=False),
        is_made_up=False,
    )
    return data, vocabulary.padding if texts.is_padded else None


class RowSet(Dataset[Batch]):
    """Memory-mapped samples; one indexing operation returns a complete batch."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows.ids)

    def __getitems__(self, indices: list[int]) -> Batch:
        labels = np.zeros(len(indices), np.int64) if self._rows.labels is None else self._rows.labels[indices]
        return torch.from_numpy(np.asarray(self._rows.ids[indices])), torch.from_numpy(labels)


class TokenBatches(Loader):
    """Batches of token ids from the host; the tokens to predict are chosen on the device."""

    def __init__(
        self,
        dataset: Dataset[Any],
        options: TrainText,
        seed: int,
        masking: _Masking | None,
        device: torch.device,
        *,
        is_training: bool,
    ) -> None:
        super().__init__(dataset, options, seed, is_training=is_training, pin_memory=device.type == "cuda")
        self._task, self._seed, self._masking, self._device = options.task, seed, masking, device
        self._random = torch.Generator(device)

    def epoch(self, number: int) -> Iterator[Batch]:
        self.name_epoch(number)
        self._random.manual_seed(mix_seeds(self._seed, 3, number))
        for ids, labels in self:
            ids, labels = ids.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True)
            yield _prepare(self._task, ids, labels, self._masking, self._random)


class _Masking(NamedTuple):
    """The number of tokens in the vocabulary of a masked language model, and the id of its mask token."""

    vocabulary_size: int
    mask: int


def _prepare(task: Task, ids: Tensor, labels: Tensor, masking: _Masking | None, random: torch.Generator) -> Batch:
    ids = ids.long()
    if task is Task.causal_lm:
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    return (ids, labels) if masking is None else _mask(ids, masking, random)


def _mask(ids: Tensor, masking: _Masking, random: torch.Generator) -> Batch:
    """Choose tokens to predict, at least one per sample, and mask or replace most of them, as for BERT."""
    choice, treatment = torch.rand((2, *ids.shape), generator=random, device=ids.device)
    is_predicted = choice < _PREDICTED
    is_predicted[:, 0] |= ~is_predicted.any(1)
    replacements = torch.randint(masking.vocabulary_size, ids.shape, generator=random, device=ids.device)
    inputs = torch.where(is_predicted & (treatment < _MASKED), masking.mask, ids)
    is_replaced = is_predicted & (treatment >= _MASKED) & (treatment < _MASKED + _REPLACED)
    return torch.where(is_replaced, replacements, inputs), torch.where(is_predicted, ids, IGNORED)


def _open_synthetic(options: TrainText, seed: int, vocabulary_size: int, device: torch.device) -> TrainingData:
    masking = _Masking(vocabulary_size, _SYNTHETIC_MASK) if options.task is Task.masked_lm else None
    num_samples = options.samples or SYNTHETIC_SAMPLES
    # Predicting the next token of the last position needs one more token.
    length = options.sequence_tokens + (options.task is Task.causal_lm)

    def make_ids(count: int) -> Tensor:
        return torch.randint(_SYNTHETIC_FIRST, vocabulary_size, (count, length), generator=generator(seed, 0))

    def make_labels(count: int) -> Tensor:
        return torch.randint(options.num_classes or 1, (count,), generator=generator(seed, 1))

    def make_batches(count: int) -> Batch:
        return _prepare(options.task, make_ids(count), make_labels(count), masking, generator(seed, 3))

    if options.source is DataSource.synthetic_device:
        train: DeviceBatches | TokenBatches = DeviceBatches(make_batches, num_samples, options.batch_size, device)
    else:
        samples = PooledSamples(make_ids(_SYNTHETIC_POOL), make_labels(num_samples))
        train = TokenBatches(samples, options, seed, masking, device, is_training=True)
    return TrainingData(train=train, validation=None, is_made_up=True)


def _take(rows: Rows, count: int | None) -> Rows:
    """Return this number of samples; they are the same for all seeds."""
    num_rows = len(rows.ids)
    if count is None or count == num_rows:
        return rows
    if count > num_rows:
        raise ValueError(
            f"--samples {count} is more than the {num_rows} training samples of the data set; use {num_rows} or less"
        )
    return rows.select(np.sort(np.random.default_rng(0).permutation(num_rows)[:count]))
