"""The options of text training (`workloads/train_text.py`)."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workloads.model_options import NO_GPU, SHARES_DROPOUT, DataSource, StepMode, Training
from workloads.options import CONTENT, PLACE, Device, option
from workloads.text.documents import list_halves

TextModel = enum.Enum("TextModel", "bert distilbert gpt2", start=0)
Task = enum.Enum("Task", "classification masked_lm causal_lm", start=0)
Attention = enum.Enum("Attention", "sdpa eager", start=0)

TINY_BERT = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}
PYDOC = "pydoc"
"""The data set that is included in Python: its language reference. Other data sets are folders of text files."""
# For each model type, the names of the number of positions and of the layer width, and their defaults. Source:
# transformers' configuration classes.
_POSITIONS = {
    TextModel.bert: ("max_position_embeddings", 512),
    TextModel.distilbert: ("max_position_embeddings", 512),
    TextModel.gpt2: ("n_positions", 1024),
}
_WIDTHS = {TextModel.bert: "hidden_size", TextModel.distilbert: "dim", TextModel.gpt2: "n_embd"}
_USUAL_WIDTH = 768
# A classification sample has a special token at each end, and at least one other token.
_LEAST_TOKENS = 3
_MOST_IN_A_BATCH, _MOST_TOKENS = 16, 64  # limits of a rehearsal: a step must be complete within the window


def count_positions(model: TextModel, config: Mapping[str, Any]) -> tuple[str, int | None]:
    """Return the option for the number of positions of a model type, and its value; `None` if it is no number."""
    name, default = _POSITIONS[model]
    positions = config.get(name, default)
    return name, positions if isinstance(positions, int) else None


@dataclass(kw_only=True)
class TrainText(Training):
    """Train a model of transformers on text."""

    script = "workloads/train_text.py"
    preload = "workloads.text_imports"
    work_unit = "sequences"

    model: TextModel = option(help="model type in transformers")
    model_args: dict[str, Any] = option({}, help="changes to transformers' configuration of the model")
    task: Task = option(
        Task.classification, help="task; `causal_lm` for `gpt2`, `classification` or `masked_lm` for other models"
    )
    weights: str | None = option(
        None, path=CONTENT, help="folder of a trained model with its tokeniser; without it, random weights"
    )
    attention: Attention = option(Attention.sdpa, help="attention: torch's fused kernel, or separate matrix products")
    dataset: str = option(
        PYDOC, help="data set: `pydoc` with `source=disk`, or a folder of texts below `data_root` with `source=files`"
    )
    cache_root: str | None = option(None, path=PLACE, help="folder for tokenised texts; `null`: in the user's cache")
    sequence_tokens: int = option(least=1, help="tokens per sample")
    num_classes: int | None = option(None, least=1, help="number of classes; for pydoc, number of topics")
    samples: int | None = option(
        None, least=1, help="training samples per epoch; `null`: all, or 10,000 for synthetic data"
    )
    learning_rate: float | None = option(None, help="learning rate; `null`: 1e-4, or 5e-5 with `weights`")

    def explain_own_process(self) -> str:
        if self.step_mode is not StepMode.cuda_graph:
            return SHARES_DROPOUT
        return super().explain_own_process()

    def packages(self) -> tuple[str, ...]:
        return ("transformers",)

    def check(self, device: Device) -> None:
        super().check(device)
        decodes = self.model is TextModel.gpt2
        if decodes != (self.task is Task.causal_lm):
            fitting = "causal_lm" if decodes else "classification or masked_lm"
            raise ValueError(f"task={self.task.name} does not fit model={self.model.name}; use {fitting}")
        if self.task is Task.classification and self.num_classes is None:
            raise ValueError("task=classification needs num_classes; add it")
        if self.task is not Task.classification and self.num_classes is not None:
            raise ValueError(f"num_classes={self.num_classes} has no effect with task={self.task.name}; remove it")
        if self.weights == "":
            raise ValueError("weights is empty; set workload.weights=FOLDER to the folder of a trained model")
        self._check_source()
        if self.task is Task.classification and self.sequence_tokens < _LEAST_TOKENS:
            raise ValueError(
                f"sequence_tokens={self.sequence_tokens} is too small to classify; use {_LEAST_TOKENS} or more"
            )
        if self.weights is None:
            self._check_positions(self.model_args)
        width = self.model_args.get(_WIDTHS[self.model], _USUAL_WIDTH)
        is_large = self.weights is None and isinstance(width, int) and width >= _USUAL_WIDTH
        if is_large and not device.is_gpu and not device.was_chosen:
            raise ValueError(
                f"a model of width {width} is too large to train on CPUs unless gpu=cpu is set, and {NO_GPU}"
            )

    def _check_source(self) -> None:
        if self.source is DataSource.synthetic_files:
            raise ValueError("source=synthetic_files exists only for images; use synthetic_host or synthetic_device")
        if self.source is DataSource.files and self.dataset == PYDOC:
            raise ValueError(
                "source=files needs a folder of texts, but the data set pydoc is read from the Python installation; "
                "use source=disk"
            )
        if self.source is DataSource.disk and self.dataset != PYDOC:
            raise ValueError(f"source=disk is for dataset={PYDOC}; for a folder of texts, use source=files")

    def _check_positions(self, config: Mapping[str, Any]) -> None:
        name, positions = count_positions(self.model, config)
        if positions is not None and self.sequence_tokens > positions:
            raise ValueError(
                f"sequence_tokens={self.sequence_tokens} is more than the {positions} positions of the model ({name}); "
                "use fewer"
            )

    def check_data(self) -> None:
        if self.weights:
            self._check_weights(Path(self.weights))
        if self.source is DataSource.files:
            remedy = f"workload.source=disk workload.dataset={PYDOC} to train on the text that is included in Python"
            folder = self.find_folder(self.dataset, self.dataset, remedy)
            num_classes = len(list_halves(folder)[0])
            if self.num_classes is not None and num_classes > self.num_classes:
                raise ValueError(
                    f"num_classes={self.num_classes} is too few for the {num_classes} classes in {folder}; use "
                    f"{num_classes}"
                )

    def _check_weights(self, folder: Path) -> None:
        for name in ("config.json", "tokenizer.json"):
            if not (folder / name).is_file():
                raise ValueError(f"weights={folder} does not contain {name}; use a folder that save_pretrained wrote")
        if not any(path for suffix in ("safetensors", "bin") for path in folder.glob(f"*.{suffix}")):
            raise ValueError(
                f"weights={folder} contains no weights (*.safetensors, *.bin); use a folder that save_pretrained wrote"
            )
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            kind = config["model_type"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"weights={folder} has a config.json that cannot be used ({type(error).__name__}: {error}); "
                "use a folder that save_pretrained wrote"
            ) from error
        if kind != self.model.name:
            raise ValueError(f"weights={folder} contains a {kind}, but model={self.model.name}; use model={kind}")
        for name, value in self.model_args.items():
            if name in config and config[name] != value:
                raise ValueError(
                    f"weights={folder} has {name}={config[name]}, but model_args.{name}={value}; use "
                    "workload=bert_finetune, which takes these arguments from the weights"
                )
        self._check_positions(config)

    def small(self) -> TinyText:
        return TinyText(
            batch_size=min(self.batch_size, _MOST_IN_A_BATCH), sequence_tokens=min(self.sequence_tokens, _MOST_TOKENS)
        )


@dataclass(kw_only=True)
class TinyText(TrainText):
    """Train a small BERT on Python's language reference: real training without a download."""

    name = "tiny_text"

    model: TextModel = TextModel.bert
    model_args: dict[str, Any] = field(
        default_factory=lambda: {**TINY_BERT, "vocab_size": 2048, "max_position_embeddings": 512}
    )
    num_classes: int | None = 10
    sequence_tokens: int = 64
    batch_size: int = 16
    learning_rate: float | None = 0.001
    loader_workers: int = 0
    threads: int | None = 1
    warmup_steps: int = 3
    validate: bool = True
