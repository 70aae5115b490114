"""Plain PyTorch, as a researcher writes it: random data, a small network, a line an epoch, a checkpoint."""

import argparse
import time

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--out", default="model.pt")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images = torch.randn(options.samples, 3, 16, 16, device=device)
    labels = torch.randint(10, (options.samples,), device=device)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 144, 10)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(1, options.epochs + 1):
        began = time.perf_counter()
        for batch in torch.randperm(options.samples, device=device).split(options.batch_size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        rate = options.samples / (time.perf_counter() - began)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s")
    torch.save(model.state_dict(), options.out)


if __name__ == "__main__":
    main()
