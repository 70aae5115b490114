"""A script that fails after some work, with a long error in the middle of calls, as real ones do."""

import argparse
import sys
import time


def load(path: str) -> list[float]:
    raise KeyError(f"{path} has no column named loss")


def train(steps: int) -> None:
    for step in range(steps):
        time.sleep(0.02)
        print(f"warning: step {step} took long", file=sys.stderr)
    load("table.csv")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    train(parser.parse_args().steps)


if __name__ == "__main__":
    main()
