"""The table of drafters: the ways in which an engine proposes tokens ahead of a model, each declared once, as a row.

Arguments, memory estimates, forecasts, plans, tunes, the catalogue, exports and both faces ask the row.
"""

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from launcher.base.messages import FaceName, Message, as_message, mark, message

Source = Literal["", "head", "file", "text"]
"""Where drafts come from: nowhere, a head in the model's own file, a file beside it, or earlier text."""
LONGEST_DRAFT = 16
"""The longest draft, in tokens, that can be set."""
MTP_OFF = mark("MTP off")
NO_MTP = FaceName("--no-mtp", MTP_OFF)
_NGRAM_OUTPUTS = 49
"""Rows of logits per slot with n-gram drafts: one token and the up to 48 drafted ones (--spec-ngram-map-k-size-m and
others; llama.cpp b11549, common_speculative_n_max)."""


@dataclass(frozen=True, slots=True)
class Drafter:
    """One way to draft tokens.

    `name` is the catalogue's word, `spec_type` that of --spec-type (llama.cpp b11434: common/speculative.cpp).
    `source` says what it needs of a model and what memory it takes. `uses_head`: a head in the model's file is
    loaded for it. `takes_length`: the draft length limits it. `outputs` are the rows of logits for each slot; 0: by
    the draft length. `keeps_states`: the engine keeps a recurrent state for each drafted token. `reads_layers`: it
    reads what goes into some of the model's layers, which its file's header names. `at_once`: one pass of its file
    drafts all tokens. `tried`: a tune tries it besides the model's own. `title` is its name in sentences, `short` that
    beside a number if it differs. `usual_length` is the draft length if the user names the drafter and no length.
    `files` are the kinds of files (models/file_kinds.py) that it drafts with. `newer`: llama.cpp b11669 lacks it; forks
    and later builds may have it. `needs_whole_cache`: its own cache must hold every token of a conversation, so it
    cannot go on in a slot of another drafter (b11549 answers 500, "failed to process speculative batch").
    """

    name: str
    spec_type: str
    source: Source
    summary: str = ""
    _: KW_ONLY
    uses_head: bool = False
    takes_length: bool = True
    outputs: int = 0
    keeps_states: bool = True
    reads_layers: bool = False
    at_once: bool = False
    tried: bool = False
    title: str = mark("MTP")
    short: str = ""
    usual_length: int = 2
    files: tuple[str, ...] = ()
    newer: bool = False
    needs_whole_cache: bool = False

    @property
    def drafts(self) -> bool:
        """Whether tokens are drafted at all."""
        return self.source != ""

    @property
    def is_in_model(self) -> bool:
        """Whether an engine that is given the model's file alone has all of it."""
        return self.source in ("", "head")

    def can_draft(self, *, head: bool, file: bool) -> bool:
        """Return whether it has what it needs: a model with a `head`, or a `file` beside the model."""
        return {"head": head, "file": file}.get(self.source, True)

    def uses_any(self, files: tuple[str, ...]) -> bool:
        """Return whether it drafts with a file of one of these kinds."""
        return any(kind in self.files for kind in files)

    def takes_setting(self, sources: tuple[Source, ...]) -> bool:
        """Return whether a server setting of drafters with one of `sources` applies to it."""
        return self.source in sources

    def count_outputs(self, length: int) -> int:
        """Return the rows of logits for each slot; 0 where a head in the model's file decides."""
        return self.outputs or (1 + length if self.source == "file" and not self.uses_head else 0)

    @property
    def name_short(self) -> Message:
        """Its name in few words, such as "DFlash"; "off" if nothing is drafted."""
        return as_message(self.short or self.title)


