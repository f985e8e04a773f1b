"""Text of the Start page, made from the core's figures: pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.app.first.first_steps import Step, StepDetail, StepProgress, StepStage
from launcher.gui.duration import format_duration
from launcher.gui.labels import UNKNOWN
from launcher.gui.setting_text import setting_text
from launcher.gui.translation import join_sentences, ntr, render, tr
from launcher.models.drafters import choice_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.app.planning.start_settings import KeptPlan
    from launcher.base.progress import Progress
    from launcher.engine.settings import Settings
    from launcher.gui.start.queries import EngineAnswer
    from launcher.models.plan import Plan
    from launcher.models.situation import Situation

_MIB, _GIB, _MB, _GB = 2**20, 2**30, 10**6, 10**9
_LEAST_GB_BYTES = 10**8
"""Bytes from which a size is shown in GB."""


def draft_text(plan: Plan) -> str:
    """Return how a plan drafts, and its draft length, as text."""
    choice = plan.setting.draft_choice
    return render(choice.short_label if choice.drafter.drafts else choice.label())


def short_name(plan: Plan) -> str:
    """Return a model's name without endings that the card repeats elsewhere."""
    name = plan.entry.name
    for ending in (" with MTP head", " without MTP head", " with draft file"):
        name = name.removesuffix(ending)
    return name


def plan_title(plan: Plan) -> str:
    """Return a plan in one line: model, quant, context, draft length."""
    return ", ".join((short_name(plan), plan.file.quant, _context_text(plan), draft_text(plan), *_other_texts(plan)))


def settings_title(plan: Plan) -> str:
    """Return a plan of a known model in one line: quant, context, KV cache type, draft length."""
    kv = setting_text("kv", plan.setting.kv)
    return ", ".join((plan.file.quant, _context_text(plan), kv, draft_text(plan), *_other_texts(plan)))


def _context_text(plan: Plan) -> str:
    return setting_text("ctx", plan.setting.context)


def _other_texts(plan: Plan) -> Iterator[str]:
    """Yield what few plans have: experts on the CPU, and several GPUs."""
    if plan.setting.n_cpu_moe:
        yield _experts_text(plan.setting.n_cpu_moe)
    if plan.setting.gpus > 1:
        yield tr("over {count} GPUs", count=plan.setting.gpus)


def settings_origin_text(own_settings: KeptPlan, plan: Plan) -> str:
    """Return whose settings a plan has, and how the others differ, as text."""
    own_text, recommended_text = _settings_text(own_settings.settings), _settings_text(own_settings.planned_settings)
    if own_settings.is_kept_plan(plan) and own_settings.replaced:
        used = {name: value for name, value in own_settings.settings.items() if name not in own_settings.replaced}
        dropped = _settings_text(
            {name: value for name, value in own_settings.settings.items() if name in own_settings.replaced}
        )
        if not used:
            return tr("Your last settings cannot be used now: {mine}. Using the recommended settings.", mine=dropped)
        return tr("Your last settings: {mine}. Not used now: {gone}.", mine=_settings_text(used), gone=dropped)
    if own_settings.is_kept_plan(plan):
        return tr("Your last settings: {mine}. Recommended: {theirs}.", mine=own_text, theirs=recommended_text)
    if own_settings.kept_plan is None:
        return tr("Your last settings cannot be used now: {mine}. Using the recommended settings.", mine=own_text)
    return tr("Recommended settings: {theirs}. Your last settings: {mine}.", mine=own_text, theirs=recommended_text)


def _settings_text(settings: Settings) -> str:
    """Return settings in one line."""
    texts = {name: setting_text(name, value) for name, value in settings.items()}
    if "draft" in texts:  # how to draft is one choice
        texts["draft"] = render(choice_in(settings).label())
        texts.pop("drafter", None)
    if (layers := settings.get("n_cpu_moe")) is not None:
        texts["n_cpu_moe"] = _experts_text(int(layers))
    return ", ".join(texts.values())


def _experts_text(layers: int) -> str:
    return ntr("experts of {n} layer on the CPU", "experts of {n} layers on the CPU", layers)


def speed_text(plan: Plan) -> str:
    """Return the expected speed as a sentence, or "" if it is not known or the plan does not fit."""
    from launcher.models.plan import Status
    from launcher.models.speed import describe_forecast, describe_reading

    if plan.status is Status.TOO_BIG:
        return ""
    if plan.forecast is not None:
        return tr("Expected: {speed}.", speed=render(describe_forecast(plan.forecast, plan.setting.drafter)))
    return tr("Expected: {speed}.", speed=render(describe_reading(plan.reading))) if plan.reading is not None else ""


