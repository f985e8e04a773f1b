"""What the cockpit shows is derived by pure functions."""

from math import isnan

import pytest

from launcher.base.errors import EngineFailed, ModelHasNoHead
from launcher.engine.state import State, Status
from launcher.gui.plots.cards import _dotted, _nice, _step
from launcher.gui.plots.history import SPANS_S, History
from launcher.gui.viewmodel import Inputs, View, ViewModel, derive
from launcher.machine.reading import Reading
from launcher.monitor.monitor import Sampled


@pytest.mark.parametrize("state", list(State))
def test_every_state_has_a_word_a_glyph_and_a_meaning(state: State) -> None:
    view = derive(Inputs(status=Status(state), model="m"))
    assert view.word.lower() == {State.DRAINING: "finishing"}.get(state, state.value)
    assert view.glyph
    assert view.meaning in {"good", "bad", "attention", "secondary"}
    assert view.can_start != (view.can_stop or state is State.STOPPING)


def test_loading_says_how_far() -> None:
    assert derive(Inputs(status=Status(State.LOADING, 41.7))).word == "Loading 42 %"


def test_the_demo_is_offered_until_something_was_served() -> None:
    assert derive(Inputs()).offers_demo
    assert derive(Inputs(model="m", status=Status(State.FAILED))).offers_demo
    assert not derive(Inputs(model="m", served=True)).offers_demo
    assert not derive(Inputs(status=Status(State.LOADING))).offers_demo


def test_a_missing_head_offers_to_start_without_mtp() -> None:
    failed = Inputs(
        status=Status(State.FAILED, error=ModelHasNoHead("No head.", "Start it with --draft 0, or do that.")), model="m"
    )
    assert derive(failed).offers_without_mtp
    assert derive(failed).problem == "No head. Start it without MTP, or do that."
    other = Inputs(status=Status(State.FAILED, error=EngineFailed("It broke.", "Do this.")), model="m")
    assert not derive(other).offers_without_mtp
    assert derive(other).problem == "It broke. Do this."


def test_one_reply_at_a_time() -> None:
    busy = Inputs(status=Status(State.BUSY), model="m", replying=True)
    assert not derive(busy).can_ask
    assert derive(busy).replying


def test_only_what_changed_is_told() -> None:
    told: list[View] = []
    model = ViewModel[Inputs, View](Inputs(), derive)
    model.changed.connect(told.append)
    model.update(address="127.0.0.1:1")  # not shown while stopped
    assert told == []
    model.update(status=Status(State.READY), model="m")
    assert [view.address for view in told] == ["127.0.0.1:1"]


def sample(time_s: float, **values: float | None) -> Sampled:
    readings = {name: Reading(value) if value is not None else Reading.unknown("why") for name, value in values.items()}
    return Sampled(time_s, readings, None)


def test_the_axis_grows_with_what_there_is_to_show() -> None:
    history = History()
    assert history.span_s == SPANS_S[0]
    for second in range(400):
        history.add(sample(float(second), a=1.0))
    assert history.span_s == SPANS_S[-1]


def test_a_value_that_is_unknown_leaves_a_gap_and_its_last_one_has_an_age() -> None:
    history = History()
    history.add(sample(0.0, a=1.0))
    history.add(sample(1.0, a=None, b=2.0))
    history.add(sample(2.0, a=None, b=3.0))
    times, values = history.since("a", 0.5)
    assert times == [1.0, 2.0]
    assert all(map(isnan, values))
    assert history.since("b", 0.0)[1][1:] == [2.0, 3.0]
    assert history.last_known("a") == (1.0, 2.0)
    assert history.last_known("c") is None


def test_a_sample_between_two_gaps_is_drawn_as_a_dot() -> None:
    gap = float("nan")
    assert _dotted([gap, 5.0, gap, 1.0, 2.0]) == [1, 4]
    assert _dotted([1.0, 2.0]) == [1]
    assert _dotted([gap]) == []
    assert _dotted([gap, 3.0]) == [1]


@pytest.mark.parametrize("value", [0.0, 0.4, 1.0, 7.3, 96.0, 214.6, 999.9, 2_480.0, 123_456.0])
def test_the_axis_of_values_has_a_few_round_ticks(value: float) -> None:
    top = _nice(value)
    assert top >= value
    assert 2 <= top / _step(top) <= 4.01
