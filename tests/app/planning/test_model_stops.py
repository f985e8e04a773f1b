"""The three plans for a model on this computer: what of it is here, and whose settings they have."""

from collections.abc import Awaitable
from pathlib import Path

import pytest

from launcher.app.first.first_checks import make_first_start_request
from launcher.app.first.first_start import resolve_requested_start
from launcher.app.planning.model_stops import ModelStop, plan_model_stops
from launcher.base.errors import ModelUnknown
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import Launch, prepare_launch
from launcher.engine.settings import save_model_settings
from launcher.models.plan_stops import StopName
from launcher.models.server_settings import ROWS
from tests.app.first.test_first_start import add_to_catalogue
from tests.app.planning.test_tuned_match import local_environment, save_tuned
from tests.models.pulling import DEMO

pytestmark = pytest.mark.usefixtures("home")


def find_stop(stops: tuple[ModelStop, ...], name: StopName) -> ModelStop:
    return next(each for each in stops if each.stop.name is name)


async def test_a_choice_starts_with_its_settings_and_not_with_those_of_the_last_time(demo_model: Path) -> None:
    save_model_settings(demo_model, {"draft": 4, "ctx": 16_384})
    recommended = find_stop(await plan_model_stops("demo"), StopName.RECOMMENDED)
    assert (recommended.settings["draft"], recommended.settings["ctx"]) == (2, 8_192)
    assert recommended.missing_bytes == 0
    start = await resolve_requested_start(make_first_start_request(recommended.stop.plan))
    assert {name: row.value_in(start.options) for name, row in ROWS.items()} == recommended.settings
    assert start.options.built_in


async def test_what_a_tune_found_is_recommended(demo_model: Path) -> None:
    save_tuned(await local_environment(demo_model), demo_model)
    stops = await plan_model_stops("demo")
    assert find_stop(stops, StopName.RECOMMENDED).settings["draft"] == 1
    faster = find_stop(stops, StopName.FASTER).stop
    assert faster.lack == "Recommended has the settings that a tune found to be the fastest."


async def test_a_file_that_is_not_here_has_the_size_of_its_download(home: Path) -> None:
    add_to_catalogue(home)
    stops = await plan_model_stops("mine")
    assert {each.missing_bytes for each in stops} == {DEMO.files[0].size_bytes}
    assert not any(each.is_loaded for each in stops)


async def test_an_unknown_model_has_no_plans() -> None:
    with pytest.raises(ModelUnknown):
        await plan_model_stops("no-such-model")


async def test_the_running_server_stays_recommended_with_a_context_one_step_away(demo_model: Path) -> None:
    def launch_with(context: int) -> Awaitable[Launch]:
        options = ServeOptions(demo_model, alias="demo", built_in=True, context=context, draft=2, threads=1)
        return prepare_launch(options, Endpoint(0, ""))

    near, far = await launch_with(12_288), await launch_with(16_384)
    for launch, context in ((near, 12_288), (far, 8_192)):
        recommended = find_stop(await plan_model_stops("demo", launch), StopName.RECOMMENDED)
        assert recommended.is_loaded
        assert recommended.settings["ctx"] == context
    save_model_settings(demo_model, {"ctx": 12_288})
    of_the_user = find_stop(await plan_model_stops("demo", near), StopName.RECOMMENDED)
    assert of_the_user.settings["ctx"] == 8_192
