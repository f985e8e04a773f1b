"""A server setting is one row of the table, from which all its uses follow, tested for the expert cache."""

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.app.planning.preview import Previewer
from launcher.cli.given_options import given_settings
from launcher.cli.options import serve
from launcher.engine.arguments import LLAMA_SERVER, server_arguments
from launcher.engine.serve_options import ServeOptions
from launcher.engine.settings import change_settings, load_model_settings, parse_settings, save_model_settings
from launcher.gui.cockpit.controls import RestartFields
from launcher.gui.cockpit.state import SettingsState
from launcher.gui.controller import Controller
from launcher.models.server_settings import VARIED
from tests.app.planning.test_preview import describe_server


@pytest.mark.usefixtures("qapp")
def test_one_row_makes_an_option_a_setting_an_argument_memory_a_slider_and_an_axis() -> None:
    parser = argparse.ArgumentParser()
    serve.configure(parser)
    assert given_settings(parser.parse_args(["m.gguf", "--moe-cache-mib", "2GB"]))["moe_cache_mib"] == 2_048
    settings = parse_settings({"moe-cache-mib": "2048"})
    save_model_settings(Path("/m.gguf"), settings)
    assert load_model_settings(Path("/m.gguf")) == settings == {"moe_cache_mib": 2_048}

    options = change_settings(ServeOptions(Path("m.gguf"), context=8_192), settings)
    assert "--moe-cache-mib 2048" in " ".join(server_arguments(options, LLAMA_SERVER, gpu=True))
    assert "--moe-cache-mib" not in server_arguments(replace(options, moe_cache_mib=0), LLAMA_SERVER, gpu=True)

    found = Previewer(describe_server()).preview(settings)
    assert (found.difference_mib, found.changes[0].mib) == (2_048, 2_048)
    assert found.estimate is not None
    assert found.estimate.parts.caches == 2_048 * 2**20

    assert describe_server().slider_values("moe_cache_mib") == (0, 512, 1_024, 2_048, 4_096, 8_192)
    assert len(replace(describe_server(), expert_layers=0).slider_values("moe_cache_mib")) == 1
    assert "moe_cache_mib" in VARIED
    assert "moe_cache_mib" in RestartFields(SettingsState(Controller())).fields


@pytest.mark.usefixtures("qapp")
def test_a_setting_that_was_left_open_was_default() -> None:
    basis = describe_server()
    state = SettingsState(Controller())
    fields = RestartFields(state)
    state.previewer = Previewer(replace(basis, plan_settings=replace(basis.plan_settings, moe_cache_mib=None)))
    state.request_values({"moe_cache_mib": 512})
    assert "was default" in fields.fields["moe_cache_mib"].slider.accessibleDescription()
