"""Continuing a stream with another engine: when it may be cut, and the request for the rest.

A completion (without a chat) continues by a prompt that consists of the tokens of its prompt and reply. For a chat, the
same request is sent to the new engine with one more message, the assistant's, which holds what was generated so far,
exactly as generated ("continue_final_message"); in Anthropic's format it is a block of thinking or of text. The
engine's own template and parser go on from there, so the gateway needs to know nothing of either. The raw text comes
from the saved slot: the parser has dropped the marks between thinking and answer, and white space, which would make
other tokens.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

from launcher.gateway.engine_link import EngineLink
from launcher.gateway.exchange import (
    COMPLETIONS_PATH,
    MESSAGES_PATH,
    DeliveredText,
    DrainReason,
    Exchange,
    begins_word,
)
from launcher.gateway.frames import ReplyPart
from launcher.gateway.state_keeper import SavedSlot

_MODES = ("reasoning_content", "content")
"""The fields of an assistant's message that a template may continue."""
TOKENS = "tokens"
"""The mode of a completion, which continues by its tokens."""
_PROBE = "one two three four five"
"""A reply whose tokens are counted, where the engine does not render a prompt but counts its tokens."""
_TEXT_PARTS = frozenset({"text", "thinking", "redacted_thinking", "tool_use", "tool_result"})
"""Parts of messages that are text for the engine."""
_COMPLETION_GRAMMARS, _CHAT_GRAMMARS = ("grammar", "json_schema", "response_format"), ("grammar",)
"""Fields with a grammar at whose root a continued reply would begin again (b11549, b11669). A chat's schema is no such
field: the engine's parser of chats skips what the reply has already."""
_CHOICES = ("n", "n_cmpl", "best_of")
_ANY_SEED = (-1, 0xFFFF_FFFF)
"""Values with which the engine draws a seed itself, as it does without one."""
_LIMITS = ("max_tokens", "max_completion_tokens", "n_predict")
_LEADING = 64
"""Characters that may stand in a reply before the first one that was delivered, such as a mark that thinking begins."""
_TAIL_CHARACTERS = 32
"""Characters at the end of a prompt with which the first token of a reply might be joined."""
_TAIL_TOKENS = 64
"""Prompt tokens that are compared to find a request's slot."""
_LAST_PIECES = 4
_WORDS_BACK = 8
"""Number of words at the end of a reply among which the last canonical one is searched."""
_ANY_BOUNDARY_AFTER = 16
"""Frames after which a stream without spaces, such as Chinese, is cut between any two tokens that are canonical."""

_UNCHECKED_AFTER = 64
"""Frames after which any word's end will do: some tokenizers never make the same pieces of a word by itself."""
_NOTHING = ReplyPart()


@dataclass(frozen=True, slots=True)
class Continuation:
    """The second part of a cut stream: the request to send, and what the first part was.

    `slot` has the conversation, None if it was not saved. `tokens_before` were generated in all earlier parts, whose
    text is `raw`. `prompt_tokens` and `reused_tokens` are those of the client's request. `repeated` is text that the
    client has already, but that the engine is to write again, by its kind.
    """

    request: Mapping[str, Any]
    raw: str
    slot: int | None
    tokens_before: int
    prompt_tokens: int
    reused_tokens: int
    repeated: ReplyPart = _NOTHING

    def without_slot(self) -> Self:
        """Return the same continuation for an engine that has the conversation in no slot."""
        return replace(self, slot=None)


