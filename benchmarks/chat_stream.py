"""Measures the chat while a very long reply streams into it."""

from benchmarks.measure import format_summary
from benchmarks.reference import Interpreter
from benchmarks.report import Row
from benchmarks.workplace import run_beside_empty_loop

_STALL_LIMIT, _GROWTH_MB = 6.3, 60.0


def run(*, quick: bool) -> list[Row]:
    """Stream 100,000 tokens at 500 a second (2,000 tokens for a quick run), beside an empty Qt loop."""
    tokens = 2_000 if quick else 100_000
    bare = Interpreter()
    bare.start(5)
    chat, empty = run_beside_empty_loop(tokens / 500, "chat_stream_child", str(tokens))
    bare.start(5)
    rate = chat["tokens"] / (chat["seconds"] + 3)
    what = f"a reply of {tokens:,} tokens ({chat['characters']:,.0f} characters) at {rate:.0f} tokens/s in the chat"
    turn = "longest processor time of one turn of that loop, which other work on the machine does not lengthen"
    return [
        bare.row(f"longest stall of the loop while {what} streams", [chat["max_ms"]], "ms", 1, _STALL_LIMIT),
        bare.row(turn, [chat["busy_max_ms"]], "ms", 1, _STALL_LIMIT),
        Row("99th percentile of these turns", format_summary([chat["busy_p99_ms"]], "ms", 1)),
        Row("99th percentile of its stalls", format_summary([chat["p99_ms"]], "ms", 1)),
        Row("longest stall of an empty loop beside it", format_summary([empty["max_ms"]], "ms", 1)),
        Row(
            "growth of memory meanwhile, including the saved conversation",
            format_summary([chat["grown_mb"]], "MB", 1),
            limit=f"< {_GROWTH_MB:.0f} MB",
            kept=chat["grown_mb"] < _GROWTH_MB,
        ),
        Row("own processor time meanwhile", format_summary([chat["cpu_percent"]], "% of a core", 1)),
    ]
