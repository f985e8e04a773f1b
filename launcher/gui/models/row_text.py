"""Texts and figures of the library's rows: one for a model, or for one of its files."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from launcher.gui.duration import format_duration
from launcher.gui.labels import UNKNOWN
from launcher.gui.models.serving import is_loaded
from launcher.gui.models.text import file_state, format_date, format_size, job_percent, place_text, quant_text
from launcher.gui.setting_text import format_context_length
from launcher.gui.translation import render, tr
from launcher.gui.viewmodel import state_name
from launcher.models.evidence import compare_drafters, find_overall, read_acceptance
from launcher.models.memory import ENCODER_MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.app.models.model_library import LibraryFile, LibraryModel
    from launcher.base.progress import Progress
    from launcher.engine.server.state import ModelStatus
    from launcher.fetch.jobs import Job
    from launcher.gui.models.serving import Serving
    from launcher.models.library import LocalModel
    from launcher.models.plan import Plan

_GIB_MIB, _MIB = 1_024, 2**20
_MUCH_FASTER = 1.1
"""A row names drafts as a reason if they make the model at least this many times as fast."""
_ROOMY_MIB = 6_144
"""Free GPU memory beside a model that is worth naming."""
_STORE_TILES = {"ollama": "Ol", "lm-studio": "LM", "jan": "Ja", "llama.cpp": "lc", "hub": "HF"}
TILE_ORDER = ("M", "F", "LM", "Ol", "Ja", "lc", "HF", "")


@dataclass(frozen=True, slots=True)
class Download:
    """A download of a file: its job and its progress. `job` is None until the queue has it."""

    job: Job | None = None
    progress: Progress | None = None

    @property
    def is_active(self) -> bool:
        """Whether it runs or waits, or is being added."""
        return self.job is None or self.job.state.value in ("waiting", "running", "paused")


@dataclass(frozen=True, slots=True)
class Row:
    """The texts and figures of a row. `tile` is a store's letters, "" for the hub; `action` what its button does.

    `action` is "download", "files" or "retry", else empty; `state` is the text in its place, with a colour role.
    `fraction` is the progress of a download or a load from 0 to 1, None if there is none. `tag` is a word
    beside the name.
    """

    name: str
    note: str
    tile: str = ""
    fit: str = ""
    quant: str = ""
    action: str = ""
    state: str = ""
    state_role: str = "secondary"
    fraction: float | None = None
    speed: str = UNKNOWN
    speed_note: str = ""
    context: str = UNKNOWN
    size: str = UNKNOWN
    tip: str = ""
    tag: str = ""
    is_measured: bool = False
    """Whether the speed is the measured one, not the expected."""

    @property
    def sentence(self) -> str:
        """All of it as one text, for screen readers."""
        parts = [self.name, self.tag, self.quant if self.quant != self.name else "", tr(self.fit) if self.fit else ""]
        if self.speed != UNKNOWN:
            if self.is_measured:
                parts.append(tr("measured {speed} t/s", speed=self.speed))
            else:
                parts.append(tr("expected {speed} t/s", speed=self.speed))
        parts += [self.size if self.size != UNKNOWN else "", self.state, action_text(self.action), self.note]
        return ", ".join(filter(None, parts))


def name_file(model: LibraryModel, file: LibraryFile) -> str:
    """Return the name of a file with its model, in one line."""
    what = file.quant if file.draft is None else render(file.draft.drafter.name_short)
    return " · ".join(filter(None, (render(model.name), what)))


def action_text(action: str) -> str:
    """Return the text of a row's button."""
    return {"download": tr("Download"), "files": tr("Show files"), "retry": tr("Try again")}.get(action, "")


def describe_model(
    model: LibraryModel, downloads: Mapping[str, Download], *, recommended: bool, serving: Serving | None = None
) -> Row:
    """Return the row of a model, which shows its first file, or one of its files that the server has loaded."""
    first = model.first
    if first is None:
        found = model.found
        note = tr("On Hugging Face: {repo}", repo=model.repo)
        if found is not None and found.downloads:
            note = tr("{owner}, {count:,} downloads a month", owner=model.repo.partition("/")[0], count=found.downloads)
        changed = format_date(model.changed_s)
        return Row(model.name, note, action="files", speed_note="", tip=f"{model.repo}\n{changed}")
    if model.is_pending and not model.is_here:
        return Row(render(model.name), tr("Checking whether it fits ..."), tip=model.repo)
    downloading = _find_download(model, downloads)
    row = _describe(model, first, downloads.get(first.download_id) if first.is_absent else None)
    note = _model_note(model, first)
    tag = tr("recommended") if recommended and first is model.best else ""
    tile = store_tile(first.local) if first.local is not None else ("M" if model.is_built_in else "")
    if downloading is not None:
        what, download = downloading
        name = what.quant if what.draft is None else render(what.draft.drafter.name_short)
        note = tr("Getting {quant}: {progress}", quant=name, progress=download_text(download))
        row = _with_progress(row, download) if what is first else row
    statuses = [serving.find_status(model, each) for each in model.files] if serving is not None else []
    row = _with_status(row, next(filter(None, statuses), None))
    return replace(row, name=render(model.name), note=note, tile=tile, tag=tag)


