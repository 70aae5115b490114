"""Training data for `train_text`: batches of token ids on the device."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workloads.data.folders import make_once
from workloads.text.documents import LanguageReference, Source, Text

if TYPE_CHECKING:
    from tokenizers import Tokenizer
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from workloads.data.batches import (
    IGNORED,
    Batch,
    DeviceBatches,
    Loader,
    PooledSamples,
    TrainingData,
    generator,
    mix_seeds,
    require_classes,
)
from workloads.data.folders import cache_folder
from workloads.model_options import DataSource
from workloads.text.documents import TextFolder
from workloads.text.options import PYDOC, Task, TrainText

Ids = npt.NDArray[np.int32]
Labels = npt.NDArray[np.int64]

# This version is part of the folder names; increase it when the files created here change.
_VERSION = 1
_MOST_TOKENS = 8192
"""Maximum size of the byte-pair tokeniser; further tokens would hardly occur twice in its training text."""
_PADDING, _BEGIN, _END, _MASK = "[PAD]", "[CLS]", "[SEP]", "[MASK]"
_SPECIAL = (_PADDING, _BEGIN, _END, _MASK)
_END_OF_TEXT = "<|endoftext|>"
_EVERY = 5
"""One in five samples is used for validation if the data set has no validation texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The properties of a tokeniser that a model needs.

    Attributes:
        digest: digest of the tokeniser's file.
        padding, begin, mask: ids of special tokens; `None` in a decoder's tokeniser, which has only an end token.
    """

    file: Path
    digest: str
    size: int
    end: int
    padding: int | None
    begin: int | None
    mask: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Samples: their token ids [samples, tokens], and their classes, if any."""

    ids: Ids
    labels: Labels | None

    def select(self, rows: npt.NDArray[Any]) -> Rows:
        return Rows(ids=self.ids[rows], labels=None if self.labels is None else self.labels[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenisedTexts:
    """A tokenised data set.

    Attributes:
        is_padded: whether some samples are padded, because they are shorter than others.
    """

    train: Rows
    validation: Rows
    is_padded: bool
    num_classes: int


def train_vocabulary(model_tokens: int, cache: Path) -> Vocabulary:
    """Return the tokeniser of models with random weights; train it if it is not in the cache.

    It has `model_tokens` tokens, but at most 8192.
    """
    text = LanguageReference(None)
    size = min(model_tokens, _MOST_TOKENS)
    name = sha256(json.dumps([_VERSION, text.digest, size]).encode()).hexdigest()[:16]
    return read_vocabulary(make_once(cache / f"tokeniser-{name}", lambda folder: _train(folder, text, size)))


def read_vocabulary(folder: Path) -> Vocabulary:
    """Return the tokeniser in a folder."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise FileNotFoundError(f"{folder} does not contain tokenizer.json; use a folder that save_pretrained wrote")
    tokeniser = _open(file)
    padding, begin, mask, end, end_of_text = map(tokeniser.token_to_id, (_PADDING, _BEGIN, _MASK, _END, _END_OF_TEXT))
    end = end_of_text if end is None else end
    if end is None:
        raise ValueError(f"{file} has no end token ({_END} or {_END_OF_TEXT}); use another tokeniser")
    return Vocabulary(
        file=file,
        digest=sha256(file.read_bytes()).hexdigest(),
        size=tokeniser.get_vocab_size(),
        end=end,
        padding=padding,
        begin=begin,
        mask=mask,
    )


def tokenise(source: Source, vocabulary: Vocabulary, length: int, cache: Path, *, is_stream: bool) -> TokenisedTexts:
    """Return samples of `length` tokens; create them if they are not in the cache.

    With `is_stream`, all texts are concatenated and cut into samples, which have no classes. Otherwise each text is a
    sample, cut or padded; if texts are long, each is split into several samples.

    Raises:
        ValueError: there is too little text.
    """
    kind = "stream" if is_stream else "samples"
    parts = [_VERSION, source.digest, vocabulary.digest, length]
    name = sha256(json.dumps(parts).encode()).hexdigest()[:16]
    folder = make_once(cache / f"{kind}-{name}", lambda partial: _write(partial, source, vocabulary, length, is_stream))
    facts = json.loads((folder / "facts.json").read_text())
    return TokenisedTexts(
        train=_rows(folder, "train"),
        validation=_rows(folder, "validation"),
        is_padded=facts["is_padded"],
        num_classes=facts["num_classes"],
    )


def _rows(folder: Path, half: str) -> Rows:
    labels = folder / f"{half}_labels.npy"
    ids = np.load(folder / f"{half}_ids.npy", mmap_mode="r")
    return Rows(ids=ids, labels=np.load(labels) if labels.exists() else None)


def _write(folder: Path, source: Source, vocabulary: Vocabulary, length: int, is_stream: bool) -> None:
    documents = source.read()
    tokeniser = _open(vocabulary.file)

    def make_rows(texts: Iterable[Text]) -> Rows:
        if is_stream:
            return _cut_stream(texts, tokeniser, vocabulary.end, length)
        return _cut_samples(texts, tokeniser, vocabulary, length, are_long=documents.are_long)

    train = make_rows(documents.train)
    if documents.validation is None:
        is_validation = np.arange(len(train.ids)) % _EVERY == _EVERY - 1
        train, validation = train.select(~is_validation), train.select(is_validation)
    else:
        validation = make_rows(documents.validation)
    if not (len(train.ids) and len(validation.ids)):
        raise ValueError(f"the text is too short for samples of {length} tokens; use fewer --sequence-tokens")
    for half, rows in (("train", train), ("validation", validation)):
        np.save(folder / f"{half}_ids.npy", rows.ids)
        if rows.labels is not None:
            np.save(folder / f"{half}_labels.npy", rows.labels)
    is_padded = bool((train.ids == vocabulary.padding).any() or (validation.ids == vocabulary.padding).any())
    facts = {"is_padded": not is_stream and is_padded, "num_classes": len(documents.classes)}
    (folder / "facts.json").write_text(json.dumps(facts))


def _cut_samples(
    texts: Iterable[Text], tokeniser: Tokenizer, vocabulary: Vocabulary, length: int, *, are_long: bool
) -> Rows:
    begin, end, padding = vocabulary.begin, vocabulary.end, vocabulary.padding
    if begin is None or padding is None:
        raise ValueError(
            f"{vocabulary.file} has no {_BEGIN} and {_PADDING}; use the weights of a model for classification"
        )
    room = length - 2
    ids: list[list[int]] = []
    labels: list[int] = []
    for encoded, label in _encode(texts, tokeniser):
        full = len(encoded) - len(encoded) % room
        parts = [encoded[at : at + room] for at in range(0, full, room)] if are_long else [encoded[:room]]
        ids += [[begin, *part, end, *[padding] * (room - len(part))] for part in parts]
        labels += [label] * len(parts)
    return Rows(ids=np.array(ids, np.int32).reshape(-1, length), labels=np.array(labels, np.int64))


def _cut_stream(texts: Iterable[Text], tokeniser: Tokenizer, end: int, length: int) -> Rows:
    stream = itertools.chain.from_iterable([*encoded, end] for encoded, _ in _encode(texts, tokeniser))
    ids = np.fromiter(stream, np.int32)
    return Rows(ids=ids[: len(ids) - len(ids) % length].reshape(-1, length), labels=None)


def _encode(texts: Iterable[Text], tokeniser: Tokenizer) -> Iterator[tuple[list[int], int]]:
    for text, label in texts:
        yield tokeniser.encode(text, add_special_tokens=False).ids, label


def _open(file: Path) -> Tokenizer:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # threads do not survive the fork of data loaders
    from tokenizers import Tokenizer

    tokeniser = Tokenizer.from_file(str(file))
    tokeniser.no_truncation()
    tokeniser.no_padding()
    return tokeniser


def _train(folder: Path, source: Source, size: int) -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokeniser = Tokenizer(models.BPE())
    tokeniser.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokeniser.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(_SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokeniser.train_from_iterator((text for text, _ in source.read().train), trainer)
    tokeniser.save(str(folder / "tokenizer.json"))


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
        vocabulary = train_vocabulary(vocabulary_size, cache)
    else:
        vocabulary = read_vocabulary(Path(options.weights))
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
    texts = tokenise(source, vocabulary, length, cache, is_stream=not is_classification)
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