NONE = Drafter("none", "none", "", short=mark("off"))
MTP = Drafter("mtp", "draft-mtp", "head", "MTP head inside the model's file", uses_head=True)
_BLOCK: Mapping[str, Any] = {"at_once": True, "usual_length": 4}
"""Drafters that make a block at once. DFlash2 was 52 % faster with 4 and 23 % with 7 tokens in a published study that
named its test beforehand."""
HEAD_FILE, MODEL_FILE = "mtp-head", "model"
_REPEATS = partial(
    Drafter,
    source="text",
    summary="repeats of earlier text, no file",
    takes_length=False,
    outputs=_NGRAM_OUTPUTS,
    keeps_states=False,
    title=mark("the search for repeats"),
    short=mark("repeats"),
)


def _trained(name: str, title: str, summary: str, **details: Any) -> Drafter:  # noqa: ANN401 -- fields of Drafter
    """Return the row of a drafter that was trained for one model, and lies in a file of the kind `name`."""
    own: dict[str, Any] = {"files": (name,), "reads_layers": True} | details
    return Drafter(name, f"draft-{name}", "file", summary, title=title, **own)


_ROWS = (
    MTP,
    replace(MTP, name="draft-file", source="file", summary="MTP head in a file of its own", files=(HEAD_FILE,)),
    Drafter(
        "draft-model",
        "draft-simple",
        "file",
        "smaller model of the same vocabulary",
        title=mark("the draft model"),
        short=mark("draft model"),
        files=(MODEL_FILE,),
        keeps_states=False,
        needs_whole_cache=True,
    ),
    _trained("eagle3", "EAGLE-3", "layer that reads states of the model's own", needs_whole_cache=True),
    _trained("dflash", "DFlash", "block of tokens at once", **_BLOCK),
    # Its files are of the same kind, which b11549 runs as draft-dflash.
    _trained("dflash2", "DFlash2", "block of tokens at once", files=("dflash",), **_BLOCK, newer=True),
    _trained("dspark", "DSpark", "block of tokens, corrected in order", **_BLOCK),
    _trained("lilicorr", "LiLiCorr", "path through a block's candidates", **_BLOCK, newer=True),
    _REPEATS("ngram-simple", "ngram-simple", tried=True),
    _REPEATS("ngram-map-k", "ngram-map-k"),
    _REPEATS("ngram-map-k4v", "ngram-map-k4v"),
    _REPEATS("ngram-mod", "ngram-mod", outputs=65),
    _REPEATS("ngram-cache", "ngram-cache", outputs=9),
)
DRAFTERS: Mapping[str, Drafter] = {row.name: row for row in _ROWS}
"""All drafters by their word in the catalogue, in the order in which they are listed."""
SPEC_TYPES = tuple(dict.fromkeys(row.spec_type for row in _ROWS))
"""What can be chosen. Whether a head is in a file of its own depends on the model."""
SPEC_TYPES_WITH_FILES = tuple(dict.fromkeys(row.spec_type for row in _ROWS if row.source == "file"))
"""Those that may draft with a file beside the model."""
STABLE_SPEC_TYPES = frozenset(row.spec_type for row in _ROWS if not row.newer)
"""What llama.cpp b11434 to b11669 has."""
if TYPE_CHECKING:
    DrafterName = str
else:
    DrafterName = Literal[tuple(DRAFTERS)]


@cache
def find_drafter(spec_type: object, files: tuple[str, ...] = ()) -> Drafter:
    """Return the drafter that --spec-type calls `spec_type`, for a model with such kinds of `files` beside it.

    None, and one that only a later version has, as in its history, is taken for a head.
    """
    rows = [row for row in _ROWS if row.spec_type == spec_type] or [MTP]
    return next((row for row in rows if row.uses_any(files)), rows[0])


@cache
def file_kinds_of(spec_type: str) -> tuple[str, ...]:
    """Return the kinds of files that a drafter may need, as --spec-type calls it."""
    return tuple(kind for row in _ROWS if row.spec_type == spec_type for kind in row.files)


