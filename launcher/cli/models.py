"""`mtp-launcher models`: the catalogue; with list, verify or remove, the models on this machine."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

from launcher.base.codec import to_json
from launcher.base.errors import BadOption, ModelMissing, Refused, Unreachable
from launcher.base.text import one_line
from launcher.cli.layout import UNKNOWN, format_count, format_table, wrap_text
from launcher.cli.output import Note, Result
from launcher.models.catalogue_load import load_catalogue

if TYPE_CHECKING:
    from launcher.models.catalogue import Catalogue, CompanionFile, ModelEntry
    from launcher.models.hub_figures import RefreshResult
    from launcher.models.preset import Note as ModelNote
    from launcher.models.preset import QualityNote, Sampling
    from launcher.models.stores import StoreScan

_GB = 1e9


async def run(options: argparse.Namespace) -> Result | int:
    """Return the catalogue, or one model in detail, with the problems in the user's own catalogue files."""
    if options.which:
        raise BadOption(
            f"Only one model can be shown at a time, not {options.model} and {options.which[0]}.", "Name one."
        )
    if options.refresh:
        return await _refresh_figures(load_catalogue(hub_figures=False), options)
    catalogue = load_catalogue()
    if options.model:
        model = catalogue.find(options.model)
        data: dict[str, Any] = {"model": model, "problems": catalogue.problems}
        return Result(data, chain(_describe_problems(catalogue), _describe_model(model)))
    from launcher.models.library import list_found

    found = await asyncio.to_thread(list_found)
    data = {"models": catalogue.models if options.json else [], "problems": catalogue.problems}
    data["found"] = [{"name": each.name, "path": str(each.path), "store": each.store.value} for each in found.models]
    return Result(data, chain(_describe_problems(catalogue), _format_list(catalogue), _format_found(found)))


def _describe_problems(catalogue: Catalogue) -> Iterator[str]:
    for problem in catalogue.problems:
        yield Note(f"Left out: {problem}")


async def _refresh_figures(catalogue: Catalogue, options: argparse.Namespace) -> Result:
    """Ask the hub for sizes and checksums of one model or all of them. The exit code is 1 if the hub did not answer for
    one of them."""
    from launcher.models.hub_figures import is_on_hub

    if options.model and not is_on_hub(catalogue.find(options.model)):
        raise BadOption(f"{options.model} is not from the hub: there is nothing to ask.", "Its files are on this disk.")
    models = [catalogue.find(options.model)] if options.model else list(filter(is_on_hub, catalogue.models))
    outcomes = await asyncio.gather(*(asyncio.to_thread(_ask_hub, model) for model in models))
    return Result(
        {"refreshed": outcomes, "problems": catalogue.problems},
        chain(_describe_problems(catalogue), *map(_describe_outcome, outcomes)),
        exit_code=1 if any(outcome.error is not None for outcome in outcomes) else 0,
    )


def _ask_hub(model: ModelEntry) -> RefreshResult:
    """Ask the hub about one model. The result has an error that concerns this model only; others are raised."""
    from launcher.models.hub_figures import RefreshResult, refresh_figures

    try:
        return refresh_figures(model)
    except (ModelMissing, Refused, Unreachable) as error:
        return RefreshResult(model.id, model.repo, error=error)


def _describe_outcome(outcome: RefreshResult) -> Iterator[str]:
    if outcome.error is not None:
        yield Note(f"{outcome.model}: {outcome.error}")
        return
    yield f"{outcome.model}: " + (
        f"{outcome.repo} at {outcome.revision}" if outcome.repo else "only its draft is on the hub"
    )
    for file, learned in groupby(outcome.learned, lambda each: each.file):
        yield f"  new        {file}: {', '.join(_format_figure(each.value) for each in learned)}"
    for each in outcome.differs:
        theirs, ours = _format_figure(each.hub), _format_figure(each.catalogue)
        yield f"  differs    {each.file}: {theirs} on the hub now; the catalogue still has {ours}"
    for missing in outcome.missing:
        yield f"  missing    {missing.file}" + ("" if missing.repo == outcome.repo else f" in {missing.repo}")
    if not (outcome.learned or outcome.differs or outcome.missing):
        yield "  nothing new"


def _format_figure(value: int | str) -> str:
    return f"SHA-256 {value[:12]}" if isinstance(value, str) else f"{value:,} bytes"


def _format_list(catalogue: Catalogue) -> Iterator[str]:
    head = ("ID", "NAME", "FILES", "SIZES", "DRAFTS BY", "LICENCE")
    rows = [
        (
            model.id,
            model.name,
            str(len(model.files)),
            _format_sizes(model),
            model.speculation or "none",
            model.licence or UNKNOWN,
        )
        for model in catalogue.models
    ]
    yield from format_table([head, *rows], right={2, 3}, indent="")
    yield "\n`mtp-launcher models ID` shows one in detail, `mtp-launcher models list` those on this machine."


def _format_found(found: StoreScan) -> Iterator[str]:
    """Yield the models of other programs, by the names that `plan` and `serve` take."""
    if found.models:
        yield "\nOn this machine in other programs' folders, used in place"
        yield from format_table([("NAME", "STORE"), *((each.name, each.store.title) for each in found.models)])
    for problem in found.problems:
        yield Note(one_line(problem.reason, 4_096))


def _format_sizes(model: ModelEntry) -> str:
    known = sorted(file.size_bytes for file in model.files if file.size_bytes)
    if not known:
        return "unknown"
    ends = dict.fromkeys(_format_gb(size) for size in (known[0], known[-1]))
    return " to ".join(ends) + " GB"


