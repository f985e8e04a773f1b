"""Drafts that follow the traffic, on counts whose true answer is known."""

from collections.abc import Sequence
from dataclasses import replace

from launcher.models.drafters import DRAFTERS, MTP, NONE
from launcher.monitor.health_event import FindingCode
from launcher.tuning.advice import Advice, Measured, find_faster
from launcher.tuning.draft_follower import HOUR_S, DraftFollower
from launcher.tuning.statistics import Interval
from launcher.tuning.use_counts import UseCounts
from tests.tuning.test_advice import RATES, runs_at, use_counts

BAD = (0.15, 0.1, 0.1, 0.1)
MINUTE_S = 60.0


def measured(drafts: Sequence[int] = (0, 1, 2, 3, 4)) -> Measured:
    return Measured.from_runs({"draft": 1, "kv": "q8_0"}, runs_at(drafts))


def minute(draft: int, rates: Sequence[float] = RATES, *, slower: float = 1.0, steps: int = 500) -> UseCounts:
    counts = use_counts(draft, steps=steps, rates=rates)
    return replace(counts, seconds=counts.seconds * slower)


def fill(follower: DraftFollower, begin_s: float, counts: Sequence[UseCounts]) -> float:
    """Add a minute of use after the other, each a little quicker or slower; return the time after them."""
    for i, each in enumerate(counts):
        begin_s += MINUTE_S
        follower.add_counts(begin_s, replace(each, seconds=each.seconds * (1.0, 1.02, 0.98)[i % 3]))
    return begin_s


def test_drafts_change_with_the_kind_of_traffic_and_not_before_ten_minutes() -> None:
    follower = DraftFollower()
    now_s = fill(follower, 0.0, [minute(4)] * 9)
    assert follower.find_change(now_s, measured()) is None
    now_s = fill(follower, now_s, [minute(4)] * 6)
    assert follower.find_change(now_s, measured()) is None  # it is the best
    now_s = fill(follower, now_s, [minute(4, BAD)] * 4)  # the last 2,000 steps are of another kind
    advice = follower.find_change(now_s, measured())
    assert advice is not None
    assert (advice.reason, advice.choice) == ("faster", (NONE, 0))
    assert advice.action.parameters == {"draft": 0}


def test_drafts_do_not_change_before_enough_intervals_tell_the_time_of_a_step() -> None:
    follower = DraftFollower()
    now_s = fill(follower, 0.0, [minute(1, steps=20_000), minute(1, steps=40)]) + 10 * MINUTE_S
    assert follower.find_change(now_s, measured()) is None
    now_s = fill(follower, now_s, [minute(1)] * 5)
    assert follower.find_change(now_s, measured()) is not None


def test_a_change_that_was_slower_is_undone_after_an_hour_and_barred_for_a_day() -> None:
    follower = DraftFollower()
    now_s = fill(follower, 0.0, [minute(1)] * 15)
    advice = follower.find_change(now_s, measured())
    assert advice is not None
    assert (advice.choice, advice.action.parameters) == ((MTP, 4), {"draft": 4, "drafter": "draft-mtp"})
    follower.note_change(now_s, advice)
    follower.add_counts(now_s + 1, minute(1))  # of requests before it
    slow = [minute(4, slower=3.0)] * 10
    now_s = fill(follower, now_s, slow)
    assert follower.find_change(now_s, measured()) is None  # not within the hour
    now_s = fill(follower, now_s + HOUR_S, slow)
    undo = follower.find_change(now_s, measured())
    assert undo is not None
    assert (undo.reason, undo.draft, undo.choice) == ("undo", 4, (MTP, 1))
    assert undo.change_sentence.startswith("Draft 1 again. Draft 1 would have been about ")
    follower.note_change(now_s, undo)
    now_s = fill(follower, now_s, [minute(1)] * 20)
    again = follower.find_change(now_s, measured())
    assert again is None or again.better != 4
    now_s = fill(follower, now_s + 25 * HOUR_S, [minute(1)] * 20)
    later = follower.find_change(now_s, measured())
    assert later is not None
    assert later.better == 4


def test_a_change_that_was_not_slower_stays() -> None:
    follower = DraftFollower()
    now_s = fill(follower, 0.0, [minute(1)] * 15)
    advice = follower.find_change(now_s, measured())
    assert advice is not None
    follower.note_change(now_s, advice)
    for _ in range(5):
        now_s = fill(follower, now_s + HOUR_S, [minute(4)] * 10)
        assert follower.find_change(now_s, measured()) is None


