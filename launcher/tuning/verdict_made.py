"""A tune's verdict from its questions and their answers."""

import statistics
from collections.abc import Sequence

from launcher.tuning.records import Settings
from launcher.tuning.space import draft_of, key
from launcher.tuning.tuner_course import Course
from launcher.tuning.tuner_questions import ERROR, Finalists, Measured, Question
from launcher.tuning.tuner_state import Trial
from launcher.tuning.verdict import Answer, Compared, Verdict, not_distinguishable, recommended, sentence, why

_ANSWERS: dict[bool | None, Answer] = {True: "on", False: "off", None: "undecided"}


def made(
    course: Course, finalists: Finalists, verified: Measured, mtp: Question | None, gains: Sequence[Question]
) -> Verdict:
    """Put a decision into words and figures. `mtp` is whether MTP is better, None where it could not be served.

    `gains` are questions about other settings than the baseline's, with or without MTP.
    """
    goal, baseline = course.goal, course.space.off()
    answer: Answer = "off" if mtp is None else _ANSWERS[mtp.answer]
    best, gain = _recommended(course, verified, mtp, gains)
    compared = mtp.found if mtp else None
    more, values, because = [], None, _why_not_served(course)
    if mtp is not None:
        on, off = _of(course.trials, mtp.candidate), _of(course.trials, mtp.against)
        because = why(on, off, {} if answer == "on" else _no_room(course, mtp))
        values = (_value(course, on), _value(course, off)) if on and off else None
        other = finalists.rival if mtp.candidate is finalists.on else finalists.on
        near = verified.compare(mtp.candidate, other) if other else None
        if answer == "on" and near is not None and near.ratio.low <= 1 <= near.ratio.high:
            more.append(not_distinguishable(near))
    if gain is not None and (mtp is None or answer != "on" or key(mtp.against) != key(baseline)):
        more.append(recommended(gain, goal))
    shown = mtp.candidate if mtp else best
    listed = [found for each in finalists.listed() if (found := verified.compare(each, baseline)) is not None]
    return Verdict(
        mtp=answer,
        settings=best,
        speedup=compared.ratio.estimate if compared else None,
        ci_low=compared.ratio.low if compared else None,
        ci_high=compared.ratio.high if compared else None,
        confidence=compared.confidence if compared else 1 - ERROR,
        sentence=sentence(answer, goal, course.workload.name, compared, values, more, course.state.used_s),
        because=because,
        gain=gain,
        compared=tuple(listed),
        shown=shown,
        forecasts=course.search.forecast(course.search.assess(), shown),
        trials=course.trials,
        unit=goal.unit,
    )


def _recommended(
    course: Course, verified: Measured, mtp: Question | None, gains: Sequence[Question]
) -> tuple[Settings, Compared | None]:
    """Return the settings that are confirmed to be better than the baseline, and by what; else the baseline."""
    baseline = course.space.off()
    if mtp is not None and mtp.answer:  # what it is better than measured no worse than the baseline
        direct = mtp.found if key(mtp.against) == key(baseline) else verified.compare(mtp.candidate, baseline)
        return mtp.candidate, direct
    confirmed = [question for question in gains if question.answer]
    if mtp is not None and mtp.answer is False:
        confirmed = [question for question in confirmed if not draft_of(question.candidate)]
    if not confirmed:
        return baseline, None
    mean = course.search.assess().mean
    best = max(confirmed, key=lambda question: mean[course.search.index(question.candidate)])
    return best.candidate, best.found


def _no_room(course: Course, mtp: Question) -> Settings:
    """Return the settings of MTP off that do not fit, or did not start, with MTP's draft length."""
    if course.search.beside(mtp.against, draft_of(mtp.candidate)) is not None:
        return {}
    ours = {axis.name for axis in course.space.axes if axis.memory}
    return {name: value for name, value in mtp.against.items() if name in ours and mtp.candidate[name] != value}


def _why_not_served(course: Course) -> str:
    errors = [trial.error for trial in course.trials if trial.error and draft_of(trial.settings)]
    return errors[-1] if errors else "no draft length fits into the memory beside these settings"


def _of(trials: Sequence[Trial], settings: Settings) -> list[Trial]:
    return [trial for trial in trials if trial.error is None and key(trial.settings) == key(settings)]


def _value(course: Course, trials: Sequence[Trial]) -> float:
    scores = [score for t in trials for run in t.runs if (score := course.goal.score(run)) is not None]
    return course.goal.value_of(statistics.fmean(scores))
