"""Models of text are those of transformers: fused attention computes what the plain one does, padding is not seen."""

from __future__ import annotations

import pytest
import torch

from workloads.text import models
from workloads.text.options import Task

_BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_SMALL = {
    "bert": _BERT,
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
    config = models.read_config("bert", _BERT, num_classes=5, weights=tmp_path)
    again = models.build(config, Task.classification, weights=tmp_path)
    assert again.config.num_labels == 5  # a head of its own
    with pytest.raises(ValueError, match="hidden_size=32, not 768"):
        models.read_config("bert", {"hidden_size": 768}, weights=tmp_path)
    with pytest.raises(ValueError, match="contains a model of type bert, not gpt2"):
        models.read_config("gpt2", {}, weights=tmp_path)
