"""Quality of a model's answers with other weights, KV cache types or MTP, against a reference.

The measure is that of llama.cpp's `llama-perplexity --kl-divergence`: at each position of a fixed text the
probabilities of the next token are compared with those of the reference. Here they come from a running server
(`n_probs`), so that the judgement is about exactly what is served.
"""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from launcher.base.codec import JsonView
from launcher.base.errors import Refused
from launcher.base.messages import Message, command_name, join_messages, message
from launcher.base.paths import shipped_file
from launcher.engine.server.client import EngineClient
from launcher.models.drafters import DraftChoice
from launcher.tuning.agent_tasks import SizedText
from launcher.tuning.workloads import shipped_workloads

MOST_KL, LEAST_SAME_TOP = 0.05, 0.95
"""Limits: the mean KL divergence in nats, and the share of positions with the same most likely token."""
DEFAULT_TOKENS, DEFAULT_FILL, MOST_NEEDLE = 400, 2_000, 32_000
"""Positions of the text that are compared, tokens of context before them, and the most around the hidden fact, unless
the user chooses others."""
_CANDIDATES = 256
"""Most likely tokens that are compared at each position; the others count together, as one token."""
_LEAST_PROBABILITY = 1e-12
_GREEDY_TOKENS, _NEEDLE_TOKENS = 96, 48
ROOM_TOKENS = 320
"""Tokens of a context that the chat template, a question and its reply need besides the text."""

NextTokens = Mapping[int, float]
"""Natural logarithms of the probabilities of the most likely next tokens, by token."""
OnPosition = Callable[[int, int], object]
"""Gets the number of positions that are done, and the number of all positions."""
Answer = Literal["kept", "beyond", "shown", "not_judged"]


@dataclass(frozen=True, slots=True)
class QualityTexts:
    """The fixed texts of resources/quality.json."""

    text: str
    needle: str
    needle_question: str
    needle_answer: str


def load_texts() -> QualityTexts:
    """Return the fixed texts."""
    return QualityTexts(**json.loads(shipped_file("resources", "quality.json").read_text(encoding="utf-8")))


# Answers of one server.


@dataclass(frozen=True, slots=True)
class QualityText:
    """The tokens of the fixed text after `fill` tokens of other text, by one model's vocabulary."""

    tokens: tuple[int, ...]
    fill: int

    @property
    def positions(self) -> int:
        """Number of positions at which next tokens are compared."""
        return len(self.tokens) - self.fill


@dataclass(frozen=True, slots=True)
class ServerAnswers:
    """The answers of one server: next tokens by position of the text, and replies to prompts at temperature 0.

    `needle` is whether the sentence that was hidden in the context was found. `tool_call` is whether a tool call
    arrived parsed.
    """

    next_tokens: tuple[NextTokens, ...]
    replies: tuple[str, ...]
    needle: bool
    tool_call: bool


