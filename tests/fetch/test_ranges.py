"""Ranges of bytes, held against plain sets of positions."""

import itertools
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from launcher.fetch.journal import Span, clip_spans, count_bytes, find_gaps, merge_spans

SPANS = st.lists(st.builds(lambda begin, length: Span(begin, begin + length), st.integers(0, 60), st.integers(0, 20)))


def positions(spans: Iterable[Span]) -> set[int]:
    return {position for begin, end in spans for position in range(begin, end)}


@given(SPANS)
def test_merged_spans_hold_the_same_bytes_in_order_and_apart(spans: list[Span]) -> None:
    result = merge_spans(spans)
    assert positions(result) == positions(spans)
    assert all(span.length > 0 for span in result)
    assert all(one.end < other.begin for one, other in itertools.pairwise(result))


@given(SPANS, st.integers(0, 90))
def test_gaps_are_exactly_the_missing_bytes(spans: list[Span], size: int) -> None:
    missing = find_gaps(spans, size)
    assert positions(missing) == set(range(size)) - positions(spans)
    assert missing == merge_spans(missing)


@given(SPANS, st.integers(0, 90))
def test_clipped_spans_and_gaps_make_up_the_file(spans: list[Span], size: int) -> None:
    there = clip_spans(spans, size)
    assert positions(there) == positions(spans) & set(range(size))
    assert count_bytes(there) + count_bytes(find_gaps(spans, size)) == size


@given(SPANS)
def test_a_byte_counts_once(spans: list[Span]) -> None:
    assert count_bytes(spans) == len(positions(spans))
