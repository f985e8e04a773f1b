"""Judges the quality of a model file, of KV cache types and of MTP on a session's server, against a reference.

The reference is the largest file of the same model on this machine, with an f16 KV cache and MTP off.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from launcher.agents.check import check_server
from launcher.app.measuring.session_bench import SessionBench
from launcher.app.serving.serving_session import MeasuredSession
from launcher.base.codec import JsonView
from launcher.base.errors import BadOption, LauncherError, Superseded
from launcher.base.messages import Message, join_messages, message
from launcher.engine.serve_options import ServeOptions, check_options, fallback_context
from launcher.engine.server.client import EngineClient
from launcher.engine.server.launch import check_model
from launcher.models.catalogue_load import load_catalogue
from launcher.models.file_entry import count_parameters, describe_file
from launcher.models.gguf import GgufModel, read_model
from launcher.models.library import list_library
from launcher.models.limits import check_writes_text
from launcher.models.ranking import OTHER_TOKENS_SOURCE, other_tokens
from launcher.tuning.quality import (
    DEFAULT_FILL,
    DEFAULT_TOKENS,
    MOST_NEEDLE,
    ROOM_TOKENS,
    QualityRow,
    QualityText,
    ServerAnswers,
    compare_answers,
    describe_row,
    find_needle,
    make_text,
    read_greedy_replies,
    read_next_tokens,
)
from launcher.tuning.space import DRAFT

ORIGINAL = ("F32", "F16", "BF16")
"""Types of files with the original weights, which need not be judged against another file."""
REFERENCE_KV = "f16"
_USUAL_KV = ("q8_0",)
"""KV cache types that are judged in addition to the one in use."""

OnStep = Callable[[str, int, int], object]
"""Called with the name of the settings that are measured, the number of measured positions of the text, and of all."""


@dataclass(frozen=True, slots=True)
class QualityCheck:
    """A check that is ready to begin: the settings to judge, and the reference.

    `reference` is served first, then the `candidates` one after another: the file of quantisation `quant` with KV cache
    types and draft lengths. `weights_judged` is False if this computer has no better file to compare with and the file
    itself is not of an ORIGINAL type: then only the KV cache types and MTP are judged.
    """

    model_name: str
    reference: ServeOptions
    reference_quant: str
    candidates: tuple[ServeOptions, ...]
    quant: str
    weights_judged: bool
    header: GgufModel
    tokens: int = DEFAULT_TOKENS
    fill: int = DEFAULT_FILL
    needle: int = DEFAULT_FILL
    """Tokens of the text in whose middle the fact is hidden."""


@dataclass(frozen=True, slots=True)
class QualityReport:
    """The result of a check. `text` is None if nothing was measured. `errors` are the settings that did not start."""

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "model=check.model_name reference.file=check.reference.model reference.quant=check.reference_quant "
        "reference.kv=check.reference.kv reference.draft=check.reference.draft "
        "reference.needle=reference_answers.needle reference.tool_call=reference_answers.tool_call weights "
        "positions fill needle_tokens=check.needle rows errors sentence"
    )
    check: QualityCheck
    text: QualityText | None
    reference_answers: ServerAnswers | None
    rows: tuple[QualityRow, ...]
    errors: tuple[Message, ...] = ()

    @property
    def sentence(self) -> Message:
        """The judgement of all rows, in sentences."""
        parts: list[str] = [describe_row(row) for row in self.rows]
        if not self.check.weights_judged:
            parts.append(describe_published(self.check.header, self.check.quant))
        return join_messages(*parts, *self.errors)

    @property
    def beyond(self) -> bool:
        """Whether any of the settings changes the answers beyond the limits."""
        return any(row.answer == "beyond" for row in self.rows)

    @property
    def weights(self) -> str:
        """Whether the weights were judged, for JSON."""
        return "judged" if self.check.weights_judged else "not_judged"

    @property
    def positions(self) -> int:
        """The number of positions at which next tokens were compared."""
        return self.text.positions if self.text else 0

    @property
    def fill(self) -> int:
        """The tokens before them."""
        return self.text.fill if self.text else 0


def describe_settings(quant: str, options: ServeOptions) -> str:
    """Return the name of settings: quantisation, KV cache type and draft length."""
    drafts = options.draft_choice.label(off="")
    return ", ".join(filter(None, (quant, f"KV {options.kv or REFERENCE_KV}", drafts)))


def describe_published(header: GgufModel, quant: str) -> Message:
    """Return why a file's weights are not judged, with the published figure for files of its bits per weight."""
    bits = 8 * header.file_bytes / max(1, count_parameters(header))
    return message(
        "{quant}: the weights are not judged, because no larger file of this model is here. Published: with {bits} bits"
        " per weight about {others} of 100 tokens differ from the original ({source}).",
        quant=quant,
        bits=f"{bits:.1f}",
        others=f"{other_tokens(bits):.0f}",
        source=OTHER_TOKENS_SOURCE,
    )


