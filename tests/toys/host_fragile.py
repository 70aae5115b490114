"""A host program whose tenants share a fate: an exception of one of them ends all, as an error of CUDA does."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])
from workloads import tenants  # noqa: E402


class Fragile(tenants.Place):
    def works(self) -> bool:
        return False


def make_place(options: dict, num_tenants: int) -> tenants.Place:
    if "refusal" in options:
        raise tenants.UnsupportedError(options["refusal"])
    return Fragile()


if __name__ == "__main__":
    tenants.run_tenants(make_place)
