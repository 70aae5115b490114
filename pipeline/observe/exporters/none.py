"""The default exporter, which publishes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from pipeline.base.domain.protocols import ShowGroup


class NoExporter:
    """An exporter that publishes nothing."""

    @contextmanager
    def serve(self) -> Iterator[ShowGroup]:
        yield lambda group, live: nullcontext()
