"""Texts as token ids, made once and mapped into memory by all jobs that read them. No torch here.

The byte-pair tokeniser of models that start from nothing is trained once on Python's language reference; a trained
model brings its own.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from workloads.data.made_once import made_once
from workloads.text.documents import Documents, LanguageReference, Source, Text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids = npt.NDArray[np.int32]
Labels = npt.NDArray[np.int64]

# To be changed with what is made here: it belongs to the names of the folders.
_VERSION = 1
_MOST_TOKENS = 8192
"""Of our own tokeniser: more would hardly occur twice in what it is trained on."""
_PADDING, _BEGIN, _END, _MASK = "[PAD]", "[CLS]", "[SEP]", "[MASK]"
_SPECIAL = (_PADDING, _BEGIN, _END, _MASK)
_END_OF_TEXT = "<|endoftext|>"
_EVERY = 5
"""Every fifth sample validates where the data set has no half to validate with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What a model must know of a tokeniser.

    Attributes:
        file: of the tokeniser.
        digest: of that file.
        size: the number of its tokens.
        padding, begin, end, mask: ids of special tokens; a tokeniser of a decoder has an end only.
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
    """Samples: token ids [samples, tokens], and the class of each, or none."""

    ids: Ids
    labels: Labels | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenised:
    """A data set as tokens.

    Attributes:
        is_padded: some samples are shorter than the others, and filled up.
        num_classes: that there are.
    """

    train: Rows
    validation: Rows
    is_padded: bool
    num_classes: int


def cache_folder(given: Path | None) -> Path:
    """Return where tokens are kept: the folder given, or one in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return given or cache / "gpu-collocation" / "text"


def own_vocabulary(most: int, cache: Path) -> Vocabulary:
    """Return the tokeniser of models that start from nothing, trained now if it is not there.

    Args:
        most: as many tokens as the model can tell apart.
        cache: where it is kept.
    """
    text = LanguageReference(None)
    size = min(most, _MOST_TOKENS)
    name = sha256(json.dumps([_VERSION, text.digest, size]).encode()).hexdigest()[:16]
    return vocabulary_in(made_once(cache / f"tokeniser-{name}", lambda folder: _train(folder, text, size)))


def vocabulary_in(folder: Path) -> Vocabulary:
    """Return what is to know of the tokeniser of a folder.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it has no token for the end of a text.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise FileNotFoundError(f"{folder} holds no tokenizer.json")
    tokeniser = _open(file)
    end = next((found for name in (_END, _END_OF_TEXT) if (found := tokeniser.token_to_id(name)) is not None), None)
    if end is None:
        raise ValueError(f"{file} has no token for the end of a text ({_END} or {_END_OF_TEXT})")
    padding, begin, mask = map(tokeniser.token_to_id, (_PADDING, _BEGIN, _MASK))
    return Vocabulary(
        file=file,
        digest=sha256(file.read_bytes()).hexdigest(),
        size=tokeniser.get_vocab_size(),
        end=end,
        padding=padding,
        begin=begin,
        mask=mask,
    )


def samples_of(source: Source, vocabulary: Vocabulary, length: int, cache: Path) -> Tokenised:
    """Return each text as a sample of `length` tokens, cut or filled up; of long texts, their whole passages.

    Raises:
        ValueError: nothing is as long.
    """
    return _mapped(source, vocabulary, cache, "samples", length)


def stream_of(source: Source, vocabulary: Vocabulary, length: int, cache: Path) -> Tokenised:
    """Return all texts one after another, cut into samples of `length` tokens, without classes.

    Raises:
        ValueError: there is not that much text.
    """
    return _mapped(source, vocabulary, cache, "stream", length)


def _mapped(source: Source, vocabulary: Vocabulary, cache: Path, kind: str, length: int) -> Tokenised:
    made_of = [_VERSION, source.digest, vocabulary.digest, length]
    name = sha256(json.dumps(made_of).encode()).hexdigest()[:16]
    folder = made_once(cache / f"{kind}-{name}", lambda partial: _tokenise(partial, source, vocabulary, kind, length))
    facts = json.loads((folder / "facts.json").read_text())
    return Tokenised(
        train=_rows(folder, "train"),
        validation=_rows(folder, "validation"),
        is_padded=facts["is_padded"],
        num_classes=facts["num_classes"],
    )


def _rows(folder: Path, half: str) -> Rows:
    labels = folder / f"{half}_labels.npy"
    ids = np.load(folder / f"{half}_ids.npy", mmap_mode="r")
    return Rows(ids=ids, labels=np.load(labels) if labels.exists() else None)


def _tokenise(folder: Path, source: Source, vocabulary: Vocabulary, kind: str, length: int) -> None:
    documents = source.read()
    tokeniser = _open(vocabulary.file)
    make = _stream if kind == "stream" else _samples
    train = make(documents, documents.train, tokeniser, vocabulary, length)
    if documents.validation is None:
        held = np.arange(len(train.ids)) % _EVERY == _EVERY - 1
        train, validation = _chosen(train, ~held), _chosen(train, held)
    else:
        validation = make(documents, documents.validation, tokeniser, vocabulary, length)
    if not (len(train.ids) and len(validation.ids)):
        raise ValueError(f"there is too little text for samples of {length} tokens: --sequence-tokens is too long")
    for half, rows in (("train", train), ("validation", validation)):
        np.save(folder / f"{half}_ids.npy", rows.ids)
        if rows.labels is not None:
            np.save(folder / f"{half}_labels.npy", rows.labels)
    is_padded = bool((train.ids == vocabulary.padding).any() or (validation.ids == vocabulary.padding).any())
    facts = {"is_padded": kind != "stream" and is_padded, "num_classes": len(documents.classes)}
    (folder / "facts.json").write_text(json.dumps(facts))


def _samples(
    documents: Documents, texts: Iterable[Text], tokeniser: Tokenizer, vocabulary: Vocabulary, length: int
) -> Rows:
    begin, end, padding = vocabulary.begin, vocabulary.end, vocabulary.padding
    if begin is None or padding is None:
        raise ValueError(f"{vocabulary.file} has no {_BEGIN} and {_PADDING}: it is not of a model that classifies")
    room = length - 2
    ids: list[list[int]] = []
    labels: list[int] = []
    for encoded, label in _encoded(texts, tokeniser):
        whole = len(encoded) - len(encoded) % room
        parts = [encoded[at : at + room] for at in range(0, whole, room)] if documents.are_long else [encoded[:room]]
        ids += [[begin, *part, end, *[padding] * (room - len(part))] for part in parts]
        labels += [label] * len(parts)
    return Rows(ids=np.array(ids, np.int32).reshape(-1, length), labels=np.array(labels, np.int64))


def _stream(_: Documents, texts: Iterable[Text], tokeniser: Tokenizer, vocabulary: Vocabulary, length: int) -> Rows:
    every = itertools.chain.from_iterable([*encoded, vocabulary.end] for encoded, _ in _encoded(texts, tokeniser))
    flat = np.fromiter(every, np.int32)
    return Rows(ids=flat[: len(flat) - len(flat) % length].reshape(-1, length), labels=None)


def _chosen(rows: Rows, chosen: npt.NDArray[np.bool_]) -> Rows:
    return Rows(ids=rows.ids[chosen], labels=None if rows.labels is None else rows.labels[chosen])


def _encoded(texts: Iterable[Text], tokeniser: Tokenizer) -> Iterator[tuple[list[int], int]]:
    for text, label in texts:
        yield tokeniser.encode(text, add_special_tokens=False).ids, label


def _open(file: Path) -> Tokenizer:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads do not survive the fork of loaders
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
