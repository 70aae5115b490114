"""Random kills, faults and inputs, with a seed, against studies on a simulated machine (docs/reliability.md).

    python -m tests.attack --seconds 600 --seed 1 [--only kills]

Each attack is told by its seed: what does not hold prints the command that repeats it.
"""