def _describe_model(model: ModelEntry) -> Iterator[str]:
    yield f"{model.name} ({model.id})"
    for topic, text in _list_facts(model):
        yield wrap_text(text, f"  {topic:<9} ")
    yield from _format_files(model)
    yield from _format_presets(model)
    yield from _format_measurements(model)
    notes: list[ModelNote | QualityNote] = [*model.notes, *model.quality]
    for note in notes:
        yield f"\n{wrap_text(note.text)}\n{wrap_text(note.source, '  Source: ')}"


def _list_facts(model: ModelEntry) -> Iterator[tuple[str, str]]:
    if model.repo:
        yield "From", f"{model.repo}, {f'revision {model.revision}' if model.revision else 'no revision pinned'}"
    yield "Licence", model.licence or "unknown"
    yield "Context", f"{model.native_context:,} tokens" if model.native_context else "unknown"
    if model.speculation:
        drafter, beside = model.drafter, model.draft_file
        file = f", {_format_companion(beside)}" if beside else ""
        yield "Drafts by", f"{drafter.summary} (--spec-type {drafter.spec_type}){file}"
    for each in model.drafts:
        yield "or by", f"{each.drafter.summary} (--drafter {each.drafter.spec_type}), {_format_companion(each)}"
    defaults = {"on": "on, unless a request turns it off", "off": "off"}
    yield "Thinking", defaults[model.thinking] if model.thinking else "unknown"
    if model.sampling:
        yield "Sampling", f"thinking: {_format_sampling(model.sampling.thinking)}"
        yield "", f"no thinking: {_format_sampling(model.sampling.no_thinking)}"
        yield "", f"from {model.sampling.source}"
    else:
        yield "Sampling", "unknown"
    if shape := model.geometry:
        experts = f", {shape.experts} experts, {shape.experts_used} used per token" if shape.experts else ""
        layers = f"{shape.layers} layers, {shape.attention_layers} with attention, {shape.mtp_layers} MTP"
        yield "Shape", f"{shape.architecture}: {layers}{experts}"
        yield "", f"from {model.geometry_source or 'its description'}"
    else:
        yield "Shape", "unknown, read from the file's header"


def _format_companion(file: CompanionFile) -> str:
    about = "" if file.size_bytes else "about "
    return f"{file.file} ({f'{about}{_format_gb(file.expected_bytes)} GB' if file.expected_bytes else 'size unknown'})"


def _format_files(model: ModelEntry) -> Iterator[str]:
    yield "\n" + wrap_text("Files" + (f" (from {model.files_source})" if model.files_source else ""))
    footnotes = _Footnotes()
    rows: list[Sequence[str]] = [("QUANT", "GB", "SHA-256", "NAME", "")]
    for file in model.files:
        mark = footnotes.add_note(file.note, file.source)
        rows.append((file.quant, _format_gb(file.size_bytes), _shorten_sha256(file.sha256), file.file, mark))
    for vision in model.mmproj:
        mark = footnotes.add_note("", vision.source)
        rows.append(("vision", _format_gb(vision.size_bytes), _shorten_sha256(vision.sha256), vision.file, mark))
    yield from format_table(rows, right={1})
    yield from footnotes.format_lines()


def _format_presets(model: ModelEntry) -> Iterator[str]:
    if not model.presets:
        return
    yield "\nPresets"
    footnotes = _Footnotes()
    head = ("GPU", "FOR", "QUANT", "CONTEXT", "KV", "DRAFT", "CPU-MOE", "UBATCH", "SLOTS", "MIB", "HOST", "MARK", "")
    rows: list[Sequence[str]] = [head]
    for preset in model.presets:
        gpu = f"{preset.memory_gb} GB" if preset.memory_gb else "any"
        host = f"{preset.host_memory_gb_min} GB" if preset.host_memory_gb_min else ""
        purposes = [*preset.intents, *([] if preset.variant == "any" else [preset.variant])]
        counts = (preset.draft, preset.n_cpu_moe, preset.ubatch, preset.slots, preset.predicted_mib)
        rows.append(
            (
                gpu,
                ", ".join(purposes),
                preset.quant,
                format_count(preset.ctx),
                preset.kv,
                *map(format_count, counts),
                host,
                preset.mark,
                footnotes.add_note(preset.note, preset.source),
            )
        )
    yield from format_table(rows, right={0, 3, 5, 6, 7, 8, 9, 10})
    yield from footnotes.format_lines()


def _format_measurements(model: ModelEntry) -> Iterator[str]:
    if count := len(model.measurements):
        yield f"\n{wrap_text(f'{count} published runs: `mtp-launcher plan {model.id} --evidence` lists them.')}"


class _Footnotes:
    """Footnotes of a table, each text once."""

    def __init__(self) -> None:
        self._marks: dict[str, str] = {}

    def add_note(self, note: str, source: str) -> str:
        """Add a note, and return the mark that refers to it, such as [1]; "" for an empty note."""
        text = " ".join(filter(None, (note, f"Source: {source}." if source else "")))
        return self._marks.setdefault(text, f"[{len(self._marks) + 1}]") if text else ""

    def format_lines(self) -> Iterator[str]:
        for text, mark in self._marks.items():
            yield wrap_text(text, f"  {mark:>4} ")


def _format_sampling(sampling: Sampling | None) -> str:
    if sampling is None:
        return "no recommendation"
    return ", ".join(f"{name} {value:g}" for name, value in to_json(sampling).items() if value is not None)


def _format_gb(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else f"{size_bytes / _GB:.2f}"


def _shorten_sha256(sha256: str | None) -> str:
    return sha256[:12] if sha256 else UNKNOWN
