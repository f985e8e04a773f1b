"""Frames that are read without parsing: exactly those that differ from an earlier one in their text only."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.gateway.frames import AlikeFrames, ReplyPart, parse_event, read_part


def chat(delta: dict[str, Any], *, created: int = 1, **more: object) -> bytes:
    choice = {"finish_reason": None, "index": 0, "delta": delta}
    event = {"choices": [choice], "created": created, "id": "c-1", "model": "m", "object": "chat.completion.chunk"}
    return b"data: " + json.dumps(event | more, ensure_ascii=False, separators=(",", ":")).encode()


def completion(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text, "index": 0, "finish_reason": None}], "id": "x"}).encode()


def message(text: str) -> bytes:
    event = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
    return b"event: content_block_delta\ndata: " + json.dumps(event).encode()


def content(text: str) -> bytes:
    return chat({"content": text})


def thinking(text: str) -> bytes:
    return chat({"reasoning_content": text})


def learned(frame: bytes) -> AlikeFrames:
    frames, event = AlikeFrames(), parse_event(frame)
    assert event is not None
    part = read_part(event)
    assert part is not None
    frames.learn(frame, part)
    return frames


@pytest.mark.parametrize("make", [content, thinking, completion, message])
@pytest.mark.parametrize("text", [" word", "ü", '"', "\\", "\n", '\\"', '","x":"', "</s>", "🦙", "a\u2028b", "content"])
def test_a_frame_with_other_text_is_read_as_its_parser_would(make: Any, text: str) -> None:  # noqa: ANN401
    event = parse_event(make(text))
    assert event is not None
    assert learned(make(" first")).read_part(make(text)) == read_part(event)


@given(st.text(min_size=1), st.text(min_size=1))
def test_whatever_is_read_is_what_the_parser_reads(first: str, second: str) -> None:
    for make in (content, thinking, message):
        event = parse_event(make(second))
        read = learned(make(first)).read_part(make(second))
        assert read is None or (event is not None and read == read_part(event))


@pytest.mark.parametrize(
    "other",
    [
        chat({"content": " a"}, created=2),
        chat({"content": " a"}, timings={"predicted_n": 1}),
        chat({"content": " a", "role": "assistant"}),
        chat({"reasoning_content": " a"}),
        chat({"content": ""}),
        chat({"tool_calls": []}),
        chat({"content": " a"}) + b'"',
        b": waiting",
        b"data: [DONE]",
        b"",
    ],
)
def test_a_frame_that_differs_otherwise_is_left_to_the_parser(other: bytes) -> None:
    assert learned(chat({"content": " first"})).read_part(other) is None


def test_a_frame_with_its_text_at_two_places_is_no_pattern() -> None:
    frame = chat({"content": "m"})  # the name of the model, too
    assert learned(frame).read_part(chat({"content": " a"})) in (None, ReplyPart(" a"))
    both = chat({"content": " a", "reasoning_content": " b"})
    assert learned(both).read_part(both) is None
