"""The exporter of a study without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from pipeline.base.domain.protocols import Showing


class NoExporter:
    """Shows nothing."""

    @contextmanager
    def serving(self) -> Iterator[Showing]:
        yield lambda group, live: nullcontext()