def test_drafts_that_are_off_are_tried_now_and_then() -> None:
    follower = DraftFollower()
    off = [minute(0)] * 10
    now_s = fill(follower, 0.0, off)
    assert follower.find_change(now_s, measured()) is None
    now_s = fill(follower, now_s + 4 * HOUR_S, off)
    look = follower.find_change(now_s, measured())
    assert look is not None
    assert (look.reason, look.choice) == ("look", (MTP, 1))
    follower.note_change(now_s, look)
    now_s = fill(follower, now_s, [minute(1, BAD)] * 4)
    undo = follower.find_change(now_s, measured())  # no hour has passed, and 2,000 steps were enough
    assert undo is not None
    assert (undo.reason, undo.choice) == ("undo", (NONE, 0))
    follower.note_change(now_s, undo)
    now_s = fill(follower, now_s + 5 * HOUR_S, off)
    assert follower.find_change(now_s, measured()) is None  # the next look is after twice the time
    now_s = fill(follower, now_s + 4 * HOUR_S, off)
    assert follower.find_change(now_s, measured()) is not None


def test_a_look_that_cannot_be_started_is_not_tried_again_every_minute() -> None:
    follower = DraftFollower()
    off = [minute(0)] * 10
    now_s = fill(follower, 0.0, off)
    now_s = fill(follower, now_s + 4 * HOUR_S, off)
    assert follower.find_change(now_s, measured(), may_look=False) is None  # the user wants no drafts
    look = follower.find_change(now_s, measured())
    assert look is not None
    follower.note_failure(now_s, look)
    now_s = fill(follower, now_s, off)
    assert follower.find_change(now_s, measured()) is None
    now_s = fill(follower, now_s + 8 * HOUR_S, off)
    assert follower.find_change(now_s, measured()) is not None


def test_an_undo_waits_for_a_quiet_moment_and_a_failed_one_does_not_return() -> None:
    follower = DraftFollower()
    now_s = fill(follower, 0.0, [minute(1)] * 15)
    advice = follower.find_change(now_s, measured())
    assert advice is not None
    follower.note_change(now_s, advice)
    slow = [minute(4, slower=3.0)] * 10
    now_s = fill(follower, now_s + HOUR_S, slow)
    undo = follower.find_change(now_s, measured())
    for _ in range(3):  # somebody asks each time
        assert undo is not None
        assert undo.reason == "undo"
        now_s = fill(follower, now_s, slow[:1])
        undo = follower.find_change(now_s, measured())
    assert undo is not None
    follower.note_failure(now_s, undo)
    now_s = fill(follower, now_s, slow)
    again = follower.find_change(now_s, measured())
    assert again is None or again.reason != "undo"


def test_a_change_that_somebody_has_undone_is_barred() -> None:
    for seen in (3, 0):  # minutes until somebody undoes it
        follower = DraftFollower()
        now_s = fill(follower, 0.0, [minute(1)] * 15)
        advice = follower.find_change(now_s, measured())
        assert advice is not None
        assert advice.better == 4
        follower.note_change(now_s, advice)
        now_s = fill(follower, now_s, [minute(4)] * seen)
        now_s = fill(follower, now_s, [minute(1)] * 20)
        again = follower.find_change(now_s, measured())
        assert again is None or again.better != 4, seen


def test_somebody_elses_change_begins_anew() -> None:
    follower = DraftFollower()
    now_s = fill(follower, 0.0, [minute(1)] * 15)
    now_s = fill(follower, now_s, [minute(2)] * 3)
    assert follower.find_change(now_s, measured()) is None
    assert DraftFollower().find_change(now_s, measured()) is None


def test_another_drafter_that_was_measured_is_advised_by_its_name() -> None:
    eagle = runs_at((4,), times={4: 0.020}, drafter="draft-eagle3")
    found = Measured.from_runs({"draft": 1, "kv": "q8_0"}, [*runs_at((1,)), *eagle])
    follower = DraftFollower()
    now_s = fill(follower, 0.0, [minute(1)] * 15)
    advice = follower.find_change(now_s, found)
    assert advice is not None
    assert advice.choice == (DRAFTERS["eagle3"], 4)
    assert advice.sentence.startswith("Draft 4 by EAGLE-3 would have been about ")
    assert advice.finding.code is FindingCode.OTHER_DRAFTS
    assert advice.finding.action is not None
    assert advice.finding.action.parameters == {"draft": 4, "drafter": "draft-eagle3"}


def test_a_drafter_in_use_is_named_too() -> None:
    eagle = runs_at((4,), times={4: 0.080}, drafter="draft-eagle3")
    found = Measured.from_runs({"draft": 1, "kv": "q8_0"}, [*runs_at((0, 1)), *eagle])
    used = replace(minute(4, steps=5_000), settings={"draft": 4, "drafter": "draft-eagle3", "kv": "q8_0"})
    advice = find_faster(replace(used, seconds=5_000 * 0.080), found)
    assert advice is not None
    assert advice.what == "Draft 1"
    assert " than draft 4 by EAGLE-3 over your last " in advice.sentence
    assert replace(advice, drafter=NONE, better=0).what == "No drafts"


def test_a_look_says_what_it_is_for() -> None:
    look = Advice(0, 1, Interval(1.0, 0.0, 2.0, 0), 1_000, MTP, NONE, "look")
    assert look.change_sentence == "Draft 1 for a while, to see how many drafts are accepted now."
