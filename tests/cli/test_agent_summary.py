"""The lines at the end of an agent's session."""

from typing import Any

from launcher.base.codec import to_json
from launcher.cli.agent_summary import summarize_requests
from launcher.engine.server.reread import Reread, RereadCause
from launcher.gateway.request_log import RequestRecord


def record(**figures: Any) -> dict[str, Any]:  # noqa: ANN401 -- as the fields of a record
    """A request that has ended, as JSON."""
    known = {"end": "complete", **figures}
    return to_json(RequestRecord("a-1", 0.0, "default", "agent/1", "demo", "/v1/messages", "ended", **known))


def summarize(*records: dict[str, Any], context: int | None = 16_384) -> list[str]:
    return list(summarize_requests(records, context, "choose a larger context"))


def test_reading_reuse_and_drafts_are_summed_up() -> None:
    first = record(prompt_tokens=5_000, reused_tokens=0, drafted=100, accepted=80)
    second = record(prompt_tokens=5_200, reused_tokens=4_990)
    assert summarize(first, second) == ["2 requests: 5,210 prompt tokens read, 4,990 reused, 80 % of drafts accepted."]
    assert summarize(second) == ["1 request: 210 prompt tokens read, 4,990 reused."]
    assert summarize() == summarize(record(end=None)) == []


def test_tokens_read_again_are_reported_with_the_cause() -> None:
    reread = Reread(4_096, 3.2, RereadCause.OTHER_CLIENT)
    lost = record(prompt_tokens=5_200, reused_tokens=0, reread=reread)
    assert summarize(lost)[1:] == [
        "4,096 prompt tokens were read again, 3 s lost. Another conversation had the slot in between."
    ]


def test_prompts_that_were_too_long_are_reported_with_the_longest() -> None:
    long, longer = (record(end="too long", prompt_tokens=tokens) for tokens in (20_000, 30_000))
    (one,) = summarize(long)
    assert one.startswith("A prompt was refused as too long: it had 20,000 tokens, and the context has 16,384. Begin")
    (both,) = summarize(long, longer)
    assert both.startswith("2 prompts were refused as too long: the longest had 30,000 tokens")
    (unknown,) = summarize(record(end="too long"), context=None)
    assert unknown == "A prompt was refused as too long. Begin a new conversation, or choose a larger context."


def test_requests_that_failed_are_counted() -> None:
    assert summarize(record(end="engine ended"), record(end="error"), record(end="client left")) == [
        "2 requests failed: see `mtp-launcher requests`."
    ]
