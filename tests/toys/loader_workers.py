"""PyTorch with loader processes, which logs its speed through MLflow at every epoch."""

import argparse
import time

import mlflow
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((64,), index / self.number), index % 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=512)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Images(options.samples), 32, num_workers=options.workers, persistent_workers=True)
    with mlflow.start_run():
        mlflow.log_params(vars(options))
        for epoch in range(options.epochs):
            began = time.perf_counter()
            for images, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
            rate = options.samples / (time.perf_counter() - began)
            mlflow.log_metrics({"loss": loss.item(), "train/samples_per_second": rate}, step=epoch)


if __name__ == "__main__":
    main()