async def make_text(client: EngineClient, context: int, tokens: int, fill: int) -> QualityText:
    """Return the text in the tokens of a server's model, shortened to its context. Raises Refused and Unreachable."""
    fill = max(0, min(fill, context - tokens - ROOM_TOKENS))
    sized = await SizedText.measure(client)
    before = (await _tokenize(client, sized.make_text(fill + fill // 4, 0), add_special=True))[:fill] if fill else []
    after = await _tokenize(client, load_texts().text, add_special=not fill)
    return QualityText((*before, *after[:tokens]), len(before))


async def _tokenize(client: EngineClient, text: str, *, add_special: bool) -> list[int]:
    reply = await client.request_json("/tokenize", {"content": text, "add_special": add_special})
    tokens = reply.get("tokens") if isinstance(reply, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise _not_a_llama_server()
    return tokens


async def read_next_tokens(
    client: EngineClient, text: QualityText, on_position: OnPosition = lambda *_: None
) -> tuple[NextTokens, ...]:
    """Return the next tokens at each position after the fill. Raises Refused and Unreachable.

    Each request sends the prompt with one token more than before. The engine reads only the new token, because its slot
    still has the others. The engine must run without drafts, and without other clients.
    """
    found = []
    for end in range(max(1, text.fill), len(text.tokens)):
        body = {"prompt": list(text.tokens[:end]), "n_predict": 1, "temperature": 0, "n_probs": _CANDIDATES}
        reply = await client.request_json("/completion", {**body, "cache_prompt": True, "id_slot": 0}, unlimited=True)
        found.append(_parse_next_tokens(reply))
        on_position(len(found), text.positions)
    return tuple(found)


def _parse_next_tokens(reply: object) -> NextTokens:
    try:
        first = reply["completion_probabilities"][0]  # type: ignore[index]
        found = {int(each["id"]): float(each["logprob"]) for each in first["top_logprobs"]}
    except (IndexError, KeyError, TypeError, ValueError):
        found = {}
    if not found:
        raise Refused(
            message("The server does not report the probabilities of tokens."),
            message("Update the engine[: {command}].", command=command_name("engine install")),
        )
    return found


async def read_greedy_replies(client: EngineClient) -> tuple[str, ...]:
    """Return the replies to some prompts of the shipped workloads at temperature 0."""
    prompts = [workload.prompts[0] for workload in shipped_workloads() if not workload.sized_tokens]
    return tuple([await _request_reply(client, prompt.messages, _GREEDY_TOKENS) for prompt in prompts])


async def find_needle(client: EngineClient, fill: int) -> bool:
    """Return whether the model repeats a fact that stands in the middle of `fill` tokens of other text."""
    texts, sized = load_texts(), await SizedText.measure(client)
    half = sized.make_text(fill // 2, 0)
    rest = sized.make_text(fill - fill // 2, 10_000)
    prompt = f"{half}\n{texts.needle}\n{rest}\n\n{texts.needle_question}"
    return texts.needle_answer in await _request_reply(client, (("user", prompt),), _NEEDLE_TOKENS)


async def _request_reply(client: EngineClient, messages: Sequence[tuple[str, str]], tokens: int) -> str:
    """Send a chat request at temperature 0 that is not streamed, and return the text of the reply."""
    body = {
        "messages": [{"role": role, "content": text} for role, text in messages],
        "max_tokens": tokens,
        "temperature": 0,
        "seed": 1,
        "cache_prompt": False,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    reply = await client.request_json("/v1/chat/completions", body, unlimited=True)
    try:
        answer = reply["choices"][0]["message"]
        return f"{answer.get('reasoning_content') or ''}{answer.get('content') or ''}"
    except (AttributeError, IndexError, KeyError, TypeError):
        raise _not_a_llama_server() from None


def _not_a_llama_server() -> Refused:
    return Refused(
        message("The server sent an invalid reply."), message("Check that the address belongs to a llama-server.")
    )


# The comparison with the reference.


def kl_divergence(reference: NextTokens, other: NextTokens) -> float:
    """Return the Kullback-Leibler divergence of the next tokens from those of the reference, in nats.

    Tokens that are not in both lists count together, which can only lower it.
    """
    divergence, reference_rest, other_rest = 0.0, 1.0, 1.0
    for token, log_p in reference.items():
        if (log_q := other.get(token)) is not None:
            p, q = math.exp(log_p), math.exp(log_q)
            reference_rest -= p
            other_rest -= q
            divergence += p * (log_p - max(log_q, math.log(_LEAST_PROBABILITY))) if p > 0 else 0.0
    if reference_rest > _LEAST_PROBABILITY:
        divergence += reference_rest * math.log(reference_rest / max(other_rest, _LEAST_PROBABILITY))
    return max(0.0, divergence)


@dataclass(frozen=True, slots=True)
class QualityRow:
    """The quality of one set of weights and settings against the reference.

    `kl` is the mean KL divergence in nats with its standard error `kl_error`; `kl_99` is exceeded at 1 % of the
    positions; `same_top` is the share of positions with the same most likely token. They are None with drafts, which
    change no probability. At temperature 0, `greedy_equal` of `greedy_replies` replies are equal to the reference's
    replies, or with drafts to the replies without drafts. `needle` and `tool_call` are None where the reference itself
    fails.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "quant file kv draft=drafts.length kl kl_error kl_99 same_top greedy_equal greedy_replies needle tool_call "
        "answer"
    )
    quant: str
    file: str
    kv: str
    drafts: DraftChoice
    kl: float | None
    kl_error: float | None
    kl_99: float | None
    same_top: float | None
    greedy_equal: int
    greedy_replies: int
    needle: bool | None
    tool_call: bool | None

    @property
    def answer(self) -> Answer:
        """The judgement. It is `shown` with drafts, whose figures are not judged unless the needle or a tool call is
        lost.
        """
        if self.needle is False or self.tool_call is False:
            return "beyond"
        if self.kl is None or self.same_top is None:
            return "shown"
        return "beyond" if self.kl > MOST_KL or self.same_top < LEAST_SAME_TOP else "kept"


def compare_answers(
    reference: ServerAnswers, other: ServerAnswers, *, quant: str, file: str, kv: str, drafts: DraftChoice
) -> QualityRow:
    """Return how the answers of a server differ from the reference's answers."""
    divergences = [kl_divergence(*pair) for pair in zip(reference.next_tokens, other.next_tokens, strict=False)]
    same = [
        max(mine, key=mine.__getitem__) == max(theirs, key=theirs.__getitem__)
        for mine, theirs in zip(reference.next_tokens, other.next_tokens, strict=False)
    ]
    kl = kl_error = kl_99 = same_top = None
    if divergences:
        kl, same_top = statistics.fmean(divergences), statistics.fmean(same)
        kl_99 = sorted(divergences)[min(len(divergences) - 1, round(0.99 * len(divergences)))]
    if len(divergences) > 1:
        kl_error = statistics.stdev(divergences) / math.sqrt(len(divergences))
    return QualityRow(
        quant=quant,
        file=file,
        kv=kv,
        drafts=drafts,
        kl=kl,
        kl_error=kl_error,
        kl_99=kl_99,
        same_top=same_top,
        greedy_equal=sum(one == two for one, two in zip(reference.replies, other.replies, strict=True)),
        greedy_replies=len(other.replies),
        needle=other.needle if reference.needle else None,
        tool_call=other.tool_call if reference.tool_call else None,
    )


def describe_mtp(row: QualityRow, tokens: int) -> Message:
    """Return what MTP changes in the answers, as sentences. The fact was hidden among `tokens` tokens."""
    equal = message(
        "With MTP, {equal} of {all} replies at temperature 0 are equal to those without (not judged).",
        equal=row.greedy_equal,
        all=row.greedy_replies,
    )
    found: dict[bool | None, Message] = {
        True: message("The fact in {tokens:,} tokens of context is found.", tokens=tokens),
        False: message("The fact in {tokens:,} tokens of context is not found with MTP.", tokens=tokens),
        None: message("The fact in {tokens:,} tokens of context is not found without MTP either.", tokens=tokens),
    }
    called: dict[bool | None, Message] = {
        True: message("A tool is called."),
        False: message("No usable tool call is made with MTP."),
        None: message("No usable tool call is made without MTP either."),
    }
    return join_messages(equal, found[row.needle], called[row.tool_call])


def describe_row(row: QualityRow) -> Message:
    """Return the judgement as sentences."""
    name = join_messages(row.quant, message("KV {kv}", kv=row.kv), row.drafts.label(off=""), separator=", ")
    lost = []
    if row.needle is False:
        lost.append(message("It does not find the fact in the context, which the reference finds."))
    if row.tool_call is False:
        lost.append(message("It makes no usable tool call, which the reference makes."))
    if row.kl is None or row.same_top is None:
        equal = message(
            "{name}: {equal} of {all} replies at temperature 0 are equal.",
            name=name,
            equal=row.greedy_equal,
            all=row.greedy_replies,
        )
        return join_messages(equal, *lost)
    facts = {"name": name, "kl": f"{row.kl:.4f}", "share": f"{100 * row.same_top:.1f}"}
    if row.answer == "kept":
        return message(
            "{name}: quality kept. KL divergence {kl}, the same most likely token at {share} % of the positions.",
            **facts,
        )
    sentence = message(
        "{name}: the answers change. KL divergence {kl}, the same most likely token at {share} % of the positions.",
        **facts,
    )
    return join_messages(sentence, *lost)