def drain_reason(exchange: Exchange) -> DrainReason | None:
    """Return why a running reply must end before its engine is stopped; None if it may be continued.

    A request of which nothing was delivered can always be sent again.
    """
    body = exchange.body or {}
    if exchange.path == COMPLETIONS_PATH and exchange.streams:
        if read_text_prompt(body) is None or body.get("echo") or body.get("suffix"):
            return DrainReason.PROMPT
        return _choices_reason(body) or _seed_reason(body) or _grammar_reason(body, _COMPLETION_GRAMMARS)
    messages = body.get("messages")
    if not exchange.may_go_on or not isinstance(messages, list) or not messages:
        return DrainReason.API
    if reason := _choices_reason(body) or _seed_reason(body) or _grammar_reason(body, _CHAT_GRAMMARS):
        return reason
    if exchange.text.calls_tool:
        return DrainReason.TOOL_CALL
    if isinstance(messages[-1], dict) and messages[-1].get("role") == "assistant":
        return DrainReason.PREFILL
    if any(part.get("type") not in _TEXT_PARTS for part in _content_parts(messages)):
        return DrainReason.IMAGE
    return None


def may_repeat(exchange: Exchange) -> bool:
    """Return whether an engine that gets the same request again would write the same reply.

    That is so at temperature 0 and with a seed, which llama-server does not take in Anthropic's format (b11549). A call
    of a tool is not compared with what the client has of it.
    """
    body = exchange.body or {}
    is_fixed = body.get("temperature") == 0 or (_has_seed(body) and exchange.path != MESSAGES_PATH)
    return is_fixed and not exchange.text.calls_tool and exchange.may_go_on and not _has_choices(exchange)


def _has_choices(exchange: Exchange) -> bool:
    body = exchange.body or {}
    several = exchange.path == COMPLETIONS_PATH and read_text_prompt(body) is None
    return several or _choices_reason(body) is not None


def repeat_reply(exchange: Exchange) -> Continuation:
    """Return how another engine writes a whole reply again, of which the client gets what it has not."""
    text, figures = exchange.text, exchange.figures
    counts = figures.prompt_tokens or 0, figures.reused_tokens or 0
    return Continuation(exchange.body or {}, "", None, 0, *counts, ReplyPart(text.content, text.reasoning))


def _choices_reason(body: Mapping[str, Any]) -> DrainReason | None:
    return DrainReason.CHOICES if any(body.get(name) not in (None, 1) for name in _CHOICES) else None


def _has_seed(body: Mapping[str, Any]) -> bool:
    return body.get("seed") not in (None, *_ANY_SEED)


def _seed_reason(body: Mapping[str, Any]) -> DrainReason | None:
    """Return a reason if the client relies on a seed: the state of the random numbers is not handed over."""
    return DrainReason.SEED if _has_seed(body) and body.get("temperature") != 0 else None


def _grammar_reason(body: Mapping[str, Any], names: Collection[str]) -> DrainReason | None:
    """Return a reason if the reply follows a grammar that the engine begins at its root for each request."""
    return DrainReason.GRAMMAR if any(body.get(name) for name in names) else None


def read_text_prompt(body: Mapping[str, Any]) -> str | None:
    """Return the prompt of a completion, which may also be a list of one text; None for tokens or several prompts."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        (prompt,) = prompt
    return prompt if isinstance(prompt, str) else None


def _content_parts(messages: list[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of messages, and the parts of what tools have returned in Anthropic's format."""
    for each in messages:
        content = each.get("content") if isinstance(each, dict) else None
        if isinstance(content, list):
            yield from (part for part in content if isinstance(part, dict))
            yield from _content_parts([part for part in content if isinstance(part, dict)])


async def find_mode(link: EngineLink, exchange: Exchange) -> tuple[str, str] | None:
    """Return the request's prompt, and the field by which its template continues a reply; None if it has no such field.

    A field fits if the prompt with a message X is the prompt followed by X. A completion has the mode TOKENS. The
    prompt of a request in Anthropic's format is "": engines do not render it, they only count its tokens.
    """
    body = exchange.body or {}
    if exchange.path == COMPLETIONS_PATH:
        return read_text_prompt(body) or "", TOKENS
    plain = {name: value for name, value in body.items() if name not in ("stream", "stream_options", *_LIMITS)}
    if exchange.path == MESSAGES_PATH:
        return await _find_message_mode(link, plain)
    prompt = await link.render_prompt(plain)
    if prompt is None:
        return None
    for mode in _MODES:
        if await link.render_prompt(_with_reply(exchange.path, plain, mode, "X")) == prompt + "X":
            return prompt, mode
    return None


