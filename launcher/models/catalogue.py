"""The catalogue: models, their files, presets and published measurements.

These classes, with those of preset.py, define the format of the TOML files in presets/ and of the user's own files: the
keys of a table are the fields of a class. The docstrings of classes and fields become the descriptions in
presets/schema.json, which a test compares: regenerate that file after changing one. Unknown figures are absent from a
file and None here.
"""

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from launcher.base.errors import ModelUnknown
from launcher.base.messages import command_name, join_messages, mark, message, suggest_names
from launcher.models.drafters import DRAFTERS, MTP, NONE, Drafter, DrafterName, find_drafter
from launcher.models.geometry import Geometry
from launcher.models.preset import (
    Amount,
    Count,
    Limits,
    Note,
    Positive,
    Preset,
    PublishedRun,
    QualityNote,
    SamplingAdvice,
    Score,
    Text,
)

Sha256 = Annotated[str, Limits(min_length=64, max_length=64)]

_BITS = re.compile(r"(?:Q|FP|BF|F)(\d+)")
_MIB = 2**20
_NEAR = 3
"""The number of similar ids that the error for an unknown id names, at most."""


@cache
def bits_by_name(quant: str) -> int | None:
    """Return the bits per weight by a quantisation's name, or None if it has no number."""
    found = _BITS.search(quant.upper().replace("MXFP", "FP"))
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """One part of a split GGUF."""

    file: Text
    """Name inside the repository."""
    size_bytes: Positive | None = None
    """Size in bytes."""
    sha256: Sha256 | None = None
    """SHA-256 in lower-case hexadecimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """One quantisation of a model."""

    quant: Text
    """Name of the quantisation, such as UD-Q3_K_XL."""
    file: Text
    """Name inside the repository, of a split model its first part; without a repository, a path on this machine."""
    size_bytes: Positive | None = None
    """Size in bytes, of a split model that of all parts."""
    about_bytes: Positive | None = None
    """Rounded size in bytes, if the exact one is not listed."""
    withdrawn: bool = False
    """Whether its repository no longer has it. It is then planned only if the user names it."""
    sha256: Sha256 | None = None
    """SHA-256 in lower-case hexadecimal; a split model has one for each part."""
    parts: tuple[FilePart, ...] = ()
    """All parts of a split model, in order."""
    has_head: bool | None = None
    """Whether the MTP head is inside, if that differs from the model's `speculation`."""
    token_embd_type: Text | None = None
    """GGML type of the input embedding, which stays in host memory."""
    expert_layer_mib: Amount | None = None
    """MiB of one layer's routed experts, if measured."""
    source: str = ""
    """Source of this file's figures, if it is not the model's `files_source`."""
    note: str = ""
    """A remark on this file."""

    @property
    def bits(self) -> int | None:
        """Bits per weight by the quantisation's name, or None if it has no number."""
        return bits_by_name(self.quant)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanionFile:
    """A file that is loaded beside the model: a vision projector, or a draft."""

    file: Text
    """Name inside the repository; without a repository, a path on this machine."""
    repo: Text | None = None
    """Repository, if it is not the model's."""
    size_bytes: Positive | None = None
    """Size in bytes."""
    about_bytes: Positive | None = None
    """Rounded or estimated size in bytes, if the exact one is not listed."""
    sha256: Sha256 | None = None
    """SHA-256 in lower-case hexadecimal."""
    speculation: DrafterName | None = None
    """How a draft drafts; absent for the model's own `speculation`, and for a projector."""
    source: str = ""
    """Source of the figures, if it is not the model's `files_source`."""

    @property
    def drafter(self) -> Drafter:
        """The drafter of a draft, NONE without `speculation`."""
        return DRAFTERS[self.speculation] if self.speculation else NONE

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of a draft's file (models/file_kinds.py); () without `speculation`."""
        return self.drafter.files

    @property
    def is_local(self) -> bool:
        """Whether it is named by its path on this machine."""
        return self.repo is None and Path(self.file).is_absolute()

    @property
    def expected_bytes(self) -> int | None:
        """The size in bytes: the exact one, else the rounded one, else None."""
        return self.about_bytes if self.size_bytes is None else self.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRules:
    """Figures that are used until a file's header is read."""

    header_mib: Amount | None = None
    """MiB of a file's metadata and vocabulary; absent if it follows from the size of the vocabulary."""
    tied_output: bool = False
    """Whether the input embedding is also the output matrix. The GPU then has a copy of it."""
    mtp_block_mib: Amount | None = None
    """MiB of the MTP block, without routed experts."""
    host_mib: Amount | None = None
    """MiB of tables that stay in host memory, such as one of n-grams. `parameters_b` does not count them."""
    beside_experts_mib: Amount | None = None
    """MiB of a file without its routed experts."""
    expert_blocks: Positive | None = None
    """Number of blocks with routed experts, including the MTP block."""
    source: Text
    """Where the figures come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One model of the catalogue."""

    id: Text
    """Id, as users write it: lower-case letters, digits, dots and dashes."""
    name: Text
    """Name for people."""
    family: str = ""
    """Models of one family have the same geometry and tokenizer."""
    repo: Text | None = None
    """Hugging Face repository; absent for files on this machine."""
    revision: Text | None = None
    """Commit that the sizes and checksums belong to; absent if unknown."""
    licence: Text | None = None
    """SPDX identifier of the weights' licence."""
    parameters_b: Amount | None = None
    """Total parameters in 10^9, from which unlisted sizes are estimated."""
    native_context: Positive | None = None
    """Context the model was trained for, in tokens."""
    preference: Count | None = None
    """Not used any more: plans order models by their score and speed. Accepted because older files may have it."""
    score: Score | None = None
    """How good its answers are; absent if no independent figure is known."""
    speculation: DrafterName | None = None
    """How it drafts: with a head inside (mtp) or in a separate file, a smaller model, or repeated text (ngram-mod)."""
    embedding: bool = False
    """Whether it is an embedding model or reranker, which has no drafts, and whose speed is that of reading."""
    reranker: bool = False
    """Whether it ranks texts; then `embedding` is true, too."""
    thinking: Literal["on", "off"] | None = None
    """Whether it thinks before it answers by default; absent if unknown."""
    draft: CompanionFile | None = None
    """The draft's file, if it needs one."""
    drafts: tuple[CompanionFile, ...] = ()
    """Files of other drafters that it can use, each with its `speculation`."""
    mmproj: tuple[CompanionFile, ...] = ()
    """Vision projectors."""
    geometry: Geometry | None = None
    """The model's shape; absent if only its header has it."""
    geometry_source: str = ""
    """Where the geometry comes from."""
    weights: WeightRules | None = None
    """Figures that are used until the header is read."""
    files: Annotated[tuple[ModelFile, ...], Limits(min_length=1)]
    """The quantisations, smallest first."""
    files_source: str = ""
    """Where the sizes and checksums come from."""
    sampling: SamplingAdvice | None = None
    """Sampling that the authors advise."""
    quality: tuple[QualityNote, ...] = ()
    """Losses of quality by quantisation."""
    presets: tuple[Preset, ...] = ()
    """Ways to start it, the preferred first."""
    measurements: tuple[PublishedRun, ...] = ()
    """Published runs, good and bad."""
    notes: tuple[Note, ...] = ()
    """Further remarks."""

    def file(self, quant: str) -> ModelFile | None:
        """Return the file of a quantisation, ignoring case, or None."""
        wanted = quant.casefold()
        return next((file for file in self.files if file.quant == quant or file.quant.casefold() == wanted), None)

    @property
    def drafter(self) -> Drafter:
        """The drafter of a model; a head where the catalogue names none."""
        return DRAFTERS[self.speculation] if self.speculation else MTP

    @property
    def draft_file(self) -> CompanionFile | None:
        """The file that its drafter needs beside the model, or None."""
        return self.draft if self.drafter.source == "file" else None

    @property
    def published_as(self) -> str:
        """The name under which runs of it are published: that of its family, for a file that of its header."""
        return self.family or self.name

    @property
    def slower_with_mtp(self) -> Note | None:
        """The note for which plans leave MTP off, or None."""
        return next((note for note in self.notes if note.mtp_off), None)

    @property
    def projector(self) -> CompanionFile | None:
        """The vision projector to load, or None: one of known size is preferred, then one in F16."""
        return min(
            self.mmproj,
            key=lambda each: (each.size_bytes is None, "F16" not in each.file.upper().replace("BF16", "")),
            default=None,
        )

    def has_head(self, file: ModelFile) -> bool:
        """Return whether the catalogue expects an MTP head in `file`. If the file's header was read, that decides."""
        if self.embedding:  # an embedding model drafts nothing, whatever its file holds
            return False
        return self.names_head if file.has_head is None else file.has_head

    @property
    def names_head(self) -> bool:
        """Whether it is listed as a model with a head in its files."""
        return self.speculation is not None and self.drafter.source == "head"

    def can_draft(self, file: ModelFile) -> bool:
        """Return whether `file` has what the model's drafter needs."""
        return self.drafter.can_draft(head=self.has_head(file), file=self.draft_file is not None)

    def with_drafter(self, spec_type: str | None) -> "ModelEntry":
        """Return the model with another drafter, as --spec-type calls it; None keeps its own."""
        if spec_type in (None, self.drafter.spec_type):
            return self
        drafter = find_drafter(spec_type, self.draft_kinds)
        file = next((each for each in self.all_drafts if drafter.uses_any(each.kinds)), None)
        others = tuple(each for each in self.all_drafts if each is not file)
        return replace(self, speculation=drafter.name, draft=file, drafts=others)

    @property
    def all_drafts(self) -> tuple[CompanionFile, ...]:
        """The files with which it can draft, each with its `speculation`, that of its own drafter first."""
        own = self.draft_file
        return (*((replace(own, speculation=own.speculation or self.speculation),) if own else ()), *self.drafts)

    def repo_of(self, companion: CompanionFile) -> str | None:
        """Return the repository of a file beside the model, or None."""
        return companion.repo or self.repo

    @property
    def draft_kinds(self) -> tuple[str, ...]:
        """The kinds of these files."""
        return tuple(kind for each in self.all_drafts for kind in each.kinds)

    def expert_layer_mib(self, file: ModelFile) -> float | None:
        """Return the MiB of one layer's routed experts: as measured, else by the family's rules, else None."""
        if file.expert_layer_mib is not None:
            return file.expert_layer_mib
        rules = self.weights
        if rules is None or rules.beside_experts_mib is None or rules.expert_blocks is None or file.size_bytes is None:
            return None
        return max(file.size_bytes / _MIB - rules.beside_experts_mib, 0) / rules.expert_blocks

    def mtp_block_mib(self, file: ModelFile) -> float | None:
        """MiB of the MTP block with its routed experts, or None when unknown."""
        if not self.has_head(file) or self.weights is None or self.weights.mtp_block_mib is None:
            return None
        if self.weights.expert_blocks is None:
            return self.weights.mtp_block_mib
        experts = self.expert_layer_mib(file)
        return None if experts is None else self.weights.mtp_block_mib + experts

    def quality_notes(self, quant: str, kv: str) -> tuple[QualityNote, ...]:
        """Return the quality notes that apply to a quantisation or a KV cache type."""
        return tuple(
            note for note in self.quality if kv in note.kv or any(part in quant.upper() for part in note.quants)
        )


