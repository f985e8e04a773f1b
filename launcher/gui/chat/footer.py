"""Footer under a reply: its figures in the window's language."""

import re
from typing import TYPE_CHECKING

from launcher.base.units import format_percent, format_rate
from launcher.gui.translation import tr

if TYPE_CHECKING:
    from launcher.monitor.reply import Reply

SEPARATOR = " · "
"""Separator of the figures below a reply."""
_RATE = re.compile(r"[\d.,]+ t/s")


def format_footer(reply: "Reply") -> str:
    """Return rate, tokens, time to first token, draft acceptance and end reason, as far as they are known."""
    parts, acceptance = [], reply.acceptance
    if reply.timings is not None:
        parts.append(format_rate(reply.timings.tokens_per_second))
        parts.append(tr("{count} tokens", count=reply.timings.predicted_n))
    if reply.first_token_s is not None:
        parts.append(tr("first token {seconds:.2f} s", seconds=reply.first_token_s))
    if acceptance.rate is not None:
        share, mean = format_percent(acceptance.rate), acceptance.mean_length or 1.0
        parts.append(tr("{share} of drafts accepted (mean {mean:.1f})", share=share, mean=mean))
    if reply.finish_reason:
        reasons = {"stop": tr("end"), "length": tr("token limit"), "tool_calls": tr("tool call")}
        parts.append(tr("stopped: {why}", why=reasons.get(reply.finish_reason, reply.finish_reason)))
    return SEPARATOR.join(parts)


def split_footer(footer: str) -> tuple[str, str]:
    """Return the rate of a footer, and the rest. The rate is "" if the footer does not begin with one."""
    first, _, rest = footer.partition(SEPARATOR)
    return (first, rest) if _RATE.fullmatch(first) else ("", footer)
