"""Text of the verdict card while a tune is planned, running, paused or finished."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from launcher.base.errors import LauncherError
from launcher.gui import translation as words
from launcher.gui.translation import ntr, render, tr
from launcher.gui.tune.view_data import VerdictText

if TYPE_CHECKING:
    from launcher.app.tuner_space import PreparedTune
    from launcher.gui.tune.trial_views import TuneView
    from launcher.tuning.tuner import TrialPlanned

Buttons = Sequence[tuple[str, Callable[[], object]]]


def format_duration(seconds: float) -> str:
    """Return a duration as text."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if not minutes:
        return tr("{seconds} s", seconds=whole)
    if not rest:
        return tr("{minutes} min", minutes=minutes)
    return tr("{minutes} min {seconds} s", minutes=minutes, seconds=rest)


def plan_hint(prepared: "PreparedTune") -> str:
    """Return a tune's expected duration and size, for the hint under the budget."""
    return tr(
        "{model}: about {time}, {starts}, {tokens:,} tokens",
        time=format_duration(prepared.plan.seconds),
        starts=ntr("1 start", "{n} starts", prepared.plan.starts),
        tokens=prepared.tokens,
        model=prepared.model.replace("\\", "/").rsplit("/", 1)[-1],
    )


def starting_card(buttons: Buttons) -> VerdictText:
    """Return the card of a starting tune."""
    return VerdictText(
        tr("Checking the model and this computer."),
        tr("Measuring"),
        tr("Runs the model with MTP off and with several draft lengths, in turn, until the result is clear."),
        "information",
        buttons,
    )


def trial_texts(step: "TrialPlanned", setting: str, planned: int) -> tuple[str, str, str]:
    """Return kicker, sentence and detail during a trial."""
    stages = {
        "probe": tr("First trials: MTP off and a few draft lengths."),
        "explore": tr("Exploring promising settings."),
        "verify": tr("Comparing the best settings with MTP off, in turn, so that heat and other load cancel out."),
        "confirm": tr("Comparing further, because the result is not clear yet."),
    }
    number = step.number + 1
    of = tr("trial {number} of about {planned}", number=number, planned=planned)
    kicker = tr("Measuring · {of} · at most {left} left", of=of, left=format_duration(max(step.left_s, 0)))
    return kicker, tr("Measuring: {setting}.", setting=setting), stages[step.stage.value]


def pausing_texts() -> tuple[str, str, str]:
    """Return kicker, sentence and detail while the earlier server is restarted."""
    return tr("Pausing"), tr("Restarting the server that ran before the measurement."), ""


def paused_card(shown: "TuneView", why: LauncherError | None, buttons: Buttons) -> VerdictText:
    """Return the card of a paused tune."""
    done = ntr("1 trial is kept", "{n} trials are kept", len(shown.trials))
    detail = tr("Continue resumes {model}, {work}.", model=_file_name(shown.model), work=shown.work)
    if why is not None:
        detail = f"{render(why.message)} {detail}"
    return VerdictText(
        tr("The measurement is paused."), f"{done} · {format_duration(shown.seconds)}", detail, "information", buttons
    )


def failed_card(error: LauncherError) -> VerdictText:
    """Return the card of a tune that failed without a verdict."""
    return VerdictText(render(error.title), tr("Not measured"), render(error.hint), "attention")


def verdict_card(shown: "TuneView", buttons: Buttons, *, kept: bool = False) -> VerdictText:
    """Return the card of a verdict."""
    told = shown.verdict or {}
    runs = ntr("1 reply", "{n} replies", len(shown.runs))
    head = tr("Saved for this computer") if kept else tr("Verdict")
    kicker = f"{head} · {_file_name(shown.model)} · {shown.work} · {format_duration(shown.seconds)} · {runs}"
    because = str(told.get("because") or "")
    detail = tr("Why: {because}", because=render(because)) if because else ""
    if told.get("speedup") is not None or told.get("gain") is not None:
        detail = f"{detail} {tr('All ranges together hold with 95 % confidence.')}".strip()
    meaning = {"on": "good", "off": "good", "undecided": "attention"}[str(told["mtp"])]
    return VerdictText(verdict_sentence(told, shown.work), kicker, detail, meaning, buttons)


def verdict_sentence(told: Mapping[str, Any], work: str) -> str:
    """Return a verdict's sentence.

    In other languages than English it is rebuilt from the figures, because the parts of the original have English
    order.
    """
    from launcher.gui.tune.trial_views import settings_text

    ratio, low, high = told.get("speedup"), told.get("ci_low"), told.get("ci_high")
    if words.chosen_language() == "en" or ratio is None or low is None or high is None:
        return render(str(told["sentence"]))
    figures = {"work": work, "draft": told["draft"], "low": _percent_change(low), "high": _percent_change(high)}
    match told["mtp"]:
        case "on":
            said = tr(
                "For {work}, draft {draft} changes the speed by {low} to {high} compared with MTP off.", **figures
            )
        case "off" if high < 1:
            said = tr("Leave MTP off for {work}: it changes the speed by {low} to {high}.", **figures)
        case "off":
            said = tr("Leave MTP off for {work}: no measurable gain ({low} to {high}).", **figures)
        case _:
            said = tr("Undecided for {work}: MTP changes the speed by {low} to {high}.", **figures)
    gain = told.get("gain")
    if not gain or gain["estimate"] == ratio:
        return said
    settings = settings_text(told["settings"], {})
    ends = {"low": _percent_change(gain["low"]), "high": _percent_change(gain["high"])}
    more = tr("{settings}: {low} to {high} compared with MTP off so far.", settings=settings, **ends)
    return f"{said} {more}"


def _percent_change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f} %"


def unfinished_card(shown: "TuneView", why: str) -> VerdictText:
    """Return the card of an unfinished tune from the history."""
    return VerdictText(render(why), f"{_file_name(shown.model)} · {shown.work}", "", "information")


def keep_label(shown: "TuneView") -> str:
    """Return the label of the button that keeps the winner."""
    draft = int((shown.verdict or {}).get("draft", 0))
    if draft:
        return tr("Use draft {draft} on this computer", draft=draft)
    return tr("Keep MTP off on this computer")


def _file_name(model: str) -> str:
    return model.replace("\\", "/").rsplit("/", 1)[-1]