def fit_legend() -> str:
    """Return an explanation of the fit badges."""
    return tr(
        "FITS: enough memory. TIGHT: fits, but leaves too little memory free. OFFLOADS: some experts run on the CPU."
    )


def memory_needs_text(plan: Plan, answer: EngineAnswer | None, situation: Situation | None = None) -> str:
    """Return a plan's memory needs and their source, as text."""
    need, free = plan.required_mib / 1024, plan.free_mib / 1024
    place = tr("host memory") if plan.setting.backend == "cpu" else tr("GPU memory")
    text = tr("Needs {need:.1f} of {free:.1f} GiB free {where}.", need=need, free=free, where=place)
    if situation is not None and (stopping := count_stopping_servers(situation)):
        text = ntr(
            "Needs {need:.1f} of {free:.1f} GiB {where} that is free once the running server stops; "
            "{now:.1f} GiB free now.",
            "Needs {need:.1f} of {free:.1f} GiB {where} that is free once {n} running servers stop; "
            "{now:.1f} GiB free now.",
            stopping,
            need=need,
            free=free,
            where=place,
            now=situation.free_now_mib / 1024,
        )
    if situation is not None:
        text = join_sentences(text, unknown_memory_text(situation))
    if answer is not None and answer.plan == plan:
        return join_sentences(text, _engine_figures_text(answer))
    if plan.engine:
        return join_sentences(text, tr("Computed by the engine, {name}.", name=plan.engine))
    if plan.estimate.exact:
        return join_sentences(text, tr("Estimated from the header of the file."))
    low, high = plan.estimate.low / 2**30, plan.estimate.high / 2**30
    if f"{low:.1f}" != f"{high:.1f}":
        return join_sentences(
            text, tr("Estimated: {low:.1f} to {high:.1f} GiB; the header is not read yet.", low=low, high=high)
        )
    return join_sentences(text, tr("Estimated from the file size; the header is not read yet."))


def unknown_memory_text(situation: Situation) -> str:
    """Return a remark if it is unknown how much memory some of our own servers would free, else ""."""
    names = ", ".join(dict.fromkeys(each.model for each in situation.own if each.by_device is None))
    return tr("Memory that {names} would free: unknown.", names=names) if names else ""


def count_stopping_servers(situation: Situation) -> int:
    """Return the number of our own servers whose memory plans count as free."""
    return sum(1 for each in situation.own if each.mib)


def _engine_figures_text(answer: EngineAnswer) -> str:
    comparison = answer.comparison
    text = tr(
        "The engine computes {need:,.0f} MiB without the driver's part (took {seconds:.1f} s).",
        need=comparison.engine.total_mib,
        seconds=answer.seconds,
    )
    percent = comparison.difference_percent
    if percent is None:
        return text
    if comparison.flagged:
        return join_sentences(text, tr("The estimate is off by {percent:+.1f} %: trust the engine.", percent=percent))
    return join_sentences(text, tr("The estimate is off by {percent:+.1f} %.", percent=percent))


def memory_parts(plan: Plan) -> list[tuple[str, str, int]]:
    """Return the parts of a plan's memory for the memory bar: (key, label, bytes)."""
    parts = plan.estimate.parts
    return [
        ("weights", tr("weights"), parts.weights + parts.mmproj + parts.caches),
        ("kv", tr("KV"), parts.kv),
        ("state", tr("state"), parts.recurrent),
        ("draft", tr("draft"), parts.draft_kv + parts.draft_compute),
        ("compute", tr("compute"), parts.compute + parts.staging + parts.pool),
        ("driver", tr("driver"), parts.overhead),
    ]


def memory_totals(situation: Situation | None) -> tuple[int, int]:
    """Return the total bytes of the memory that plans use, and the bytes in use by others."""
    if situation is None:
        return 0, 0
    free = situation.free_mib * _MIB
    total = max(round(situation.nominal_gb * _GIB), free)
    return total, total - free


def step_name(step: Step) -> str:
    """Return a step's name."""
    return {
        Step.ENGINE: tr("Engine"),
        Step.MODEL: tr("Model"),
        Step.VERIFY: tr("Verify"),
        Step.LOAD: tr("Load"),
        Step.WARM_UP: tr("Warm up"),
        Step.SELF_TEST: tr("Self-test"),
    }[step]


