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
# For each attention implementation that it knows, transformers builds a mask, and for this reads values from the device
# at every step (is there padding, are sequences packed?). An implementation with an unknown name gets the mask that the
# caller passes.
_SDPA = "sdpa_without_looking"


class TextModel(nn.Module):
    """A model of transformers, from token ids to logits.

    Attributes:
        model: the model of transformers, with `generate` and similar methods.
        text_config: configuration of the text model in a multimodal model, else of the model.
        padding: id of padding tokens, which attention ignores; `None` if sequences are full or attention is causal.
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
        """Return the logits for ids [batch, tokens].

        Their shape is [batch, classes] for a classifier, else [batch, tokens, vocabulary].
        """
        mask = None if self.padding is None else self._mask(ids != self.padding)
        options = {"use_cache": False} if self.config.model_type == "gpt2" else {}
        logits: Tensor = self.model(input_ids=ids, attention_mask=mask, **options).logits
        return logits

    def _mask(self, is_text: Tensor) -> Tensor:
        """Return the attention mask [batch, 1, tokens, tokens]; before transformers 5, a mask [batch, tokens]."""
        if not takes_graphs():
            return is_text.long()
        mask = is_text[:, None, None, :].expand(-1, 1, is_text.shape[1], -1)
        if self.config._attn_implementation != "eager":
            return mask
        return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, torch.finfo(torch.float32).min)


def read_config(
    kind: str, arguments: Mapping[str, Any], *, num_classes: int | None = None, weights: Path | None = None
) -> Any:
    """Return transformers' configuration of a model; if `weights` is given, read it from that folder.

    Args:
        kind: `model_type` of transformers.
        arguments: values that override the defaults of the configuration.
        num_classes: number of classes of a classifier.
        weights: folder of a trained model.

    Raises:
        ValueError: the kind is unknown, or the weights belong to another model.
    """
    _prepare()
    from transformers import AutoConfig

    labels = {} if num_classes is None else {"num_labels": num_classes}
    if weights is None:
        return AutoConfig.for_model(kind, **arguments, **labels)
    config = AutoConfig.from_pretrained(str(weights), local_files_only=True, **labels)
    if config.model_type != kind:
        raise ValueError(
            f"{weights} contains a model of type {config.model_type}, not {kind}; use --model {config.model_type}"
        )
    for name, wish in arguments.items():
        if getattr(config, name, wish) != wish:
            raise ValueError(f"{weights} has {name}={getattr(config, name)}, not {wish}; remove this model argument")
    return config


def build(
    config: Any, task: Task, *, weights: Path | None = None, attention: str = "sdpa", padding: int | None = None
) -> TextModel:
    """Build a model in fp32 on the CPU, in training mode; random weights depend on torch's seed.

    Args:
        config: result of `read_config`.
        task: task, which determines the head.
        weights: folder of a trained model.
        attention: `sdpa` for torch's fused attention, `eager` for separate matrix products.
        padding: id of padding tokens, if samples are padded.
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
        # If the number of classes differs, the head is initialised anew; all other weights are loaded.
        model = head.from_pretrained(
            str(weights),
            config=config,
            attn_implementation=attention,
            local_files_only=True,
            ignore_mismatched_sizes=True,
            dtype=torch.float32,
        )
    # A decoder needs no padding id, because it never attends to padding after the end of a sequence.
    return TextModel(model.float().train(), None if task is Task.causal_lm else padding)


def load() -> None:
    """Import everything needed to build a model."""
    _prepare()
    import transformers.models.bert.modeling_bert
    import transformers.models.distilbert.modeling_distilbert
    import transformers.models.gpt2.modeling_gpt2  # noqa: F401


def digest_weights(folder: Path | None) -> str | None:
    """Return a digest of the weights of a trained model; `None` for random weights."""
    if folder is None:
        return None
    digest = sha256()
    for path in sorted(path for suffix in ("safetensors", "bin") for path in folder.glob(f"*.{suffix}")):
        with path.open("rb") as file:
            digest.update(file_digest(file, "sha256").digest())
    return digest.hexdigest()


def takes_graphs() -> bool:
    """Return whether a CUDA graph can capture a step; transformers < 5 reads values from the GPU in each step."""
    import transformers

    return int(transformers.__version__.partition(".")[0]) >= 5


def _prepare() -> None:
    """Prevent transformers from using the network, importing an incompatible torchvision, and drawing progress bars."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if importlib.util.find_spec("torchvision") is not None:
        from workloads.images.vision import import_torchvision

        import_torchvision()
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
