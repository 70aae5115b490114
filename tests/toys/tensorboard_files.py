"""A script that logs its loss and its speed in TensorBoard files, and prints nothing; needs no torch."""

import argparse
import time

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:  # neither torch nor tensorboard must be there
    from event_writer import SummaryWriter


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--logdir", default="runs")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args()
    writer = SummaryWriter(options.logdir)
    for step in range(options.steps):
        began = time.perf_counter()
        time.sleep(0.05)
        writer.add_scalar("train/loss", 1 / (step + 1), step)
        writer.add_scalar("train/samples_per_second", options.batch_size / (time.perf_counter() - began), step)
    writer.close()


if __name__ == "__main__":
    main()
