"""Profiles of llama.cpp forks: recognised by their KV cache types, they set environment variables."""

from pathlib import Path

import pytest

from launcher.engine.builds.install_errors import BadProfile
from launcher.engine.builds.probe import find_profile, probe_engine
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import prepare_launch

ENDPOINT = Endpoint(20_001, "key")


def own_profile(home: Path, text: str) -> Path:
    path = home / "config" / "engines" / "mine.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_llama_cpp_itself_has_no_profile() -> None:
    assert find_profile(("f16", "q8_0", "q4_0")) is None


async def test_a_fork_is_recognised_by_its_help_and_gets_its_variables(
    fake_engine: Path, demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAULTS", "fork")
    launch = await prepare_launch(ServeOptions(model=demo_model, engine=fake_engine, kv="turbo3"), ENDPOINT)
    assert launch.command.environment["TURBO_AUTO_ASYMMETRIC"] == "0"
    assert "turbo3" in launch.command.arguments


async def test_other_builds_do_not_get_the_variables_of_a_fork(fake_engine: Path, demo_model: Path) -> None:
    build = await probe_engine(fake_engine)
    assert build.kv_types == {"f32", "f16", "q8_0", "q4_0"}
    launch = await prepare_launch(ServeOptions(model=demo_model, engine=fake_engine, kv="q8_0"), ENDPOINT)
    assert "TURBO_AUTO_ASYMMETRIC" not in launch.command.environment


def test_a_profile_of_the_user_comes_first(home: Path) -> None:
    own_profile(home, 'name = "Mine"\nkv_types = ["turbo3"]\n[environment]\nMINE = "1"\n')
    profile = find_profile(("f16", "turbo3"))
    assert profile is not None
    assert (profile.name, dict(profile.environment)) == ("Mine", {"MINE": "1"})


@pytest.mark.parametrize(
    "text",
    [
        "kv_types = 3",
        "name = ",
        'kv_types = ["x"]\nenvironment = { A = 1 }',
        'kv_types = ["x"]\nenvironment = { "A; B" = "1" }',
        "kv_types = []",
        "kv_types = " + "[" * 50_000,
    ],
    ids=["a number", "cut", "no texts", "no name of a variable", "empty", "nested deeply"],
)
def test_an_invalid_profile_is_named(home: Path, text: str) -> None:
    path = own_profile(home, text)
    with pytest.raises(BadProfile, match=path.name):
        find_profile(("f16",))
