"""The options of text training, with its own checks."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import MISSING

from pipeline.base.errors import ConfigError
from pipeline.base.paths import expanded
from pipeline.base.records import Device
from pipeline.plan.workloads import SEE_PLAN, DataSource, TrainingConfig

TextModel = enum.Enum("TextModel", "bert distilbert gpt2", start=0)
"""Kinds of models of transformers, by their `model_type`."""

Task = enum.Enum("Task", "classification masked_lm causal_lm", start=0)
"""What a text model learns: the class of a text, masked tokens, or the next token."""

Attention = enum.Enum("Attention", "sdpa eager", start=0)
"""torch's fused attention (`scaled_dot_product_attention`), or product by product."""

_PYDOC = "pydoc"
# Source: transformers' configurations: what the kinds call their positions and the width of a layer, and the default.
_POSITIONS = {
    TextModel.bert: ("max_position_embeddings", 512),
    TextModel.distilbert: ("max_position_embeddings", 512),
    TextModel.gpt2: ("n_positions", 1024),
}
_WIDTHS = {TextModel.bert: "hidden_size", TextModel.distilbert: "dim", TextModel.gpt2: "n_embd"}
# A model of the usual width takes hours an epoch on CPUs: nobody means it who did not say so.
_USUAL_WIDTH = 768
# A sample to classify begins and ends with a token of its own.
_LEAST_TOKENS = 3


def positions_of(model: TextModel, config: Mapping[str, Any]) -> tuple[str, int | None]:
    """What a kind of model calls its positions, and how many it has; `None` if they are no number."""
    name, default = _POSITIONS[model]
    positions = config.get(name, default)
    return name, positions if isinstance(positions, int) else None


@dataclass
class TrainTextConfig(TrainingConfig):
    """Text classification and language modelling with a model of transformers (`workloads/train_text.py`).

    Attributes:
        model_args: what differs from the defaults of transformers' configuration.
        weights: folder of a trained model with its tokeniser; it is trained from random weights if not given.
        dataset: `pydoc`, or a folder below `data_root` with a folder of text files for each class.
        cache_root: where tokens go; a folder in the user's cache if not given.
        sequence_tokens: tokens of a sample.
        num_classes: of a classification; of pydoc, so many topics.
        samples: training samples an epoch; as many as there are if not given, 10,000 of synthetic data.
    """

    NODE: ClassVar[str] = "train_text"

    script: str = "workloads/train_text.py"
    preload: str | None = "workloads.text_imports"
    unit: str = "sequences"
    model: TextModel = MISSING
    model_args: dict[str, Any] = field(default_factory=dict)
    task: Task = Task.classification
    weights: str | None = None
    attention: Attention = Attention.sdpa
    dataset: str = _PYDOC
    sequence_tokens: int = MISSING
    num_classes: int | None = None

    def packages(self) -> tuple[str, ...]:
        return ("transformers",)

    def own_options(self) -> dict[str, Any]:
        options = super().own_options()
        if self.weights:
            options["weights"] = str(self._weights())
        return options

    def check(self, device: Device, *, device_was_chosen: bool) -> None:
        super().check(device, device_was_chosen=device_was_chosen)
        self._refuse_below(1, "sequence_tokens", "num_classes")
        decodes = self.model is TextModel.gpt2
        if decodes != (self.task is Task.causal_lm):
            fitting = "causal_lm" if decodes else "classification and masked_lm"
            raise self._refused(f"task={self.task.name} is not for model={self.model.name}, which is for {fitting}")
        if (self.task is Task.classification) != (self.num_classes is not None):
            raise self._refused(f"num_classes={self.num_classes}: task=classification needs it, other tasks have none")
        if self.weights == "":
            raise self._refused("weights are not given; workload.weights=FOLDER names the folder of a trained model")
        self._check_source()
        if self.task is Task.classification and self.sequence_tokens < _LEAST_TOKENS:
            raise self._refused(f"sequence_tokens={self.sequence_tokens} leaves no token of a text to classify")
        if self.weights is None:
            self._check_positions(self.model_args)
        width = self.model_args.get(_WIDTHS[self.model], _USUAL_WIDTH)
        is_large = self.weights is None and isinstance(width, int) and width >= _USUAL_WIDTH
        if is_large and not device.is_gpu and not device_was_chosen:
            raise ConfigError(
                f"workload {self.name} trains a model of width {width} and no GPU was found; "
                f"use gpu=cpu to train on the CPUs anyway, or {SEE_PLAN}"
            )

    def _check_source(self) -> None:
        if self.source is DataSource.synthetic_files:
            raise self._refused("source=synthetic_files is for images; use synthetic_host or synthetic_device")
        if self.source is DataSource.files and self.dataset == _PYDOC:
            raise self._refused("source=files is for a folder of texts, and pydoc comes with Python; use source=disk")
        if self.source is DataSource.disk and self.dataset != _PYDOC:
            raise self._refused(f"source=disk is for dataset={_PYDOC}; a folder of texts is source=files")

    def _check_positions(self, config: Mapping[str, Any]) -> None:
        name, positions = positions_of(self.model, config)
        if positions is not None and self.sequence_tokens > positions:
            raise self._refused(
                f"sequence_tokens={self.sequence_tokens} is more than the {positions} positions of the model ({name})"
            )

    def check_data(self) -> None:
        if self.weights:
            self._check_weights()
        if self.source is DataSource.files:
            instead = f"workload.source=disk workload.dataset={_PYDOC} to train on what comes with Python"
            self._check_folder(self._folder_of(self.dataset, self.dataset, instead))

    def _weights(self) -> Path:
        return expanded("workload.weights", str(self.weights)).resolve()

    def _check_weights(self) -> None:
        folder = self._weights()
        for what in ("config.json", "tokenizer.json"):
            if not (folder / what).is_file():
                raise self._refused(f"weights={folder} holds no {what}; give a folder that save_pretrained made")
        if not any(path for suffix in ("safetensors", "bin") for path in folder.glob(f"*.{suffix}")):
            raise self._refused(f"weights={folder} holds no weights (*.safetensors, *.bin)")
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            kind = config["model_type"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._refused(
                f"weights={folder}: config.json is not of a model: {type(error).__name__}: {error}"
            ) from error
        if kind != self.model.name:
            raise self._refused(f"weights={folder} are of a {kind}, and model={self.model.name}")
        for name, value in self.model_args.items():
            if name in config and config[name] != value:
                raise self._refused(
                    f"weights={folder} have {name}={config[name]}, and model_args.{name}={value}; "
                    "workload=bert_finetune takes the weights' own"
                )
        self._check_positions(config)

    def _check_folder(self, folder: Path) -> None:
        """Refuse a data set without two classes, or of more classes than the model is to tell apart."""
        half = folder / "train" if all((folder / name).is_dir() for name in ("train", "val")) else folder
        entries = [entry for entry in half.iterdir() if entry.is_dir() and not entry.name.startswith((".", "_"))]
        classes = [entry for entry in entries if any(path.is_file() for path in entry.iterdir())]
        if len(classes) < 2:
            raise self._refused(
                f"{half} holds {len(classes)} folders of text files; a folder for each class is wanted, two at least"
            )
        if self.num_classes is not None and len(classes) > self.num_classes:
            raise self._refused(f"{half} holds {len(classes)} classes: num_classes={self.num_classes} is too few")
