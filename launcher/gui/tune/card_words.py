"""What the verdict's card says while a tune is planned, runs, stands or has ended."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from launcher.base.errors import LauncherError
from launcher.gui import words
from launcher.gui.sentences import say, say_error
from launcher.gui.tune.told import Told
from launcher.gui.words import ntr, tr

if TYPE_CHECKING:
    from launcher.gui.tune.shown import TuneShown
    from launcher.tuner_space import Prepared
    from launcher.tuning.tuner_events import TrialPlanned

Buttons = Sequence[tuple[str, Callable[[], object]]]


def time_words(seconds: float) -> str:
    """Return a time in words."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if not minutes:
        return tr("{seconds} s", seconds=whole)
    if not rest:
        return tr("{minutes} min", minutes=minutes)
    return tr("{minutes} min {seconds} s", minutes=minutes, seconds=rest)


def plan_words(prepared: "Prepared") -> str:
    """Return what a tune is expected to take, for the hint of its budget."""
    return tr(
        "{model}: about {time}, {starts}, {tokens:,} tokens",
        time=time_words(prepared.plan.seconds),
        starts=ntr("1 start", "{n} starts", prepared.plan.starts),
        tokens=prepared.tokens,
        model=prepared.model.replace("\\", "/").rsplit("/", 1)[-1],
    )


def beginning(buttons: Buttons) -> Told:
    """Return the card of a tune that begins."""
    return Told(
        tr("Looking at the model and the machine."),
        tr("Measuring"),
        tr("The model is started with MTP off and with drafts, in turn. It ends as soon as the answer is clear."),
        "information",
        buttons,
    )


def measuring(step: "TrialPlanned", setting: str, planned: int) -> tuple[str, str, str]:
    """Return kicker, sentence and detail while a trial is made."""
    stages = {
        "probe": tr("First look: MTP off, and drafts of a few lengths."),
        "explore": tr("Exploring what may be best."),
        "verify": tr("Comparing the best with MTP off, in turns, so that heat and other load cancel out."),
        "confirm": tr("Comparing them further, as that was not clear yet."),
    }
    number = step.number + 1
    of = tr("trial {number} of about {planned}", number=number, planned=planned)
    kicker = tr("Measuring · {of} · {left} left at most", of=of, left=time_words(max(step.left_s, 0)))
    return kicker, tr("Measuring: {setting}.", setting=setting), stages[step.stage.value]


def pausing() -> tuple[str, str, str]:
    """Return kicker, sentence and detail while what ran before is started again."""
    return tr("Pausing"), tr("What ran before the measurement is started again."), ""


def paused(shown: "TuneShown", why: LauncherError | None, buttons: Buttons) -> Told:
    """Return the card of a tune that stands."""
    done = ntr("1 trial is kept", "{n} trials are kept", len(shown.trials))
    detail = tr("Continuing goes on where it was: {model}, {work}.", model=_name(shown.model), work=shown.work)
    if why is not None:
        detail = f"{say_error(why)} {detail}"
    return Told(
        tr("The measurement is paused."), f"{done} · {time_words(shown.seconds)}", detail, "information", buttons
    )


def failed(error: LauncherError) -> Told:
    """Return the card of a tune that has ended without a verdict."""
    return Told(say(error.title), tr("Not measured"), say(error.hint), "attention")


def verdict(shown: "TuneShown", buttons: Buttons, *, kept: bool = False) -> Told:
    """Return the card of a verdict."""
    told = shown.verdict or {}
    runs = ntr("1 reply", "{n} replies", len(shown.runs))
    head = tr("Kept for this machine") if kept else tr("Verdict")
    kicker = f"{head} · {_name(shown.model)} · {shown.work} · {time_words(shown.seconds)} · {runs}"
    because = str(told.get("because") or "")
    detail = tr("Why: {because}", because=say(because)) if because else ""
    if told.get("speedup") is not None or told.get("gain") is not None:
        detail = f"{detail} {tr('The ranges hold with 95 % confidence, all of them together.')}".strip()
    meaning = {"on": "good", "off": "good", "undecided": "attention"}[str(told["mtp"])]
    return Told(sentence(told, shown.work), kicker, detail, meaning, buttons)


def sentence(told: Mapping[str, Any], work: str) -> str:
    """Return a verdict's sentence, in another language than English made anew from its figures: its own is made of
    parts whose order is English.
    """
    from launcher.gui.tune.shown import setting_words

    ratio, low, high = told.get("speedup"), told.get("ci_low"), told.get("ci_high")
    if words.chosen() == "en" or ratio is None or low is None or high is None:
        return say(str(told["sentence"]))
    figures = {"work": work, "draft": told["draft"], "low": _change(low), "high": _change(high)}
    match told["mtp"]:
        case "on":
            said = tr("For {work}, draft {draft} changes the figure by {low} to {high} against no MTP.", **figures)
        case "off" if high < 1:
            said = tr("Leave MTP off for {work}: it changes the figure by {low} to {high}.", **figures)
        case "off":
            said = tr("Leave MTP off for {work}: no gain can be told ({low} to {high}).", **figures)
        case _:
            said = tr("Undecided for {work}: MTP changes the figure by {low} to {high}.", **figures)
    gain = told.get("gain")
    if not gain or gain["estimate"] == ratio:
        return said
    settings = setting_words(told["settings"], {})
    ends = {"low": _change(gain["low"]), "high": _change(gain["high"])}
    more = tr("{settings}: {low} to {high} against the settings without MTP so far.", settings=settings, **ends)
    return f"{said} {more}"


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f} %"


def unfinished(shown: "TuneShown", why: str) -> Told:
    """Return the card of a tune of the history that has no verdict."""
    return Told(say(why), f"{_name(shown.model)} · {shown.work}", "", "information")


def keep_words(shown: "TuneShown") -> str:
    """Return the words of the button that keeps the winner."""
    draft = int((shown.verdict or {}).get("draft", 0))
    if draft:
        return tr("Keep draft {draft} for this machine", draft=draft)
    return tr("Keep MTP off for this machine")


def _name(model: str) -> str:
    return model.replace("\\", "/").rsplit("/", 1)[-1]
