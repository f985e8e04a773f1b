"""Ranges of bytes: which parts of a file are there, and which are not."""

from collections.abc import Iterable
from typing import NamedTuple


class Span(NamedTuple):
    """The bytes from `begin` up to `end`, exclusive."""

    begin: int
    end: int

    @property
    def length(self) -> int:
        """How many bytes those are."""
        return self.end - self.begin


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the same bytes as few spans, in order, none of them empty, touching or overlapping another."""
    joined: list[Span] = []
    for span in sorted(spans):
        if span.end <= span.begin:
            continue
        if joined and span.begin <= joined[-1].end:
            joined[-1] = Span(joined[-1].begin, max(joined[-1].end, span.end))
        else:
            joined.append(span)
    return joined


def clipped(spans: Iterable[Span], size: int) -> list[Span]:
    """Return what of the spans lies in the first `size` bytes, merged."""
    return merged(Span(max(begin, 0), min(end, size)) for begin, end in spans)


def gaps(spans: Iterable[Span], size: int) -> list[Span]:
    """Return what is missing of the first `size` bytes, in order."""
    missing, position = [], 0
    for span in [*clipped(spans, size), Span(size, size)]:
        if span.begin > position:
            missing.append(Span(position, span.begin))
        position = span.end
    return missing


def n_bytes(spans: Iterable[Span]) -> int:
    """Return how many bytes there are; each counts once."""
    return sum(span.length for span in merged(spans))
