"""Texts of the verdict card while a tune is planned, runs, is paused or has ended.

A card has a kicker (the small line above), a sentence, a detail below it, and buttons.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from launcher.base.errors import LauncherError
from launcher.gui.duration import format_duration
from launcher.gui.labels import UNKNOWN
from launcher.gui.late import measured_tunes, trial_views
from launcher.gui.translation import chosen_language, join_sentences, ntr, render, tr
from launcher.gui.tune.cards import WORKLOADS
from launcher.gui.tune.view_data import VerdictText, WorkloadAnswer
from launcher.models.drafters import choice_in, drafter_in, find_drafter

if TYPE_CHECKING:
    from launcher.app.measuring.tuner_space import PreparedTune
    from launcher.gui.tune.trial_views import TuneView
    from launcher.gui.widgets.blocks import ButtonAction
    from launcher.tuning.records import RunSettings
    from launcher.tuning.tuner import AnswersCompared, QuietAwaited, TrialPlanned


def plan_hint(prepared: "PreparedTune") -> str:
    """Return the hint below the budget: the model, a tune's expected duration, starts and tokens, and its drafters."""
    names = ", ".join(render(find_drafter(each).name_short) for each in prepared.drafters)
    hint = tr(
        "{model}: about {time}, {starts}, {tokens:,} tokens",
        time=format_duration(prepared.plan.seconds),
        starts=ntr("1 start", "{n} starts", prepared.plan.starts),
        tokens=prepared.tokens,
        model=file_name(prepared.model),
    )
    return f"{hint} · {names}" if names else hint


def starting_card(buttons: "Sequence[ButtonAction]") -> VerdictText:
    """Return the card of a tune that is starting."""
    return VerdictText(
        tr("Checking the model and this computer."),
        tr("Measuring"),
        tr("Runs the model with MTP off and with several draft lengths, in turn, until the result is clear."),
        "information",
        buttons,
    )


def trial_texts(planned: "TrialPlanned", setting: str, trials: int) -> tuple[str, str, str]:
    """Return kicker, sentence and detail during a trial. `setting` is a text, `trials` the expected number of them."""
    stages = {
        "probe": tr("First trials: MTP off and a few draft lengths."),
        "explore": tr("Exploring promising settings."),
        "verify": tr("Comparing the best settings with MTP off, in turn, so that heat and other load cancel out."),
        "confirm": tr("Comparing further, because the result is not clear yet."),
    }
    trial = tr("trial {number} of about {planned}", number=planned.number + 1, planned=trials)
    kicker = tr("Measuring · {of} · at most {left} left", of=trial, left=format_duration(planned.left_s))
    return kicker, tr("Measuring: {setting}.", setting=setting), stages[planned.stage.value]


def waiting_texts(waiting: "QuietAwaited") -> tuple[str, str, str]:
    """Return kicker, sentence and detail while the tune waits for other programs."""
    detail = tr(
        "The measurement goes on when it is quiet, after {left} at the latest.", left=format_duration(waiting.most_s)
    )
    return tr("Waiting for quiet"), render(waiting.reason), detail


def compared_card(view: "TuneView", compared: "AnswersCompared", buttons: "Sequence[ButtonAction]") -> VerdictText:
    """Return the card of a verdict while answers are compared."""
    detail = tr("Do MTP or the KV cache type change the answers? Now: {settings}.", settings=compared.settings)
    kicker = tr("Comparing the answers")
    return VerdictText(verdict_sentence(view.verdict or {}, view.workload), kicker, detail, "information", buttons)


def clients_texts(view: "TuneView") -> tuple[str, str, str]:
    """Return kicker, sentence and detail while clients use the server."""
    waited = format_duration(view.waited_s)
    return (
        tr("Measuring · waited {time} for clients", time=waited),
        tr("Clients use the server, so the measurement waits."),
        tr("It goes on as soon as they pause."),
    )


def answer_label(settings: "RunSettings") -> str:
    """Return the label of the button that serves a likely answer before the measurement has ended."""
    if not drafter_in(settings).drafts:
        return tr("Use these settings now")
    return tr("Use draft {draft} now", draft=render(choice_in(settings).number))


def pausing_texts() -> tuple[str, str, str]:
    """Return kicker, sentence and detail while the earlier server is restarted."""
    return tr("Pausing"), tr("Restarting the server that ran before the measurement."), ""


def paused_card(view: "TuneView", error: LauncherError | None, buttons: "Sequence[ButtonAction]") -> VerdictText:
    """Return the card of a paused tune."""
    done = ntr("1 trial is kept", "{n} trials are kept", len(view.trials))
    detail = tr("Continue resumes {model}, {work}.", model=file_name(view.model), work=view.workload)
    if error is not None:
        detail = join_sentences(render(error.message), detail)
    return VerdictText(
        tr("The measurement is paused."), f"{done} · {format_duration(view.seconds)}", detail, "information", buttons
    )


def failed_card(error: LauncherError) -> VerdictText:
    """Return the card of a tune that failed without a verdict."""
    return VerdictText(render(error.title), tr("Not measured"), render(error.hint), "attention")


