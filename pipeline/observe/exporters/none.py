"""Nobody is shown anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from pipeline.base.domain.protocols import Showing


class NoExporter:
    """The study runs unseen."""

    @contextmanager
    def serving(self) -> Iterator[Showing]:
        yield lambda group, live: nullcontext()
