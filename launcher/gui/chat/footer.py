"""The line under a reply, in the window's language."""

from typing import TYPE_CHECKING

from launcher.base.units import percent, rate
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.app import Reply


def footer_of(reply: "Reply") -> str:
    """Return rate, tokens, time to the first one, accepted drafts, and why it ended, as far as they are known."""
    parts, drafts = [], reply.acceptance
    if reply.timings is not None:
        parts.append(rate(reply.timings.tokens_per_second))
        parts.append(tr("{count} tokens", count=reply.timings.predicted_n))
    if reply.first_token_s is not None:
        parts.append(tr("first token {seconds:.2f} s", seconds=reply.first_token_s))
    if drafts.rate is not None:
        share, mean = percent(drafts.rate), drafts.mean_length or 1.0
        parts.append(tr("{share} of drafts accepted (mean {mean:.1f})", share=share, mean=mean))
    if reply.finish_reason:
        parts.append(tr("stopped: {why}", why=_ends().get(reply.finish_reason, reply.finish_reason)))
    return " · ".join(parts)


def _ends() -> dict[str, str]:
    return {"stop": tr("end"), "length": tr("token limit")}
