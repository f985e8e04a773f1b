"""A tune's verdict from its questions and their answers."""

import math
import statistics
from collections.abc import Sequence

from launcher.tuning.records import Settings
from launcher.tuning.space import draft_of, key
from launcher.tuning.tuner_course import Course
from launcher.tuning.tuner_explore import LEAST_MORE
from launcher.tuning.tuner_questions import ERROR, Question, Questions
from launcher.tuning.tuner_state import Fault, Stage, Trial
from launcher.tuning.verdict import Answer, Compared, Verdict, not_distinguishable, recommended, sentence, why

_ANSWERS: dict[bool | None, Answer] = {True: "on", False: "off", None: "undecided"}
_CHANCE = 0.05
"""Another draft length is named as not distinguishable when it is the better one with at least this chance."""


def made(course: Course, questions: Questions) -> Verdict:
    """Put the answers into words and figures."""
    goal, baseline, mtp = course.goal, course.space.off(), questions.mtp
    best, gain = _recommended(course, questions)
    answer: Answer = "off" if mtp is None else _ANSWERS[mtp.answer]
    compared = mtp.found if mtp else None
    if mtp is not None and answer == "on" and gain is None:  # better than other settings, not surely than the baseline
        answer = "undecided"
        compared = next((each.found for each in questions.gains if each.candidate is mtp.candidate), None)
    more, values, because = [], None, _why_not_served(course)
    lost = [] if mtp is None or compared else _lost(course)
    if mtp is not None:
        on, off = _of(course.trials, mtp.candidate), _of(course.trials, mtp.against)
        because = why(on, off, {} if answer == "on" else _no_room(course, mtp))
        if compared is None:
            because = _why_lost(course, lost) if lost else _too_short(course)
        values = _values(course, compared) if compared and on and off else None
        rivals = _rivals(course, mtp.candidate) if answer == "on" else []
        if rivals:
            more.append(not_distinguishable(mtp.candidate, rivals))
    if gain is not None and (mtp is None or answer != "on" or key(mtp.against) != key(baseline)):
        more.append(recommended(gain, goal))
    shown = mtp.candidate if mtp else best
    return Verdict(
        mtp=answer,
        settings=best,
        speedup=compared.ratio.estimate if compared else None,
        ci_low=compared.ratio.low if compared else None,
        ci_high=compared.ratio.high if compared else None,
        confidence=compared.confidence if compared else 1 - ERROR,
        sentence=sentence(
            answer, goal, course.workload.name, compared, values, more, course.state.used_s, lost=bool(lost)
        ),
        because=because,
        gain=gain,
        shown=shown,
        forecasts=course.search.forecast(course.search.assess(), shown),
        trials=course.trials,
        unit=goal.unit,
    )


def unmeasured(course: Course) -> Verdict:
    """Return the verdict where not even the baseline could be measured in the time."""
    off = course.space.off()
    minutes = max(1, round(course.state.used_s / 60))
    return Verdict(
        mtp="undecided",
        settings=off,
        speedup=None,
        ci_low=None,
        ci_high=None,
        confidence=1 - ERROR,
        sentence=sentence("undecided", course.goal, course.workload.name, None, None),
        because=f"The first trial, without MTP, was not done after {minutes} min.",
        gain=None,
        shown=off,
        forecasts=(),
        trials=course.trials,
        unit=course.goal.unit,
    )


def _recommended(course: Course, questions: Questions) -> tuple[Settings, Compared | None]:
    """Return the settings that are confirmed to be better than the baseline, and by what; else the baseline."""
    baseline, mtp = course.space.off(), questions.mtp
    asked = questions.all() if mtp is not None and key(mtp.against) == key(baseline) else questions.gains
    confirmed = [each for each in asked if each.answer]
    if mtp is not None and mtp.answer is not None:
        confirmed = [each for each in confirmed if bool(draft_of(each.candidate)) is mtp.answer]
    if not confirmed:
        return baseline, None
    mean = course.search.assess().mean
    best = max(confirmed, key=lambda each: mean[course.search.index(each.candidate)])
    return best.candidate, best.found


def _rivals(course: Course, best: Settings) -> list[int]:
    """Return other draft lengths that may well be as good as the best one, by everything that was measured."""
    search = course.search
    scores = search.assess().scores
    own = scores[:, search.index(best)]
    beside = {draft: search.beside(best, draft) for draft in course.space.drafts if draft != draft_of(best)}
    return [d for d, i in beside.items() if i is not None and float((scores[:, i] >= own).mean()) >= _CHANCE]


def _no_room(course: Course, mtp: Question) -> Settings:
    """Return the settings of MTP off that do not fit, or did not start, with MTP's draft length."""
    if course.search.beside(mtp.against, draft_of(mtp.candidate)) is not None:
        return {}
    ours = {axis.name for axis in course.space.axes if axis.memory}
    return {name: value for name, value in mtp.against.items() if name in ours and mtp.candidate[name] != value}


def _lost(course: Course) -> list[Trial]:
    """Return the starts that were made to compare, and gave nothing, though there was time for them."""
    return [trial for trial in _fresh(course.trials) if trial.error and trial.fault is not Fault.TIME]


def _why_lost(course: Course, lost: Sequence[Trial]) -> str:
    fresh = _fresh(course.trials)
    return " ".join((f"{len(lost)} of {len(fresh)} starts to compare gave nothing.", lost[-1].error or ""))


def _fresh(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.stage in (Stage.VERIFY, Stage.CONFIRM)]


def _too_short(course: Course) -> str:
    """Return what the least of a comparison takes at the speed that was measured."""
    minutes = math.ceil((course.trials[0].seconds + LEAST_MORE * course.visit_s) / 60)
    return (
        f"A trial takes {course.visit_s:.0f} s here, and a verdict takes {1 + LEAST_MORE} of them at least, which is "
        f"{minutes} min."
    )


def _why_not_served(course: Course) -> str:
    errors = [trial.error for trial in course.trials if trial.error and draft_of(trial.settings)]
    return errors[-1] if errors else "No draft length fits into the memory beside these settings."


def _of(trials: Sequence[Trial], settings: Settings) -> list[Trial]:
    return [trial for trial in trials if trial.error is None and key(trial.settings) == key(settings)]


def _values(course: Course, compared: Compared) -> tuple[float, float] | None:
    """Return the goal's values with MTP and without that go with a comparison: they have exactly its ratio.

    Their level is that of the starts that it rests on; None where there are none.
    """
    scores = [_score(course, settings) for settings in (compared.candidate, compared.against)]
    known = [score for score in scores if score is not None]
    if len(known) < 2:
        return None
    level, half = statistics.fmean(known), math.log(compared.ratio.estimate) / 2
    return course.goal.value_of(level + half), course.goal.value_of(level - half)


def _score(course: Course, settings: Settings) -> float | None:
    """Return the mean score over the starts that were made to compare; over all where there are none."""
    trials = _of(course.trials, settings)
    scores = [
        score for t in _fresh(trials) or trials for run in t.runs if (score := course.goal.score(run)) is not None
    ]
    return statistics.fmean(scores) if scores else None