def describe_file(
    model: LibraryModel, file: LibraryFile, downloads: Mapping[str, Download], *, serving: Serving | None = None
) -> Row:
    """Return the row of one file of a model."""
    row = _describe(model, file, downloads.get(file.download_id) if file.is_absent else None)
    if serving is not None:
        row = _with_status(row, serving.find_status(model, file))
    tile = store_tile(file.local) if file.local is not None else ""
    name = file.quant or UNKNOWN
    if file.draft is not None:
        name = render(file.draft.drafter.name_short)
    elif file.local is not None and not file.is_model:
        name = quant_text(file.local)
    return replace(row, name=name, note=_file_note(model, file), tile=tile)


def size_text(file: LibraryFile) -> str:
    """Return the size of a file, with a tilde where it is an estimate."""
    if not file.size_bytes:
        return tr("size unknown")
    size = format_size(file.size_bytes)
    return size if file.is_size_known else tr("~{size}", size=size)


def draft_gain_text(file: LibraryFile) -> str:
    """Return what a draft might bring by published runs: the gain in speed, else the tokens that a pass yields."""
    entry, draft = file.entry, file.draft
    assert entry is not None  # noqa: S101 -- for the type checker
    assert draft is not None  # noqa: S101
    own, values = entry.drafter, dict[str, object](other=render(entry.drafter.name_short))
    other = draft.drafter.spec_type
    compared = [runs for runs in compare_drafters(entry.measurements) if other in runs]
    if compared:
        runs = max(compared, key=lambda runs: runs[other].speedup or 0)
        run, own_run = runs[other], runs.get(own.spec_type) if own.spec_type != other else None
        values |= {"ratio": run.speedup, "gpu": run.gpu}
        if own_run is None:
            return tr("published: up to {ratio:.2f} times as fast as without drafts ({gpu})", **values)
        return tr(
            "published: up to {ratio:.2f} times as fast as without drafts, {other} {own:.2f} ({gpu})",
            own=own_run.speedup,
            **values,
        )
    best, usual = (find_overall(read_acceptance(entry.published_as, each)) for each in (draft.drafter, own))
    if best is None:
        return tr("its gain is not published")
    values |= {"tokens": best.tokens, "length": best.draft}
    if usual is None or (usual.draft, usual.source) != (best.draft, best.source):
        return tr("published: {tokens:.1f} tokens a pass with draft {length}", **values)
    return tr(
        "published: {tokens:.1f} tokens a pass with draft {length}, {other} {own:.1f}",
        own=usual.tokens,
        **values,
    )


def store_tile(local: LocalModel) -> str:
    """Return the letters for the place of a file."""
    if local.store is not None:
        return _STORE_TILES[local.store.value]
    return "M" if local.place.value == "ours" else "F"


def tile_name(tile: str) -> str:
    """Return what the letters of a tile stand for."""
    return {
        "M": tr("our folder"),
        "F": tr("added folder"),
        "LM": "LM Studio",
        "Ol": "Ollama",
        "Ja": "Jan",
        "lc": "llama.cpp",
        "HF": tr("Hugging Face cache"),
        "": tr("can be downloaded"),
    }[tile]


def download_text(download: Download) -> str:
    """Return the progress of a download in a few words."""
    job, progress = download.job, download.progress
    if job is None:
        return tr("adding ...")
    if job.is_changing:
        return tr("pausing") if job.requested.value == "pause" else tr("cancelling")
    if job.state.value == "waiting":
        return tr("will retry") if job.failure is not None else tr("waiting")
    percent = job_percent(job, progress)
    shown = "" if percent is None else tr("{percent:.0f} %", percent=percent)
    if job.state.value == "paused":
        return tr("paused, {progress}", progress=shown) if shown else tr("paused")
    if progress is not None and progress.note:
        return render(progress.note)
    if progress is not None and progress.seconds_left is not None:
        return f"{shown} · {tr('{time} left', time=format_duration(progress.seconds_left))}"
    return shown or tr("starting")


