"""The tune: probe, explore, compare. How it works, and why so: docs/tuning.md."""

import asyncio
from dataclasses import replace

from launcher.base.errors import Superseded, TuneMismatch
from launcher.tuning.goal import Goal
from launcher.tuning.records import Bench
from launcher.tuning.space import Space
from launcher.tuning.tuner_course import Course, Work
from launcher.tuning.tuner_decision import decide
from launcher.tuning.tuner_events import OnEvent, Paused, VerdictReached
from launcher.tuning.tuner_explore import explore, probe
from launcher.tuning.tuner_state import TuneState, about
from launcher.tuning.verdict import Verdict
from launcher.tuning.verdict_made import unmeasured


async def tune(
    bench: Bench,
    space: Space,
    workload: Work,
    goal: Goal,
    budget_s: float,
    *,
    on_event: OnEvent = lambda _: None,
    resume: TuneState | None = None,
    seed: int = 0,
) -> Verdict:
    """Find the settings of `space` that serve the workload best by the goal, within `budget_s` of the bench's time.

    Cancelling pauses: a Paused event carries the state with which a later call goes on, with a larger budget if that
    is wanted (it counts from the tune's beginning). So does Superseded, which is raised when somebody else takes the
    server. A setting that cannot be served is a result, not an end, and so is a trial that is ended because it goes on
    after the budget (and `grace_s`). Raises NothingMeasured when the baseline itself cannot be measured, and
    TuneMismatch for the state of another tune.
    """
    what = about(space, workload.name, workload.prompts, goal)
    if resume is not None and resume.about != what:
        raise TuneMismatch(
            "This tune was begun with other settings, another workload or another goal.", "Begin it anew."
        )
    state = resume or TuneState(what, seed, ())
    state = replace(state, budgets=(*state.budgets, (len(state.trials), budget_s)))
    course = Course(bench, space, workload, goal, state, on_event)
    try:
        if await probe(course):
            await explore(course)
            verdict = await decide(course)
        else:
            verdict = unmeasured(course)
    except (asyncio.CancelledError, Superseded):
        on_event(Paused(course.state))
        raise
    on_event(VerdictReached(verdict, course.state))
    return verdict
