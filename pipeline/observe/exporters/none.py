"""Nobody is shown anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from pipeline.base.domain.protocols import Live, Showing
from pipeline.base.domain.records import Group


class NoExporter:
    """The study runs unseen."""

    @contextmanager
    def serving(self) -> Iterator[Showing]:
        yield _nothing


def _nothing(group: Group, live: Live) -> AbstractContextManager[None]:
    return nullcontext()