async def prepare_check(
    options: ServeOptions,
    model_name: str,
    *,
    kv_types: Sequence[str] = (),
    draft: int | None = None,
    against: Path | None = None,
    tokens: int = DEFAULT_TOKENS,
    fill: int = DEFAULT_FILL,
    needle: int | None = None,
) -> QualityCheck:
    """Return the check of a model with some KV cache types, by default its own, and of MTP with a draft length.

    `draft` None takes that of `options`; 0 leaves MTP out, as for a model that cannot draft. `against` is the file of
    the reference. `needle` are the tokens around the hidden fact, by default what a slot of the context can hold, up to
    MOST_NEEDLE. Raises BadOption for invalid options, errors of the files, and ModelWritesNoText.
    """
    check_options(options)
    header = await asyncio.to_thread(check_model, replace(options, draft=0))
    check_writes_text(header)
    reference_file, reference_header = await asyncio.to_thread(_choose_reference, options.model, header, against)
    base = replace(options, draft=0, context=options.context or fallback_context(header.trained_context))
    reference = replace(base, model=reference_file, kv=REFERENCE_KV, alias=None)
    own_kv = options.kv or REFERENCE_KV
    candidates = [replace(base, kv=kv) for kv in dict.fromkeys(kv_types or (own_kv, *_USUAL_KV))]
    length = options.draft if draft is None else draft
    if length and options.can_draft(head=header.has_mtp_head):
        candidates.append(replace(candidates[0], draft=length))
    quant = describe_file(header).files[0].quant
    return QualityCheck(
        model_name,
        reference,
        describe_file(reference_header).files[0].quant,
        tuple(each for each in candidates if replace(each, alias=None) != reference),
        quant,
        reference_file != options.model or quant.upper() in ORIGINAL,
        header,
        tokens,
        fill,
        _choose_needle_size(base, needle),
    )


