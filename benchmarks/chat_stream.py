"""What a very long reply costs the chat."""

import statistics

from benchmarks.measure import summary
from benchmarks.report import Row
from benchmarks.workplace import child, told

_STALL_MS, _GROWTH_MB = 50.0, 60.0


def run(*, quick: bool) -> list[Row]:
    """Stream 100,000 tokens at 500 a second (10,000 when it is to be quick), each beside an empty Qt loop."""
    tokens, rounds = (10_000, 1) if quick else (100_000, 1)
    seconds = tokens / 500
    pairs = [_beside_an_empty_loop(tokens, seconds) for _ in range(rounds)]
    chats = [chat for chat, _ in pairs]
    rate = statistics.median(chat["tokens"] / (chat["seconds"] + 3) for chat in chats)
    longest, grown = [chat["max_ms"] for chat in chats], [chat["grown_mb"] for chat in chats]
    what = f"a reply of {tokens:,} tokens ({chats[0]['characters']:,.0f} characters) at {rate:.0f} tokens/s in the chat"
    return [
        Row(
            f"longest stall of the loop while {what} streams",
            f"< {_STALL_MS:.0f} ms",
            summary(longest, "ms", 1),
            statistics.median(longest) < _STALL_MS,
        ),
        Row(
            "longest turn of that loop in processor time, which other work on the machine does not lengthen",
            f"< {_STALL_MS:.0f} ms",
            summary([chat["busy_max_ms"] for chat in chats], "ms", 1),
            statistics.median(chat["busy_max_ms"] for chat in chats) < _STALL_MS,
        ),
        Row("99th percentile of these turns", "-", summary([chat["busy_p99_ms"] for chat in chats], "ms", 1), None),
        Row("99th percentile of its stalls", "-", summary([chat["p99_ms"] for chat in chats], "ms", 1), None),
        Row("longest stall of an empty loop beside it", "-", summary([e["max_ms"] for _, e in pairs], "ms", 1), None),
        Row(
            "growth of memory meanwhile, the conversation being kept",
            f"< {_GROWTH_MB:.0f} MB",
            summary(grown, "MB", 1),
            statistics.median(grown) < _GROWTH_MB,
        ),
        Row("own processor time meanwhile", "-", summary([chat["cpu_percent"] for chat in chats], "%", 1), None),
    ]


def _beside_an_empty_loop(tokens: int, seconds: float) -> tuple[dict[str, float], dict[str, float]]:
    with child("chat_stream_child", str(tokens)) as chat, child("window_child", "empty", str(seconds)) as empty:
        return told(chat, seconds), told(empty, seconds)