def speed_range(plan: Plan) -> str:
    """Return the range of most runs, as text; empty if the speed is not known."""
    forecast = plan.forecast
    return "" if forecast is None else tr("{low:,.0f} to {high:,.0f}", low=forecast.low, high=forecast.high)


def pictures_mib(plan: Plan) -> int | None:
    """Return the MiB that a model takes in addition once it reads pictures; None if the projector's size is unknown."""
    projector = plan.entry.projector
    if projector is None or not projector.expected_bytes:
        return None
    return math.ceil(projector.expected_bytes / _MIB) + ENCODER_MIB


def missing_mib(plan: Plan) -> int:
    """Return the MiB that a plan lacks, 0 if it fits."""
    return max(plan.needed_mib - plan.free_mib, 0)


def _find_download(model: LibraryModel, downloads: Mapping[str, Download]) -> tuple[LibraryFile, Download] | None:
    for each in model.files:
        download = downloads.get(each.download_id) if each.download_id else None
        if download is not None and download.is_active:
            return each, download
    return None


def _describe(model: LibraryModel, file: LibraryFile, download: Download | None) -> Row:
    plan, local = file.plan, file.local
    row = Row(
        "",
        "",
        fit=plan.status.value if plan is not None else "",
        quant=quant_text(local) if local is not None and local.kind is not None else file.quant or UNKNOWN,
        action="download" if file.is_absent and file.download_id else "",
        size=size_text(file) if file.size_bytes else UNKNOWN,
        tip=render(file.lack) or file.download_id or (str(local.path) if local is not None else ""),
    )
    if model.is_built_in:
        row = replace(row, state=tr("built in"), speed_note=tr("not measured"))
    elif local is not None:
        text, _glyph, role = file_state(local)
        here = {"verified": tr("here, verified"), "not verified": tr("here")}
        state = here["verified"] if local.state.value == "good" and role == "good" else here["not verified"]
        row = replace(
            row,
            state=text if role in ("bad", "attention") else state,
            state_role=role if role == "bad" else "secondary",
        )
    if file.measured is not None:
        measured = tr("measured {rate:,.0f}", rate=file.measured.tokens_per_second)
        expected = plan.forecast if plan is not None and plan.status.value != "TOO BIG" else None
        speed = file.measured if expected is None else expected
        row = replace(row, speed=f"{speed.tokens_per_second:,.0f}", is_measured=expected is None)
        row = replace(row, speed_note=tr("measured here") if expected is None else measured)
    elif plan is None or plan.status.value == "TOO BIG":
        if not model.is_built_in and file.is_model:
            note = tr("unknown") if plan is None and file.lack else tr("cannot run") if plan is not None else ""
            row = replace(row, speed_note=note)
    elif plan.forecast is not None:
        row = replace(row, speed=f"{plan.forecast.tokens_per_second:,.0f}", speed_note=speed_range(plan))
    elif plan.reading is not None:
        row = replace(row, speed=f"{plan.reading.tokens_per_second:,.0f}", speed_note=tr("reads only"))
    else:
        row = replace(row, speed_note=tr("unknown"))
    if plan is not None and plan.status.value != "TOO BIG":
        row = replace(row, context=format_context_length(plan.setting.context))
    return row if download is None else _with_progress(row, download)


def _with_status(row: Row, status: ModelStatus | None) -> Row:
    """Return the row of a file that the server has loaded, or loads."""
    if status is None:
        return row
    if is_loaded(status):
        return replace(row, state=tr("loaded"), state_role="good")
    fraction = None if status.percent is None else status.percent / 100
    return replace(row, state=state_name(status), state_role="text", fraction=fraction)


def _with_progress(row: Row, download: Download) -> Row:
    job = download.job
    if download.is_active:
        percent = 0.0 if job is None else job_percent(job, download.progress) or 0.0
        return replace(row, action="", state=download_text(download), state_role="text", fraction=percent / 100)
    if job is not None and job.state.value == "failed":
        return replace(row, action="retry")
    return row