@cache
def usable_drafters(*, head: bool, files: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return what can be chosen for a model with a `head`, and with such kinds of `files` beside it."""
    usable = (row for row in _ROWS if row.can_draft(head=head, file=row.uses_any(files)))
    return tuple(dict.fromkeys(row.spec_type for row in usable))


def drafter_with(file_kind: str) -> Drafter | None:
    """Return the first drafter that drafts with a kind of file; None if none does."""
    return next((row for row in _ROWS if file_kind in row.files), None)


def with_usual_length(settings: Mapping[str, Any], named: Drafter | None) -> dict[str, Any]:
    """Return settings by name with a draft length: whoever names a drafter, or its file, wants drafts.

    `named` is the drafter that was named, None if none was; a length that the settings have stays.
    """
    return {**({"draft": named.usual_length} if named else {}), **settings}


class DraftChoice(NamedTuple):
    """A way to draft and its length, which are chosen as one. The length of drafters that take none is their usual."""

    drafter: Drafter = NONE
    length: int = 0

    @property
    def number(self) -> Message:
        """What follows "draft" in a sentence: "3", "4 by DFlash", "from repeats"."""
        if not self.drafter.takes_length:
            return message("from repeats")
        is_named = self.drafter.drafts and not self.drafter.uses_head  # what a head drafts needs no name
        name = as_message(self.drafter.title) if is_named else None
        return message("{draft}[ by {drafter}]", draft=self.length, drafter=name)

    def label(self, *, off: str = MTP_OFF) -> Message:
        """Return how tokens are drafted in a few words, such as "draft 3"; `off` if none are."""
        if not self.drafter.drafts:
            return as_message(off)
        if not self.drafter.takes_length:
            return message("drafts from repeats")
        return message("draft {draft}", draft=self.number)

    @property
    def short_label(self) -> Message:
        """The drafter's name with the length, such as "DFlash 4"; "off" if nothing is drafted."""
        name = self.drafter.name_short
        is_counted = self.drafter.drafts and self.drafter.takes_length
        return message("{drafter} {draft}", drafter=name, draft=self.length) if is_counted else name

    def describe(self, *, mode: bool = False) -> Message:
        """Return the same as `label` with more words: "draft length 3", or with `mode` "MTP on, draft length 3"."""
        if not self.drafter.drafts or not self.drafter.takes_length:
            return self.label()
        drafts, name = message("draft length {draft}", draft=self.length), as_message(self.drafter.title)
        return (
            message("{drafter} on, {drafts}", drafter=name, drafts=drafts)
            if mode or not self.drafter.uses_head
            else drafts
        )

    def as_settings(self, own: str) -> dict[str, int | str | None]:
        """Return the server settings of it, by name, for a model whose `own` drafter --spec-type calls so."""
        if not self.drafter.drafts:
            return {"draft": 0}
        return {"draft": self.length, "drafter": None if self.drafter.spec_type == own else self.drafter.spec_type}


NO_DRAFTS = DraftChoice()


def choose_drafts(drafter: Drafter, length: int | None) -> DraftChoice:
    """Return a drafter with a draft length as a choice: no drafts if that is 0 or None."""
    if not length or not drafter.drafts:
        return NO_DRAFTS
    return DraftChoice(drafter, length if drafter.takes_length else drafter.usual_length)


def is_drafting(length: int | None) -> bool:
    """Return whether anything is drafted with a length, by whichever drafter."""
    return bool(length)


def choice_in(settings: Mapping[str, Any]) -> DraftChoice:
    """Return the drafter and the draft length of settings by name, such as those of a run."""
    return choose_drafts(find_drafter(settings.get("drafter")), int(settings.get("draft") or 0))


def drafter_in(settings: Mapping[str, Any]) -> Drafter:
    """Return the drafter of settings by name."""
    return choice_in(settings).drafter


def list_choices(drafters: Iterable[Drafter], lengths: Iterable[int]) -> tuple[DraftChoice, ...]:
    """Return no drafts, then each of some drafters with each length that it takes."""
    found = [choose_drafts(each, length) for each in drafters for length in lengths]
    return tuple(dict.fromkeys((NO_DRAFTS, *found)))
