"""Interpretation of a server's response, tested without a server."""

import email.utils
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.base.errors import RateLimited
from launcher.base.http import ResponseHead, parse_retry_after
from launcher.fetch.journal import DownloadIdentity
from launcher.fetch.transfer import AcceptedResponse, ConnectionTrouble, NextStep, check_response

SHA256 = "ab" * 32
KNOWN = DownloadIdentity("https://example.org/model.gguf", 1000, SHA256, '"one"')
OF_UNKNOWN_HASH = DownloadIdentity("https://example.org/model.gguf", 1000, None, '"one"')


def judge_response(
    status: int, begin: int = 0, known: DownloadIdentity = KNOWN, *, host: str = "example.org", **headers: str
) -> AcceptedResponse | NextStep:
    answer = ResponseHead(status, {name.replace("_", "-"): value for name, value in headers.items()})
    try:
        return check_response(answer, begin, known, host=host, requested_host="example.org", name="model.gguf")
    except ConnectionTrouble as trouble:
        return trouble.next_step


@pytest.mark.parametrize(
    ("known", "etag", "expected"),
    [
        (KNOWN, '"one"', AcceptedResponse(1000, '"one"', supports_ranges=True)),
        (KNOWN, '"two"', AcceptedResponse(1000, '"two"', supports_ranges=True)),  # the hash decides
        (OF_UNKNOWN_HASH, '"one"', AcceptedResponse(1000, '"one"', supports_ranges=True)),
        (OF_UNKNOWN_HASH, '"two"', NextStep.START_OVER),
    ],
)
def test_a_partial_response_is_accepted(
    known: DownloadIdentity, etag: str, expected: AcceptedResponse | NextStep
) -> None:
    assert judge_response(206, 400, known, content_range="bytes 400-999/1000", etag=etag) == expected


@pytest.mark.parametrize(
    ("known", "headers", "expected"),
    [
        (KNOWN, {"etag": '"one"', "content_length": "1000"}, NextStep.NO_RANGES),
        (KNOWN, {"etag": '"two"', "content_length": "1000"}, NextStep.WITHOUT_CONDITION),
        (OF_UNKNOWN_HASH, {"etag": '"two"', "content_length": "1000"}, NextStep.START_OVER),
        (OF_UNKNOWN_HASH, {"etag": '"two"', "content_length": "1200"}, NextStep.START_OVER),
        (KNOWN, {"etag": '"one"', "content_length": "1200"}, NextStep.GIVE_UP),
        (KNOWN, {"etag": '"one"', "transfer_encoding": "chunked"}, NextStep.NO_RANGES),
        (KNOWN, {"transfer_encoding": "chunked"}, NextStep.UNSURE),
        (KNOWN, {"transfer_encoding": "chunked", "content_type": "text/html"}, NextStep.GIVE_UP),
        (KNOWN, {"content_length": "1000", "content_type": "text/html"}, NextStep.NO_RANGES),
    ],
)
def test_a_complete_response_in_place_of_a_part_is_accepted(
    known: DownloadIdentity, headers: dict[str, str], expected: NextStep
) -> None:
    assert judge_response(200, 400, known, **headers) == expected


@pytest.mark.parametrize(
    ("status", "host", "expected"),
    [
        *[(status, "example.org", NextStep.GIVE_UP) for status in (400, 401, 403, 404, 405, 410, 451)],
        *[(status, "store.example.org", NextStep.RETRY) for status in (401, 403, 404, 410)],
        *[(status, "example.org", NextStep.RETRY) for status in (408, 425, 429, 500, 502, 503, 504)],
        (304, "example.org", NextStep.GIVE_UP),
    ],
)
def test_errors_are_classified(status: int, host: str, expected: NextStep) -> None:
    assert judge_response(status, host=host) is expected


def test_rate_limits_are_distinguished() -> None:
    with pytest.raises(ConnectionTrouble) as caught:
        check_response(ResponseHead(429, {"retry-after": "9"}), 0, KNOWN, host="a", requested_host="a", name="x")
    assert isinstance(caught.value.error, RateLimited)
    assert caught.value.wait_s == 9


@given(st.integers(0, 999), st.integers(0, 1100), st.integers(0, 1100), st.integers(0, 1100))
def test_a_response_with_another_range_is_refused(begin: int, first: int, last: int, size: int) -> None:
    outcome = judge_response(206, begin, content_range=f"bytes {first}-{last}/{size}")
    if isinstance(outcome, AcceptedResponse):
        assert (first, size) == (begin, 1000)
        assert begin <= last
    else:
        assert outcome in (NextStep.NO_RANGES, NextStep.GIVE_UP)


@given(st.text(max_size=40), st.text(max_size=10) | st.just("9" * 5000))
def test_invalid_headers_do_not_crash(content_range: str, length: str) -> None:
    for status in (200, 206, 416):
        judge_response(status, 5, content_range=content_range, content_length=length)


@pytest.mark.parametrize(
    ("text", "seconds"), [("7", 7.0), (" 12 ", 12.0), ("", None), ("soon", None), ("-1", None), ("1e9", None)]
)
def test_retry_after_in_seconds_is_parsed(text: str, seconds: float | None) -> None:
    assert parse_retry_after(text) == seconds


def test_retry_after_as_a_date_is_parsed() -> None:
    assert parse_retry_after(email.utils.formatdate(time.time() + 3_000, usegmt=True)) == pytest.approx(3_000, abs=600)
    assert parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