@dataclass(frozen=True, slots=True)
class CatalogueProblem:
    """One error in a catalogue file of the user's. `line` counts from 1 and is None if it has no line."""

    file: Path
    line: int | None
    field: str
    reason: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else str(self.file)
        return f"{place}: {self.field}: {self.reason}" if self.field else f"{place}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All models, shipped ones first, and the errors found in the user's own files."""

    models: tuple[ModelEntry, ...]
    problems: tuple[CatalogueProblem, ...] = ()

    def find(self, model_id: str) -> ModelEntry:
        """Return the model with that id, ignoring case.

        Raises ModelUnknown, with similar ids, if there is none.
        """
        known = {model.id.casefold(): model for model in self.models}
        wanted = model_id.casefold()
        if wanted in known:
            return known[wanted]
        longer = sorted(each for each in known if each.startswith(wanted))
        near = list(dict.fromkeys([*longer, *get_close_matches(wanted, known, cutoff=0.5)]))[:_NEAR]
        raise ModelUnknown(
            message('The catalogue has no model "{model_id}".', model_id=model_id),
            join_messages(
                suggest_names(near),
                message(
                    "{command} lists all[, {here} those that are here].",
                    command=command_name("models", mark("Models")),
                    here=command_name("models list"),
                ),
            ),
            wanted=model_id,
            near=near,
        )