async def _find_message_mode(link: EngineLink, body: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return what `find_mode` does for a request in Anthropic's format."""
    count = await link.count_prompt(body)
    if count is None:
        return None
    expected = count + len(await link.token_pieces(_PROBE))
    for mode in _MODES:
        if await link.count_prompt(_with_reply(MESSAGES_PATH, body, mode, _PROBE)) == expected:
            return "", mode
    return None


def _with_reply(path: str, body: Mapping[str, Any], mode: str, text: str) -> dict[str, Any]:
    """Return the request for the rest of a reply that begins with `text`."""
    reply: dict[str, Any] = {"role": "assistant", "content": "", mode: text}
    if path == MESSAGES_PATH:
        thinks = mode == "reasoning_content"
        block = {"type": "thinking", "thinking": text, "signature": ""} if thinks else {"type": "text", "text": text}
        reply = {"role": "assistant", "content": [block]}
    return {
        **body,
        "messages": [*body["messages"], reply],
        "continue_final_message": mode,
        "add_generation_prompt": False,
    }


async def may_cut_here(
    link: EngineLink, text: DeliveredText, next_piece: str, frames_waited: int, *, exact: bool
) -> bool:
    """Return whether a stream can be cut before `next_piece` so that the new engine goes on with the same tokens.

    That is so between two words, if the last one consists of the tokens that its text is made of: the sampled tokens
    may be others. In a text without spaces any such boundary will do, and with `exact` any between two tokens, because
    the new engine then gets the tokens themselves.
    """
    if exact:
        return bool(next_piece)
    if begins_word(next_piece):
        last = text.last_pieces[text.word_at :]
        if frames_waited > _UNCHECKED_AFTER:
            return True
    elif frames_waited > _ANY_BOUNDARY_AFTER and next_piece:
        last = text.last_pieces[-_LAST_PIECES:]
    else:
        return False
    return bool(last) and await link.token_pieces("".join(last)) == last


async def is_canonical(link: EngineLink, text: DeliveredText, found: tuple[str, str] | None) -> bool:
    """Return whether a delivered text consists of the tokens that it would be made of, also behind its prompt.

    Otherwise the new engine reads other tokens, and at temperature 0 the reply may go on with other words. `found` is
    what `find_mode` returned. A completion's prompt and reply are tokens of their own.
    """
    # Copies, because both lists go on growing.
    kinds = ((text.reasoning, [*text.reasoning_pieces]), (text.content, [*text.content_pieces]))
    if not all([not whole or await link.token_pieces(whole) == pieces for whole, pieces in kinds]):
        return False
    prompt, mode = found or ("", TOKENS)
    end, begin = prompt[-_TAIL_CHARACTERS:], (text.reasoning_pieces or text.content_pieces)[:1]
    if mode == TOKENS or not end or not begin:
        return True
    return await link.token_pieces(end + begin[0]) == [*await link.token_pieces(end), *begin]


async def make_continuation(
    link: EngineLink,
    exchange: Exchange,
    found: tuple[str, str],
    saved: list[SavedSlot],
    earlier: Continuation | None,
) -> Continuation | None:
    """Return how a cut stream continues; None if it cannot, because it was not saved and the text is not enough.

    `found` is what `find_mode` returned, `earlier` the continuation of a stream that was cut before. Call it while the
    engine that was cut still runs, because it counts the tokens.
    """
    prompt, mode = found
    if mode == TOKENS:
        return await _continue_tokens(link, exchange, saved)
    body = dict(exchange.body or {})
    prompt_tokens = earlier.prompt_tokens if earlier else exchange.figures.prompt_tokens
    raw, slot, count = None, None, 0
    for each in saved:
        if each.tokens is None:
            continue
        begin = await _count_prompt(link, each.tokens, prompt, prompt_tokens)
        if begin is None:
            continue
        generated = each.tokens[begin:]
        raw = find_raw_text(await link.detokenize(generated), exchange.text)
        if raw is not None:
            slot, prompt_tokens, count = each.number, begin, await _count_tokens(link, generated, raw)
            if earlier is not None:  # its text is in this slot, perhaps as other tokens than were generated
                count += earlier.tokens_before - await _count_tokens(link, generated, earlier.raw)
            break
    if raw is None:
        return await continue_text(link, exchange, found, earlier, repeats=False)
    request = _with_reply(exchange.path, body, mode, raw)
    _lower_limits(request, count, link.reply_limit)
    return Continuation(request, raw, slot, count, prompt_tokens or 0, exchange.figures.reused_tokens or 0)


async def continue_text(
    link: EngineLink, exchange: Exchange, found: tuple[str, str], earlier: Continuation | None, *, repeats: bool
) -> Continuation | None:
    """Return how a stream continues by the delivered text alone; None if the template's marks for thinking are unknown.

    The engine may have ended anywhere, even within a word, where the next one would read other tokens. With `repeats`
    it is therefore to generate again what follows the last place at which a stream may be cut.
    """
    _, mode = found
    text, body = exchange.text, dict(exchange.body or {})
    raw = text.content if mode == TOKENS else await _restore_marks(link, body, mode, text)
    if raw is None:
        return None
    tail = await _find_repeated(link, text.last_pieces) if repeats else ""
    raw = raw.removesuffix(tail)
    if mode == TOKENS:
        request = {**body, "prompt": await _join_prompt(link, body, raw)}
    else:
        request = _with_reply(exchange.path, body, mode, raw)
    count = len(await link.token_pieces(raw))
    if not repeats:  # the model may have made its words of more tokens than a tokenizer would
        count = max(count, text.piece_count)
    _lower_limits(request, count, link.reply_limit)
    prompt_tokens = earlier.prompt_tokens if earlier else exchange.figures.prompt_tokens
    reused = exchange.figures.reused_tokens
    repeated = ReplyPart(tail) if text.content else ReplyPart(reasoning=tail)
    return Continuation(request, raw, None, count, prompt_tokens or 0, reused or 0, repeated)


async def _restore_marks(link: EngineLink, body: Mapping[str, Any], mode: str, text: DeliveredText) -> str | None:
    """Return a delivered reply with the marks around its thinking; None if the chat template writes no such marks.

    The marks are read from a made-up reply, which the engine renders with the template. The model itself may have
    written other white space around them.
    """
    begins_thinking = mode == "reasoning_content"
    if not (text.content if begins_thinking else text.reasoning):
        return text.reasoning + text.content
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": _PROBE}]}
    if "chat_template_kwargs" in body:
        asked["chat_template_kwargs"] = body["chat_template_kwargs"]
    thinking, answer = _PROBE, _PROBE.upper()
    reply = {"role": "assistant", "reasoning_content": thinking, "content": answer}
    going_on = {"continue_final_message": "content", "add_generation_prompt": False}
    prompt = await link.render_prompt(asked)
    whole = await link.render_prompt({**asked, "messages": [*asked["messages"], reply], **going_on})
    if prompt is None or whole is None or not whole.startswith(prompt) or not whole.endswith(answer):
        return None
    begin, found, end = whole[len(prompt) :].removesuffix(answer).partition(thinking)
    if not found:
        return None
    return f"{begin}{text.reasoning}{end if text.content else ''}{text.content}"


async def _find_repeated(link: EngineLink, pieces: list[str]) -> str:
    """Return what follows the last canonical word of a text that ends before another word; "" if there is none."""
    begins = [number for number, piece in enumerate(pieces) if begins_word(piece)]
    for begin, end in reversed([*pairwise(begins[-_WORDS_BACK - 1 :])]):
        if await link.token_pieces("".join(pieces[begin:end])) == pieces[begin:end]:
            return "".join(pieces[end:])
    return ""


async def _continue_tokens(link: EngineLink, exchange: Exchange, saved: list[SavedSlot]) -> Continuation:
    """Return how a completion continues: with the tokens of its prompt and reply as the prompt.

    The prompt's own tokens are at the beginning of the slot, however often the stream was cut. Without the slot they
    are those of the text.
    """
    body, text = dict(exchange.body or {}), exchange.text.content
    prompt_tokens, reused = exchange.figures.prompt_tokens or 0, exchange.figures.reused_tokens or 0
    prompt: object = None
    slot, count = None, len(exchange.text.content_pieces)
    for each in saved:
        generated = (each.tokens or [])[prompt_tokens:]
        if not generated or not (await link.detokenize(generated)).startswith(text):
            continue
        counted = await _count_tokens(link, generated, text)
        if await link.detokenize(generated[:counted]) == text:
            slot, count = each.number, counted
            prompt = (each.tokens or [])[: prompt_tokens + counted]
            break
    request = {**body, "prompt": prompt or await _join_prompt(link, body, text)}
    _lower_limits(request, count, link.reply_limit)
    return Continuation(request, text, slot, count, prompt_tokens, reused)


async def _join_prompt(link: EngineLink, body: Mapping[str, Any], text: str) -> list[object]:
    """Return a completion's prompt and the reply so far as one prompt. As one text, other tokens may join the two."""
    prompt, tokens = read_text_prompt(body), await link.tokenize(text)
    return [prompt, *tokens] if tokens else [f"{prompt}{text}"]


def _lower_limits(request: dict[str, Any], generated: int, usual: int | None) -> None:
    """Lower a request's limits, or the engine's usual one, by the tokens that were generated already."""
    limits = [request.get(name) for name in _LIMITS]
    if usual is not None and not any(isinstance(limit, int) and limit > 0 for limit in limits):
        for name in _LIMITS:
            request.pop(name, None)  # -1 means the usual one
        request["max_tokens"] = usual
    for name in _LIMITS:
        limit = request.get(name)
        if isinstance(limit, int) and limit > 0:
            request[name] = max(1, limit - generated)


def find_raw_text(generated: str, delivered: DeliveredText) -> str | None:
    """Return the beginning of a generated text that holds all that was delivered; None if it does not hold it."""
    begin = generated.find(delivered.reasoning, 0, len(delivered.reasoning) + _LEADING)
    if begin < 0:
        return None
    end = begin + len(delivered.reasoning)
    if delivered.content:
        begin = generated.find(delivered.content, end)
        if begin < 0:
            return None
        end = begin + len(delivered.content)
    return generated[:end]


async def _count_prompt(link: EngineLink, tokens: list[int], prompt: str, expected: int | None) -> int | None:
    """Return how many of a slot's tokens are the prompt; None if the slot's conversation is another one."""
    if not prompt:  # an unknown prompt cannot be compared, only the reply after it
        return expected if expected is not None and expected <= len(tokens) else None
    if expected is None:
        text = await link.detokenize(tokens)
        return await _count_tokens(link, tokens, prompt) if text.startswith(prompt) else None
    tail = await link.detokenize(tokens[max(0, expected - _TAIL_TOKENS) : expected])
    return expected if expected <= len(tokens) and tail and prompt.endswith(tail) else None


async def _count_tokens(link: EngineLink, tokens: list[int], text: str) -> int:
    """Return how many of the first tokens make `text`."""
    low, high = 0, len(tokens)
    while low < high:
        middle = (low + high) // 2
        if len(await link.detokenize(tokens[:middle])) >= len(text):
            high = middle
        else:
            low = middle + 1
    return low
