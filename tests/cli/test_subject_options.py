"""The settings that a model is measured with: kept ones, tuned ones, and options of the command line."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest

from launcher.cli.measured_subject import resolve_model_and_options
from launcher.cli.options.machine_options import add_engine_option
from launcher.cli.options.subject_options import add_model_argument, add_start_options
from launcher.cli.progress import Reporter
from launcher.engine.builds.probe import probe_engine
from launcher.engine.settings import save_model_settings
from launcher.models.gguf import read_model
from launcher.tuning.history_environment import Environment, model_facts
from launcher.tuning.tuned_settings import Evidence, TunedSettings, save_tuned_settings


def parse_options(*words: str) -> Namespace:
    parser = ArgumentParser()
    add_model_argument(parser)
    add_start_options(parser, "ctx")
    add_engine_option(parser)
    return parser.parse_args(words)


@pytest.fixture
async def model(demo_model: Path) -> Path:
    """A model for which the user has stored draft 3 by `tune --apply`, and has chosen one thread."""
    build = await probe_engine(None)
    here = Environment.for_model(model_facts(read_model(demo_model)), build.name, build.version)
    evidence = Evidence(mtp="on", environment=here)
    save_tuned_settings(
        TunedSettings(settings={"draft": 3, "p_min": 0.5}, evidence=evidence, verified_by=("0123456789",))
    )
    save_model_settings(demo_model, {"draft": 3, "threads": 1})
    return demo_model


@pytest.mark.parametrize(
    ("words", "settings", "p_min"),
    [
        ([], (3, 1, 32_768), 0.5),
        (["--no-preset"], (2, 1, 32_768), None),
        (["--set", "draft=1", "--set", "ctx=2K"], (1, 1, 2_048), 0.5),
        (["--set", "p-min=0.75", "--no-preset"], (2, 1, 32_768), 0.75),
    ],
)
async def test_options_go_before_kept_and_tuned_settings(
    model: Path,
    words: list[str],
    settings: tuple[int, ...],
    p_min: float | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    named, served = await resolve_model_and_options(
        parse_options(str(model), "--engine", "built-in", *words), Reporter(as_json=False)
    )
    assert named == str(model)
    assert (served.draft, served.threads, served.context) == settings
    assert served.built_in
    assert (served.p_min, served.extra) == (p_min, ())
    assert ("Tuned settings: " in capsys.readouterr().err) is ("--no-preset" not in words)
