"""A matrix product and the sum of its elements, with expected values computed on the CPU in integers.

The numbers are so small that a GPU's result is exact in every number format (fp32, TF32, even bf16 inputs) and in any
summation order. So any difference is an error.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import chain
from operator import mul

Matrix = list[list[float]]

ROWS = 128
_LARGEST = 3


@dataclass(frozen=True)
class Task:
    """Two square matrices, their product as computed on the CPU, and the sum of the product's elements."""

    a: Matrix
    b: Matrix
    product: Matrix
    total: float

    @classmethod
    def make(cls, rows: int = ROWS, seed: int = 0) -> Task:
        numbers = random.Random(seed)  # noqa: S311  numbers, not secrets
        a, b = (
            [[float(numbers.randint(-_LARGEST, _LARGEST)) for _ in range(rows)] for _ in range(rows)] for _ in range(2)
        )
        columns = list(zip(*b, strict=True))
        product = [[sum(map(mul, row, column)) for column in columns] for row in a]
        return cls(a, b, product, sum(map(sum, product)))

    def describe_difference(self, product: Matrix, total: float) -> str:
        """Describe how an answer differs from the CPU's result; return an empty string if they are equal."""
        if [len(row) for row in product] != [len(row) for row in self.product]:
            size = len(self.product)
            return f"the product has {len(product)} rows, instead of {size} rows of {size} numbers"
        pairs = list(zip(chain.from_iterable(product), chain.from_iterable(self.product), strict=True))
        wrong = [(element, expected) for element, expected in pairs if element != expected]
        if wrong:
            element, expected = wrong[0]
            return (
                f"{len(wrong)} of {len(pairs)} elements of the product are wrong: {element:g} instead of {expected:g}"
            )
        return "" if total == self.total else f"the sum is {total:g} instead of {self.total:g}"