def saving_text(view: "TuneView") -> str:
    """Return what is being stored: reading a large model's file for its SHA-256 takes a while."""
    return tr(
        "Saving {settings} for {model}. Its file is read once, for its SHA-256.",
        settings=trial_views.describe_settings((view.verdict or {}).get("settings", {}), {}),
        model=file_name(view.model),
    )


def verdict_card(view: "TuneView", buttons: "Sequence[ButtonAction]", *, saved: bool = False) -> VerdictText:
    """Return the card of a verdict."""
    verdict = view.verdict or {}
    runs = ntr("1 reply", "{n} replies", len(view.runs))
    if view.waited_s >= 1:
        runs = f"{runs} · {tr('waited {time} for clients', time=format_duration(view.waited_s))}"
    likely = verdict.get("likely") is not None
    head = f"✓ {tr('Saved for this computer')}" if saved else tr("Likely") if likely else tr("Verdict")
    kicker = f"{head} · {file_name(view.model)} · {view.workload} · {format_duration(view.seconds)} · {runs}"
    reason = str(verdict.get("because") or "")
    detail = tr("Why: {because}", because=render(reason)) if reason else ""
    if not likely and (verdict.get("speedup") is not None or verdict.get("gain") is not None):
        detail = join_sentences(detail, tr("All ranges together hold with 95 % confidence."))
    meaning = "attention" if verdict["mtp"] == "undecided" or measured_tunes.changes_answers(verdict) else "good"
    answers = [workload_answer(each, view.baseline) for each in verdict.get("workloads") or ()]
    return VerdictText(verdict_sentence(verdict, view.workload), kicker, detail, meaning, buttons, answers)


def workload_answer(answer: Mapping[str, Any], baseline: Mapping[str, Any]) -> WorkloadAnswer:
    """Return the answer for one of several workloads (a PartAnswer as JSON) as texts."""
    title = workload_title(str(answer["workload"]))
    settings = tr("not clear yet")
    if answer["mtp"] != "undecided":
        settings = (
            trial_views.describe_settings(answer["settings"], baseline) if drafter_in(answer).drafts else tr("MTP off")
        )
    low, high, likely = (answer.get(key) for key in ("ci_low", "ci_high", "likely"))
    change = UNKNOWN if low is None or high is None else f"{_percent_change(low)} … {_percent_change(high)}"
    chance = UNKNOWN if likely is None else tr("over 99 %") if likely > 0.99 else f"{100 * likely:.0f} %"
    return WorkloadAnswer(title, settings, change, chance)


def verdict_sentence(verdict: Mapping[str, Any], workload: str) -> str:
    """Return a verdict's sentence.

    English is as the tuner wrote it. For other languages the sentence is made from the figures, because the tuner joins
    it from parts in the order of English.
    """
    ratio, low, high = verdict.get("speedup"), verdict.get("ci_low"), verdict.get("ci_high")
    if chosen_language() == "en" or ratio is None or low is None or high is None:
        return render(str(verdict.get("overall") or verdict["sentence"]))
    draft = render(choice_in({**verdict.get("settings", {}), "draft": verdict["draft"]}).number)
    figures = {"work": workload, "draft": draft, "low": _percent_change(low), "high": _percent_change(high)}
    match verdict["mtp"]:
        case "on":
            sentence = tr(
                "For {work}, draft {draft} changes the speed by {low} to {high} compared with MTP off.", **figures
            )
        case "off" if high < 1:
            sentence = tr("Leave MTP off for {work}: it changes the speed by {low} to {high}.", **figures)
        case "off":
            sentence = tr("Leave MTP off for {work}: no measurable gain ({low} to {high}).", **figures)
        case _:
            sentence = tr("Undecided for {work}: MTP changes the speed by {low} to {high}.", **figures)
    gain = verdict.get("gain")
    if verdict.get("likely") is not None:
        sentence = f"{tr('Likely ({chance} %):', chance=int(100 * verdict['likely']))} {sentence}"
    if not gain or gain["estimate"] == ratio:
        return sentence
    settings = trial_views.describe_settings(verdict["settings"], {})
    bounds = {"low": _percent_change(gain["low"]), "high": _percent_change(gain["high"])}
    more = tr("{settings}: {low} to {high} compared with MTP off so far.", settings=settings, **bounds)
    return join_sentences(sentence, more)


def workload_title(name: str) -> str:
    """Return the title of a workload by its name, or those of several with commas between."""
    titles = {each.name: tr(each.title) for each in WORKLOADS}
    return ", ".join(titles.get(each, each) for each in name.split(", "))


def _percent_change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f} %"


def unfinished_card(view: "TuneView", reason: str) -> VerdictText:
    """Return the card of an unfinished tune from the history."""
    return VerdictText(render(reason), f"{file_name(view.model)} · {view.workload}", "", "information")


def keep_label(view: "TuneView") -> str:
    """Return the label of the button that keeps the recommended settings."""
    if measured_tunes.changes_answers(view.verdict or {}):
        return tr("Use these settings although the answers change")
    settings = (view.verdict or {}).get("settings", {})
    if drafter_in(settings).drafts:
        return tr("Use draft {draft} on this computer", draft=render(choice_in(settings).number))
    return tr("Keep MTP off on this computer")


def file_name(path: str) -> str:
    """Return the last part of a path of any system."""
    return path.replace("\\", "/").rsplit("/", 1)[-1]