def _model_note(model: LibraryModel, file: LibraryFile) -> str:
    """Return a line about the file that stands for its model: whether it fits, how it runs, or its problem."""
    plan, local = file.plan, file.local
    if model.is_built_in:
        return tr("Shows drafts without a GPU")
    if local is not None and local.kind is not None:
        return render(local.kind.sentence)
    if local is not None and local.missing_bytes:
        return _incomplete_note(local)
    if local is not None and local.problem and not file.is_usable:
        return render(local.problem)
    if plan is None:
        return tr("Cannot tell whether it fits.") if file.lack else tr("Checking whether it fits ...")
    if plan.status.value == "TOO BIG":
        if plan.host_short and not missing_mib(plan):
            return tr("Needs more host memory than is free")
        return tr("Needs {size:.1f} GiB more than is free", size=missing_mib(plan) / _GIB_MIB)
    first, second = _first_remark(plan), _second_remark(plan)
    return tr("{first}; {second}", first=first, second=second) if second else first


def _first_remark(plan: Plan) -> str:
    """Return how a plan that fits runs: its use, its place in memory, or its gain by drafts."""
    forecast = plan.forecast
    if plan.entry.embedding:
        return tr("Ranks texts for a search") if plan.entry.reranker else tr("Turns texts into vectors for a search")
    if plan.status.value == "OFFLOADS":
        weights = plan.estimate.host.weights
        share = weights / max(weights + plan.estimate.parts.weights, 1)
        return tr("{percent:.0f} % of it runs in host memory", percent=100 * share)
    if plan.status.value == "TIGHT":
        free = (plan.free_mib - plan.needed_mib) / _GIB_MIB
        return tr("Leaves only {size:.1f} GiB free", size=free)
    if (
        plan.setting.drafter.drafts
        and forecast is not None
        and forecast.tokens_per_second >= _MUCH_FASTER * forecast.without_mtp
    ):
        return tr("Drafts: {ratio:.1f} times as fast", ratio=forecast.tokens_per_second / forecast.without_mtp)
    if plan.setting.drafter.drafts:
        return tr("Drafts {count} ahead", count=plan.setting.draft)
    has_head = plan.entry.has_head(plan.file)
    return tr("Faster without drafts") if has_head else tr("No MTP head")


def _second_remark(plan: Plan) -> str:
    """Return a short context, images, or much free memory as a remark; "" if there is none of these."""
    trained = plan.entry.native_context or (plan.entry.geometry.trained_context if plan.entry.geometry else 0)
    if plan.status.value in ("OFFLOADS", "TIGHT") or plan.entry.embedding:
        return ""
    if trained and plan.setting.context < trained / 2:
        return tr(
            "context {tokens} of {trained}",
            tokens=format_context_length(plan.setting.context),
            trained=format_context_length(trained),
        )
    spare = plan.free_mib - plan.needed_mib
    if plan.entry.mmproj and not plan.setting.mmproj_bytes:
        needed = pictures_mib(plan)
        return tr("reads pictures") if needed is None or needed <= spare else tr("no room for pictures")
    return tr("leaves {size:.0f} GiB free", size=spare / _GIB_MIB) if spare >= _ROOMY_MIB else ""


def _incomplete_note(local: LocalModel) -> str:
    return tr("{size} of the file are missing", size=format_size(local.missing_bytes))


def _file_note(model: LibraryModel, file: LibraryFile) -> str:
    """Return in a few words how a file compares with the model's best one."""
    best, plan = model.best, file.plan
    if file.local is not None and file.local.missing_bytes:
        return _incomplete_note(file.local)
    if file.draft is not None and file.local is None:
        return tr("another way to draft")
    if file.local is not None and file.local.store is not None:
        return place_text(file.local)
    if file.local is not None and file.local.kind is not None:
        return tr("loaded with the model") if file.local.kind.beside else tr("not a model")
    if model.is_built_in:
        return ""
    if plan is None:
        return tr("unknown") if file.lack else ""
    if plan.status.value == "TOO BIG":
        return tr("needs {size:.1f} GiB more", size=missing_mib(plan) / _GIB_MIB)
    if best is None or best.plan is None or file.key == best.key:
        return tr("best for this computer")
    if plan.status.value == "OFFLOADS" and best.plan.status.value != "OFFLOADS":
        return tr("partly in host memory")
    larger = (file.size_bytes or 0) > (best.size_bytes or 0)
    if plan.setting.context < best.plan.setting.context:
        return tr("higher quality, less context") if larger else tr("less context")
    if plan.setting.context > best.plan.setting.context:
        return tr("more context, lower quality") if not larger else tr("more context")
    if larger:
        return tr("higher quality, slower")
    return tr("smaller, lower quality")
