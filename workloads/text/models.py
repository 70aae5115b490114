"""Models of transformers, built from their configuration or from weights in a folder. Nothing is downloaded."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workloads.text.options import Task

_HEADS = {
    Task.classification: "AutoModelForSequenceClassification",
    Task.masked_lm: "AutoModelForMaskedLM",
    Task.causal_lm: "AutoModelForCausalLM",
}
# transformers makes a mask for each attention that it knows, and for that reads values of the device at every step
# (are there paddings, are sequences packed?). An attention with a name of its own gets the mask that is handed in.
_SDPA = "sdpa_without_looking"


class TextModel(nn.Module):
    """A model of transformers, from token ids to logits.

    Attributes:
        model: with `generate` and the like.
        text_config: the part of the configuration for text, where others are for images or sound.
        padding: the id of tokens that no other looks at; `None` where sequences are full, or no token looks ahead.
    """

    def __init__(self, model: Any, padding: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.padding = padding

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def text_config(self) -> Any:
        return self.config.get_text_config()

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits of ids [batch, tokens]: [batch, classes] to classify, else [batch, tokens, vocabulary]."""
        mask = None if self.padding is None else self._mask(ids != self.padding)
        options = {"use_cache": False} if self.config.model_type == "gpt2" else {}
        logits: Tensor = self.model(input_ids=ids, attention_mask=mask, **options).logits
        return logits

    def _mask(self, is_text: Tensor) -> Tensor:
        """Return the mask that the attention adds, [batch, 1, 1, tokens], or where it looks, as version 4 wants it."""
        if not takes_graphs():
            return is_text.long()
        mask = is_text[:, None, None, :].expand(-1, 1, is_text.shape[1], -1)
        if self.config._attn_implementation != "eager":
            return mask
        return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, torch.finfo(torch.float32).min)


def read_config(
    kind: str, arguments: Mapping[str, Any], *, num_classes: int | None = None, weights: Path | None = None
) -> Any:
    """Return transformers' configuration of a model, that of its weights if it has some.

    `kind` is a `model_type` of transformers, `arguments` differ from its defaults; `ValueError` if there is no such
    kind, or if the weights are of another model.
    """
    _prepare()
    from transformers import AutoConfig

    labels = {} if num_classes is None else {"num_labels": num_classes}
    if weights is None:
        return AutoConfig.for_model(kind, **arguments, **labels)
    config = AutoConfig.from_pretrained(str(weights), local_files_only=True, **labels)
    if config.model_type != kind:
        raise ValueError(f"{weights} holds a {config.model_type}, not a {kind}")
    for name, wish in arguments.items():
        if getattr(config, name, wish) != wish:
            raise ValueError(f"{weights}: {name} is {getattr(config, name)}, not {wish}")
    return config


def build(
    config: Any, task: Task, *, weights: Path | None = None, attention: str = "sdpa", padding: int | None = None
) -> TextModel:
    """Return the model, in fp32 on the CPU, in training mode; random weights depend on torch's seed.

    Args:
        config: of `read_config`.
        task: of its head.
        weights: folder of a trained model.
        attention: `sdpa`, torch's fused attention, or `eager`, product by product.
        padding: the id of the tokens that fill short sequences up, if there are any.
    """
    import transformers

    head = getattr(transformers, _HEADS[task])
    if attention == "sdpa" and takes_graphs():
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        attention = _SDPA
        transformers.AttentionInterface.register(_SDPA, sdpa_attention_forward)
    if weights is None:
        model = head.from_config(config, attn_implementation=attention)
    else:
        # Heads of another number of classes are made anew; everything else is as in the weights' own configuration.
        model = head.from_pretrained(
            str(weights),
            config=config,
            attn_implementation=attention,
            local_files_only=True,
            ignore_mismatched_sizes=True,
            dtype=torch.float32,
        )
    # A decoder never sees the padding after the end of a sequence.
    return TextModel(model.float().train(), None if task is Task.causal_lm else padding)


def load() -> None:
    """Import all that building a model needs."""
    _prepare()
    import transformers.models.bert.modeling_bert
    import transformers.models.distilbert.modeling_distilbert
    import transformers.models.gpt2.modeling_gpt2  # noqa: F401


def digest_weights(folder: Path | None) -> str | None:
    """Return a digest of the weights of a trained model; `None` of random ones."""
    if folder is None:
        return None
    digest = sha256()
    for path in sorted(path for suffix in ("safetensors", "bin") for path in folder.glob(f"*.{suffix}")):
        with path.open("rb") as file:
            digest.update(file_digest(file, "sha256").digest())
    return digest.hexdigest()


def takes_graphs() -> bool:
    """Return whether a step can be captured as a CUDA graph: before version 5 transformers reads the device in each."""
    import transformers

    return int(transformers.__version__.partition(".")[0]) >= 5


def _prepare() -> None:
    """Keep transformers from asking the net, from a torchvision that does not load, and from drawing progress bars."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if importlib.util.find_spec("torchvision") is not None:
        from workloads.images.vision import import_torchvision

        import_torchvision()
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