def _choose_needle_size(options: ServeOptions, asked: int | None) -> int:
    """Return the number of tokens for the text with the hidden fact, at most what a slot has left.

    A tenth is left free, because the text may come out that much longer.
    """
    room = round(0.9 * max(0, (options.context or 0) // (options.slots or 1) - ROOM_TOKENS))
    return min(room, MOST_NEEDLE if asked is None else asked)


def _choose_reference(path: Path, header: GgufModel, against: Path | None) -> tuple[Path, GgufModel]:
    """Return the file of the reference and its header. Raises BadOption if `against` is another model."""
    if against is None:
        return find_reference(path, header)
    other = read_model(against)
    if not _is_same_model(header, other):
        raise BadOption(message("{name} is not the same model as {other}.", name=against.name, other=path.name))
    return against, other


def find_reference(path: Path, header: GgufModel) -> tuple[Path, GgufModel]:
    """Return the largest file of the same model beside `path` or in the library, and its header.

    That is `path` itself if no other is larger.
    """
    largest = path, header
    for other in _possible_files(path):
        try:
            found = read_model(other)
        except (LauncherError, OSError):
            continue
        if found.file_bytes > largest[1].file_bytes and _is_same_model(header, found):
            largest = other, found
    return largest


def _possible_files(path: Path) -> Iterator[Path]:
    """Yield files that may hold the same model: in the same folder, repository or catalogue entry."""
    yield from sorted(each for each in path.absolute().parent.glob("*.gguf") if each != path)
    try:
        records = [local.record for local in list_library(load_catalogue()).models]
    except OSError:
        return
    own = next((each for each in records if path in each.paths), None)
    if own is None:
        return
    for record in records:
        same_entry = record.model is not None and record.model == own.model
        same_repository = record.repo is not None and record.repo == own.repo
        if record.kind == "model" and record is not own and (same_entry or same_repository) and record.path.exists():
            yield record.path


def _is_same_model(one: GgufModel, other: GgufModel) -> bool:
    """Return whether two files hold the same model in different types of weights."""
    names = ("architecture", "name", "block_count", "vocabulary")
    return all(getattr(one, name) == getattr(other, name) for name in names)


async def run_check(session: MeasuredSession, check: QualityCheck, on_step: OnStep = lambda *_: None) -> QualityReport:
    """Serve the reference and each of the settings on a session's server, and judge them. It is stopped at the end.

    Settings that do not start, or whose engine fails, are reported as errors. Raises Superseded when another operation
    uses the server; then it is not stopped.
    """
    run = _CheckRun(session, check, on_step)
    try:
        await run.judge_all()
    except Superseded:
        raise
    except BaseException:
        await session.stop()
        raise
    await session.stop()
    return QualityReport(check, run.text, run.reference, tuple(run.rows), tuple(run.errors))


class _CheckRun:
    """A running check, with what was measured so far."""

    def __init__(self, session: MeasuredSession, check: QualityCheck, on_step: OnStep) -> None:
        self.text: QualityText | None = None
        self.reference: ServerAnswers | None = None
        self.rows: list[QualityRow] = []
        self.errors: list[Message] = []
        self._session, self._check, self._on_step = session, check, on_step
        self._benches: dict[Path, SessionBench] = {}
        self._without_drafts: dict[str, ServerAnswers] = {}
        """Answers of the judged file with MTP off, by KV cache type: MTP is compared with them."""

    async def judge_all(self) -> None:
        """Measure the reference, then judge all candidates. Ends if the reference does not start."""
        check = self._check
        self.reference = await self._measure(check.reference, check.reference_quant)
        if self.reference is None:
            return
        if check.candidates and check.reference.model == check.candidates[0].model:
            self._without_drafts[REFERENCE_KV] = self.reference
        for options in check.candidates:
            if (answers := await self._measure(options, check.quant)) is not None:
                self._judge(options, answers)

    def _judge(self, options: ServeOptions, answers: ServerAnswers) -> None:
        kv = options.kv or REFERENCE_KV
        against = self.reference
        if options.drafter.drafts:
            against = self._without_drafts.get(kv, against)
        else:
            self._without_drafts[kv] = answers
        if against is not None:
            facts = {"quant": self._check.quant, "file": str(options.model), "kv": kv}
            self.rows.append(compare_answers(against, answers, **facts, drafts=options.draft_choice))

    async def _measure(self, options: ServeOptions, quant: str) -> ServerAnswers | None:
        """Return the answers with some settings. If these do not start, add to `errors` and return None."""
        name, check = describe_settings(quant, options), self._check
        self._on_step(name, 0, 0)
        try:
            bench = self._benches.setdefault(
                options.model, SessionBench(self._session, options, model_name=check.model_name)
            )
            await bench.become({"kv": options.kv, DRAFT: options.draft})
            client = self._session.supervisor.client
            if self.text is None:
                context = options.context or check.fill + check.tokens
                self.text = await make_text(client, context, check.tokens, check.fill)
            return await _read_answers(
                client, self.text, check.needle, options, lambda *done: self._on_step(name, *done)
            )
        except Superseded:
            raise
        except LauncherError as error:
            self.errors.append(message("{name}: not judged. {reason}", name=name, reason=error.title))
            return None


async def _read_answers(
    client: EngineClient,
    text: QualityText,
    needle: int,
    options: ServeOptions,
    on_position: Callable[[int, int], object],
) -> ServerAnswers:
    next_tokens = () if options.drafter.drafts else await read_next_tokens(client, text, on_position)
    try:
        tool_call = (await check_server(client)).tool_call
    except LauncherError:  # the context is too small for the check
        tool_call = False
    return ServerAnswers(next_tokens, await read_greedy_replies(client), await find_needle(client, needle), tool_call)
