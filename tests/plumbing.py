"""Leaves out the engine arguments that differ between runs of the same server."""

from collections.abc import Sequence

from launcher.engine.arguments import START_FLAGS


def leave_out_start_flags(arguments: Sequence[str]) -> list[str]:
    """Return arguments without address, key, name, log and slot files: what a plan and its server have in common."""
    left, words = [], iter(arguments)
    for word in words:
        if word not in START_FLAGS:
            left.append(word)
        elif START_FLAGS[word]:
            next(words, None)
    return left
