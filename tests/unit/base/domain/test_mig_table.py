"""Names of GPU models."""

from __future__ import annotations

import pytest

from pipeline.base.domain import mig_table
from pipeline.base.system.errors import ConfigError


@pytest.mark.parametrize("prefix", ["", "simulated_"])
def test_a_name_with_a_typing_mistake_is_answered_with_names_of_its_kind(prefix: str) -> None:
    near = (
        rf"^GPU model '{prefix}h100_8gb' is unknown; did you mean {prefix}h100_80gb\? Or choose one of {prefix}a30_24gb"
    )
    with pytest.raises(ConfigError, match=near):
        mig_table.find(f"{prefix}h100_8gb")
