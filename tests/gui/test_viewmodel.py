"""The Cockpit's view is derived by pure functions."""

import pytest

from launcher.base.errors import EngineFailed, ModelHasNoHead
from launcher.base.messages import message
from launcher.engine.server.state import ModelsChanged, ModelStatus, ServerState, ServerStatus
from launcher.gui.viewmodel import Inputs, View, ViewModel, derive_view
from launcher.models.drafters import NO_MTP


@pytest.mark.parametrize("state", list(ServerState))
def test_every_state_has_a_word_a_glyph_and_a_colour_role(state: ServerState) -> None:
    view = derive_view(Inputs(status=ServerStatus(state), model="m"))
    assert view.state_text.lower() == {ServerState.DRAINING: "finishing"}.get(state, state.value)
    assert view.glyph
    assert view.meaning in {"good", "bad", "attention", "secondary"}
    assert view.can_start != (view.can_stop or state is ServerState.STOPPING)


def test_loading_shows_its_progress() -> None:
    assert derive_view(Inputs(status=ServerStatus(ServerState.LOADING, 41.7))).state_text == "Loading 42 %"


def test_the_model_is_named_as_soon_as_something_is_known_of_it() -> None:
    loading = ServerStatus(ServerState.LOADING, 41.7)
    measured = ModelsChanged((ModelStatus("demo", ServerState.LOADING, is_main=True, path="/models/demo.gguf"),))
    unknown = ModelsChanged((ModelStatus("model", ServerState.STOPPED, is_main=True),))
    names = {
        "at the first start": derive_view(Inputs()),
        "used last in another window": derive_view(Inputs(last_model="Qwen3.6-27B")),
        "started by a measurement": derive_view(Inputs(status=loading, models=measured)),
        "not known yet": derive_view(Inputs(status=loading, models=unknown, last_model="Qwen3.6-27B")),
        "in place of another one": derive_view(Inputs(status=loading, model="Old", starting="New")),
        "the other one goes on": derive_view(
            Inputs(status=ServerStatus(ServerState.READY), model="Old", starting="New")
        ),
    }
    assert {when: view.model_name for when, view in names.items()} == {
        "at the first start": "No model yet",
        "used last in another window": "Qwen3.6-27B",
        "started by a measurement": "demo",
        "not known yet": "Qwen3.6-27B",
        "in place of another one": "New",
        "the other one goes on": "Old",
    }


def test_the_demo_is_offered_until_a_model_was_served() -> None:
    assert derive_view(Inputs()).offers_demo
    assert derive_view(Inputs(model="m", status=ServerStatus(ServerState.FAILED))).offers_demo
    assert not derive_view(Inputs(model="m", served=True)).offers_demo
    assert not derive_view(Inputs(status=ServerStatus(ServerState.LOADING))).offers_demo


def test_a_missing_head_offers_a_start_without_mtp() -> None:
    hint = message("Start it with {no_mtp}.", no_mtp=NO_MTP)
    failed = Inputs(status=ServerStatus(ServerState.FAILED, error=ModelHasNoHead("No head.", hint)), model="m")
    assert derive_view(failed).offers_start_without_mtp
    assert derive_view(failed).problem == "No head. Start it with MTP off."
    other = Inputs(status=ServerStatus(ServerState.FAILED, error=EngineFailed("It broke.", "Do this.")), model="m")
    assert not derive_view(other).offers_start_without_mtp
    assert derive_view(other).problem == "It broke. Do this."


def test_one_reply_runs_at_a_time() -> None:
    busy = Inputs(status=ServerStatus(ServerState.BUSY), model="m", replying=True)
    assert not derive_view(busy).can_ask
    assert derive_view(busy).replying


def test_an_embedding_model_accepts_no_question() -> None:
    ready = Inputs(status=ServerStatus(ServerState.READY), model="m", texts_path="/v1/embeddings")
    assert not derive_view(ready).can_ask
    assert "/v1/embeddings" in derive_view(ready).prompt_hint


def test_only_changes_are_reported() -> None:
    received: list[View] = []
    model = ViewModel()
    model.changed.connect(received.append)
    model.update(address="127.0.0.1:1")  # an address is not shown while the server is stopped
    assert received == []
    model.update(status=ServerStatus(ServerState.READY), model="m")
    assert [view.address for view in received] == ["127.0.0.1:1"]
