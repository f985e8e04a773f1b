"""What the cockpit shows is derived by pure functions."""

import pytest

from launcher.base.errors import EngineFailed, ModelHasNoHead
from launcher.engine.state import State, Status
from launcher.gui.viewmodel import Inputs, View, ViewModel, derive


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
    hint = "Start it with --draft 0, or use a newer llama.cpp build."
    failed = Inputs(status=Status(State.FAILED, error=ModelHasNoHead("No head.", hint)), model="m")
    assert derive(failed).offers_without_mtp
    assert derive(failed).problem == "No head. Start it without MTP, or use a newer llama.cpp build."
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
