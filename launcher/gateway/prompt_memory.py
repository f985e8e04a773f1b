"""Finds out why an engine has read a prompt again. Keeps hashes of the parts of prompts, and no text."""

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from launcher.engine.server.reread import BILLING_HEADER, Reread, RereadCause
from launcher.gateway.exchange import Exchange

_REMEMBERED = 32
_LEAST_TOKENS = 1_024
"""Fewest tokens read again that are reported, because engines keep checkpoints about that far apart."""
_UNSEEN = ("id", "status")
"""Fields of an item of the Responses API that no template writes; Codex makes the IDs anew in each session."""
_LEAST_SHARE = 0.2
_MOST_BYTES = 4 << 20
"""Larger requests, such as those with images, are left out: hashing them would hold up the others."""
_encode = json.JSONEncoder(ensure_ascii=False).encode
_OUT_OF_SLOT = {RereadCause.RESTART, RereadCause.OTHER_CLIENT, RereadCause.CACHE_LIMIT}
"""Causes for which a conversation is kept on disk."""
_SAME_AGENT_SHARE = 0.5
"""Share of an earlier prompt that must reappear after a change if both are to count as one conversation."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a prompt: what it is, a hash of its text, and its length in characters."""

    label: str
    digest: bytes
    characters: int


@dataclass(frozen=True, slots=True)
class _Prompt:
    parts: tuple[_Part, ...]
    model: str | None
    client: tuple[str, str]
    engine: int
    dropped: int

    @property
    def characters(self) -> int:
        return sum(part.characters for part in self.parts)


class PromptMemory:
    """Remembers the last prompts of a server by their hashes."""

    def __init__(self) -> None:
        self._prompts: deque[_Prompt] = deque(maxlen=_REMEMBERED)
        self._engine = 0

    def note_engine_start(self) -> None:
        """Record that an engine was started, which knows no prompt unless slots were restored."""
        self._engine += 1

    def note_prompt(self, exchange: Exchange, *, dropped: int = 0) -> Reread | None:
        """Record a request that has ended; return what the engine read again, None if that is little or unknown.

        `dropped` counts the prompts that the engine has dropped from its cache in host memory until now. A request
        whose prompt the engine refused, or may not have read, is not remembered.
        """
        if (
            exchange.body is None
            or exchange.figures.reused_tokens is None
            or len(exchange.raw) > _MOST_BYTES
            or not (parts := tuple(_split_prompt(exchange.body)))
        ):
            return None
        client = exchange.key_name, exchange.user_agent
        prompt = _Prompt(parts, exchange.served_by, client, self._engine, dropped)
        found = _blame_disk(self._find_reread(prompt, exchange), exchange)
        self._prompts.append(prompt)
        return found

    def _find_reread(self, prompt: _Prompt, exchange: Exchange) -> Reread | None:
        figures = exchange.figures
        total, reused = figures.prompt_tokens, figures.reused_tokens
        if not total or reused is None or total - reused < (least := _find_least(total)):
            return None
        known = [each for each in reversed(self._prompts) if each.model == prompt.model]
        if not known:
            return None
        earlier = max(known, key=lambda each: _count_same_start(each, prompt))
        characters, place = _count_same_start(earlier, prompt), ""
        similar = max(
            (each for each in known if each.client == prompt.client),
            key=lambda each: _count_same_anywhere(each, prompt),
            default=None,
        )
        if similar is not None and _count_same_anywhere(similar, prompt) > max(
            characters, _SAME_AGENT_SHARE * similar.characters
        ):
            earlier, characters = similar, _count_same_anywhere(similar, prompt)
            place = _find_change(similar, prompt)
        lost = int(total * characters / prompt.characters) - reused
        if lost < least:
            return None
        lost = min(lost, total - reused)
        cause = self._find_cause(prompt, earlier, place, reused, is_last=earlier is known[0])
        return Reread(lost, _estimate_seconds(exchange, lost, total - reused), cause, place)

    def _find_cause(self, prompt: _Prompt, earlier: _Prompt, place: str, reused: int, *, is_last: bool) -> RereadCause:
        if earlier.engine != self._engine and not (place and reused):  # reused tokens show that the slot was restored
            return RereadCause.RESTART
        if place:
            return RereadCause.CHANGED_PREFIX
        if is_last:
            return RereadCause.CHECKPOINT
        return RereadCause.CACHE_LIMIT if prompt.dropped > earlier.dropped else RereadCause.OTHER_CLIENT