def step_subject(report: StepProgress) -> str:
    """Return a step's subject, such as a file and its size."""
    total = report.progress.bytes
    size = ""
    if total:
        in_gb = total >= _LEAST_GB_BYTES
        size = tr("{size:.1f} GB", size=total / _GB) if in_gb else tr("{size:.1f} MB", size=total / _MB)
    match report.step:
        case Step.ENGINE if report.detail is StepDetail.BUILT_IN:
            return tr("built-in engine")
        case Step.ENGINE if report.stage is StepStage.DONE:
            return report.subject
        case Step.ENGINE:
            return ", ".join(filter(None, (report.subject or tr("llama.cpp, the stable build"), size)))
        case Step.MODEL if report.subject == "demo":
            return tr("built-in demo model")
        case Step.MODEL:
            return ", ".join(filter(None, (report.subject, size)))
        case Step.VERIFY:
            return tr("SHA-256 and MTP head")
        case Step.LOAD:
            return tr("into memory")
        case Step.WARM_UP:
            return tr("first request")
        case Step.SELF_TEST:
            return tr("drafts accepted")


def step_state(report: StepProgress) -> str:
    """Return a step's progress as text."""
    if report.stage is StepStage.FAILED:
        return tr("failed")
    detail = _detail_text(report.detail)
    if report.stage is StepStage.DONE:
        return _done_text(report, detail)
    progress = report.progress
    moved = _progress_text(progress)
    if report.stage is StepStage.PAUSED:
        return tr("paused, {moved} kept", moved=moved) if progress.done_bytes else tr("paused")
    if report.stage is StepStage.WAITING:
        return {
            Step.VERIFY: tr("after the download"),
            Step.ENGINE: tr("to be installed"),
            Step.MODEL: tr("to be downloaded"),
        }.get(report.step, "")
    if report.percent is not None:
        return tr("{percent:.0f} %", percent=report.percent)
    parts = [
        moved,
        detail,
        tr("{speed:,.0f} MB/s", speed=progress.bytes_per_second / _MB) if progress.bytes_per_second else "",
        tr("{left} left", left=format_duration(progress.seconds_left)) if progress.seconds_left is not None else "",
        render(progress.note),
    ]
    return " · ".join(filter(None, parts)) or tr("started")


def _done_text(report: StepProgress, detail: str) -> str:
    if report.drafted:
        text = tr("{accepted} of {drafted} drafted tokens accepted", accepted=report.accepted, drafted=report.drafted)
        speed = report.tokens_per_second
        return f"{text} · {tr('{speed:,.0f} t/s', speed=speed)}" if speed else text
    return detail or tr("done")


def _detail_text(detail: StepDetail | None) -> str:
    if detail is None:
        return ""
    return {
        StepDetail.INSTALLED_AND_TESTED: tr("installed, self-test passed"),
        StepDetail.FOUND: tr("installed"),
        StepDetail.BUILT_IN: tr("part of this program"),
        StepDetail.CHECKING_ACCESS: tr("checking size and access"),
        StepDetail.ALREADY_DOWNLOADED: tr("already downloaded"),
        StepDetail.RECEIVED: tr("received"),
        StepDetail.VERIFIED: tr("correct"),
        StepDetail.NO_CHECKSUM: tr("header correct; no checksum published"),
        StepDetail.SERVED: tr("already running"),
        StepDetail.ANSWERED: tr("working; MTP is off"),
        StepDetail.WRITES_NO_TEXT: tr("working; generates no text"),
        StepDetail.DOWNLOADED_ELSEWHERE: tr("being downloaded by another program"),
    }[detail]


def _progress_text(progress: Progress) -> str:
    if not progress.counts_bytes:
        return ""
    in_gb = (progress.bytes or progress.done_bytes) >= _LEAST_GB_BYTES
    unit, factor = ("GB", _GB) if in_gb else ("MB", _MB)
    done = f"{progress.done_bytes / factor:.1f}"
    if not progress.bytes:
        return f"{done} {unit}"
    return tr("{done} of {all:.1f} {unit}", done=done, all=progress.bytes / factor, unit=unit)


def evidence_text(plan: Plan) -> str:
    """Return the nearest published result in a few words."""
    from launcher.models.speed import comparable_rate

    if not plan.evidence:
        return UNKNOWN
    nearest = plan.evidence[0]
    speed, high = comparable_rate(nearest, plan.setting), nearest.tokens_per_second_high
    if speed is None:
        return UNKNOWN
    if high and speed == nearest.tokens_per_second:
        return tr("{low:,.0f} to {high:,.0f} t/s, {gpu}", low=speed, high=high, gpu=nearest.gpu)
    return tr("{speed:,.0f} t/s, {gpu}", speed=speed, gpu=nearest.gpu)


def evidence_tip(plan: Plan) -> str:
    """Return all published results near a plan, with their sources."""
    from launcher.models.speed import describe_run

    return "\n".join(render(describe_run(plan.entry, result)) for result in plan.evidence) or tr(
        "Speed unknown: no published run on a similar computer."
    )
