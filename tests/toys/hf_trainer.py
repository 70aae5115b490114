"""A `Trainer` of transformers on a small BERT with random weights: nothing is downloaded."""

import argparse
import sys

import torch

sys.modules.setdefault("torchvision", None)  # of no use to a text model, and without CUDA it may not load
from transformers import (  # noqa: E402
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
)


class Sentences(torch.utils.data.Dataset):
    def __init__(self, number: int) -> None:
        self.words = torch.randint(5, 200, (number, 16))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = self.words[index]
        return {"input_ids": words, "labels": words[0] % 2}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sentences", type=int, default=128)
    parser.add_argument("--output-dir", default="checkpoints")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = BertForSequenceClassification(BertConfig(**sizes, intermediate_size=64, max_position_embeddings=32))
    arguments = TrainingArguments(
        output_dir=options.output_dir,
        num_train_epochs=2,
        per_device_train_batch_size=16,
        logging_steps=4,
        save_steps=8,
        report_to="mlflow",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    Trainer(model=model, args=arguments, train_dataset=Sentences(options.sentences)).train()


if __name__ == "__main__":
    main()
