"""Texts become tokens once, for all jobs, and again when what they are made of has changed."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from workloads.text import text_data
from workloads.text.documents import LanguageReference, TextFolder

_TEXTS = {"birds": ["the wren sings", "a hawk", "geese fly south " * 20], "fish": ["cod", "an eel swims"]}


def write(folder: Path, texts: dict[str, list[str]] = _TEXTS) -> Path:
    for name, class_texts in texts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number, text in enumerate(class_texts):
            (folder / name / f"{number}.txt").write_text(text)
    return folder


def list_token_folders(cache: Path) -> set[str]:
    """The folders of tokens, without their locks."""
    return {path.name for path in cache.iterdir() if path.is_dir()}


def test_a_text_is_a_sample_cut_or_filled_up(tmp_path):
    cache = tmp_path / "cache"
    vocabulary = text_data.train_vocabulary(1000, cache)
    dataset = text_data.tokenise(TextFolder(write(tmp_path / "animals")), vocabulary, 8, cache, is_stream=False)
    assert (dataset.num_classes, dataset.is_padded) == (2, True)
    ids, labels = dataset.train.ids, dataset.train.labels
    assert labels is not None and labels.tolist() == [0, 0, 0, 1] and dataset.validation.labels.tolist() == [1]
    assert (ids[:, 0] == vocabulary.begin).all()
    lengths = (ids != vocabulary.padding).sum(1)
    assert lengths.max() == 8 and lengths.min() < 8
    assert all(row[length - 1] == vocabulary.end for row, length in zip(ids, lengths, strict=True))


def test_long_texts_are_whole_passages_and_every_fifth_validates(tmp_path):
    vocabulary = text_data.train_vocabulary(1000, tmp_path)
    dataset = text_data.tokenise(LanguageReference(3), vocabulary, 32, tmp_path, is_stream=False)
    assert not dataset.is_padded and len(dataset.train.ids) > 100
    assert len(dataset.validation.ids) == (len(dataset.train.ids) + len(dataset.validation.ids)) // 5
    assert set(np.unique(dataset.validation.labels)) == {0, 1, 2}
    rows = {row.tobytes() for row in dataset.train.ids}
    assert sum(row.tobytes() in rows for row in dataset.validation.ids) < len(dataset.validation.ids) // 10


@pytest.mark.slow
def test_tokens_are_made_once_and_anew_when_a_text_has_changed(tmp_path):
    cache, folder = tmp_path / "cache", write(tmp_path / "animals")
    vocabulary = text_data.train_vocabulary(1000, cache)
    text_data.tokenise(TextFolder(folder), vocabulary, 8, cache, is_stream=False)
    before = list_token_folders(cache)
    text_data.tokenise(TextFolder(folder), vocabulary, 8, cache, is_stream=False)
    assert list_token_folders(cache) == before
    (folder / "fish" / "0.txt").write_text("a cod of another length")
    text_data.tokenise(TextFolder(folder), vocabulary, 8, cache, is_stream=False)
    assert len(list_token_folders(cache) - before) == 1
    text_data.tokenise(TextFolder(folder), vocabulary, 6, cache, is_stream=False)
    text_data.tokenise(TextFolder(folder), vocabulary, 6, cache, is_stream=True)
    text_data.tokenise(TextFolder(folder), text_data.train_vocabulary(500, cache), 6, cache, is_stream=False)
    assert len(list_token_folders(cache)) == len(before) + 5, "three more, and another tokeniser"


def _read(cache: Path, barrier, answers) -> None:
    barrier.wait()
    vocabulary = text_data.train_vocabulary(1000, cache)
    dataset = text_data.tokenise(LanguageReference(None), vocabulary, 64, cache, is_stream=True)
    answers.put((os.getpid(), isinstance(dataset.train.ids, np.memmap), int(dataset.train.ids.sum())))


@pytest.mark.slow
def test_several_jobs_at_once_share_one_map(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(3), context.Queue()
    jobs = [context.Process(target=_read, args=(tmp_path, barrier, answers)) for _ in range(3)]
    for job in jobs:
        job.start()
    job_answers = [answers.get(timeout=300) for _ in jobs]
    for job in jobs:
        job.join()
    assert len({total for *_, total in job_answers}) == 1
    assert all(is_mapped for _, is_mapped, _ in job_answers)
    assert len(list_token_folders(tmp_path)) == 2


@pytest.mark.parametrize(
    ("texts", "message"),
    [({}, "has 0 folders of text files"), ({"birds": ["a"]}, "has 1 folders of text files")],
)
def test_a_folder_without_two_classes_is_refused(tmp_path, texts, message):
    folder = write(tmp_path / "animals", texts)
    folder.mkdir(exist_ok=True)
    with pytest.raises(ValueError, match=message):
        TextFolder(folder)


def test_halves_of_a_folder_are_taken_as_they_are(tmp_path):
    write(tmp_path / "animals" / "train")
    write(tmp_path / "animals" / "val", {"birds": ["owl"], "fish": ["ray", "pike"]})
    vocabulary = text_data.train_vocabulary(1000, tmp_path / "cache")
    dataset = text_data.tokenise(TextFolder(tmp_path / "animals"), vocabulary, 8, tmp_path / "cache", is_stream=False)
    assert (dataset.train.labels.tolist(), dataset.validation.labels.tolist()) == ([0, 0, 0, 1, 1], [0, 1, 1])
    write(tmp_path / "animals" / "val", {"snakes": ["asp"]})
    with pytest.raises(ValueError, match="different classes"):
        TextFolder(tmp_path / "animals")