def _find_least(total: int) -> float:
    """Return the fewest tokens of a prompt that are reported."""
    return max(_LEAST_TOKENS, _LEAST_SHARE * total)


def _blame_disk(found: Reread | None, exchange: Exchange) -> Reread | None:
    """Return what was read again, with the reason why it did not come from the disk, if that is known.

    After a start only what is kept on disk tells that an earlier engine had read a prompt.
    """
    figures = exchange.figures
    unused, total, reused = figures.unused_state, figures.prompt_tokens, figures.reused_tokens
    if unused is None or not total or reused is None or (found is not None and found.cause not in _OUT_OF_SLOT):
        return found
    if found is not None:
        return replace(found, cause=unused.cause)
    lost = min(unused.tokens, total) - reused
    if lost < _find_least(total):
        return None
    return replace(unused, tokens=lost, seconds=_estimate_seconds(exchange, lost, total - reused))


def _split_prompt(body: Mapping[str, Any]) -> Iterator[_Part]:
    """Yield the parts of a prompt in the order in which chat templates write them."""
    for label, part, text in _encode_parts(body):
        is_header = isinstance(part, dict) and str(part.get("text")).startswith(BILLING_HEADER)
        yield _Part(BILLING_HEADER if is_header else label, blake2b(text, digest_size=8).digest(), len(text))


def encode_prompt(body: Mapping[str, Any]) -> tuple[list[bytes], bytes, int]:
    """Return the texts of a prompt's parts in the order in which chat templates write them: tools, system, messages.

    The other values are a hash of all up to the first question, and the bytes before that question.
    """
    texts, opening, size, has_question = [], blake2b(digest_size=8), 0, False
    for label, _, text in _encode_parts(body):
        texts.append(text)
        if not has_question:
            opening.update(text)
            has_question = label.startswith("user")
            size += 0 if has_question else len(text)
    return texts, opening.digest(), size


def _encode_parts(body: Mapping[str, Any]) -> Iterator[tuple[str, Any, bytes]]:
    """Yield each part of a prompt with its label and its text."""
    for name in ("tools", "system", "instructions", "messages", "input", "prompt"):
        content = body.get(name)
        if not content:
            continue
        each_apart = isinstance(content, list) and name != "tools"
        for number, part in enumerate(content if each_apart else [content], 1):
            label = part.get("role", name) if isinstance(part, dict) else name
            shown = {key: part[key] for key in part if key not in _UNSEEN} if isinstance(part, dict) else part
            yield f"{label} {number}", part, _encode(shown).encode("utf-8", "replace")


def _count_same_start(earlier: _Prompt, prompt: _Prompt) -> int:
    """Return how many characters both prompts begin with, in whole parts."""
    count = 0
    for old, new in zip(earlier.parts, prompt.parts, strict=False):
        if old.digest != new.digest:
            break
        count += new.characters
    return count


def _count_same_anywhere(earlier: _Prompt, prompt: _Prompt) -> int:
    """Return how many characters of a prompt are in parts that the earlier prompt had as well, in any order."""
    known = {part.digest for part in earlier.parts}
    return sum(part.characters for part in prompt.parts if part.digest in known)


def _find_change(earlier: _Prompt, prompt: _Prompt) -> str:
    """Return the first part that differs."""
    for old, new in zip(earlier.parts, prompt.parts, strict=False):
        if old.digest != new.digest:
            return new.label
    return ""


def _estimate_seconds(exchange: Exchange, lost: int, read: int) -> float | None:
    """Return the seconds that reading the lost tokens took, as their part of the time until the first token."""
    if exchange.first_token is None or read <= 0:
        return None
    return max(0.0, exchange.first_token - exchange.started) * lost / read
