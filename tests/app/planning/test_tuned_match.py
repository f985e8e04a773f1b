"""The use of tuned settings, with the real built-in engine and the demo model."""

import asyncio
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.app.first.demonstration import run_demo
from launcher.app.first.doctor import examine_machine
from launcher.app.measuring import tuner
from launcher.app.planning import tuned_match
from launcher.app.planning.start_settings import apply_own_settings
from launcher.app.planning.tuned_match import (
    TunedMatch,
    find_outdated_matches,
    find_settings_for_launch,
    find_tuned_match,
    match_tuned_settings,
)
from launcher.engine.builds.probe import probe_engine
from launcher.engine.demo import read_demo_preset
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.launch import Launch
from launcher.engine.server.process import EngineCommand
from launcher.engine.settings import load_model_settings, save_model_settings
from launcher.machine.machine import read_machine
from launcher.models.catalogue_load import load_catalogue
from launcher.models.gguf import read_model
from launcher.models.library_index import Record, store_record
from launcher.models.plan import PlanCriteria, make_plans
from launcher.models.situation import describe_machine
from launcher.tuning.history import History
from launcher.tuning.history_environment import Environment, GpuFacts, model_facts
from launcher.tuning.records import RunSettings
from launcher.tuning.tuned_settings import TunedSettings, load_tuned_settings, save_tune_result, save_tuned_settings
from tests import forked
from tests.cli.conftest import add_own_model
from tests.tuning.measured import ENVIRONMENT, OFF, run
from tools.sparse_models.models import model as make_sparse_model

SETTINGS = {"draft": 1, "ubatch": 256, "p_min": 0.25}
RESULT = {"mtp": "on", "settings": SETTINGS, "speedup": 1.2, "sentence": "Draft 1 is 20 % faster than no MTP."}


async def local_environment(model: Path) -> Environment:
    build = await probe_engine(None)
    return Environment.for_model(model_facts(read_model(model)), build.name, build.version)


def save_tuned(environment: Environment, model: Path) -> TunedSettings:
    """Tuned settings of this machine, as a tune stores them."""
    with History() as history:
        id_ = history.begin_session("tune", environment, {"draft": 0}, workload="code")
        history.finish(id_, RESULT)
    return save_tune_result(id_, model)


def import_preset(preset: TunedSettings) -> TunedSettings:
    save_tuned_settings(preset.model_copy(update={"verified_by": (), "path": None}))
    (kept,) = load_tuned_settings()
    return kept


async def test_matching_tuned_settings_are_used(demo_model: Path) -> None:
    preset = save_tuned(await local_environment(demo_model), demo_model)
    assert len(preset.evidence.environment.model.sha256[0]) == 64  # computed, as it was not known
    found = await find_tuned_match(ServeOptions(demo_model, built_in=True))
    assert found == TunedMatch(preset, (), used=True)
    assert found.line == f"{preset.summary}; --no-preset ignores them"
    assert preset.measured_line.startswith("Measured here: draft ")
    assert await find_outdated_matches(read_machine()) == ()


async def test_the_demo_shows_its_tuned_settings_in_place_of_the_usual_note(demo_model: Path) -> None:
    assert (await run_demo(seconds=0.0)).speed_note == read_demo_preset().speed_note
    tuned = save_tuned(await local_environment(demo_model), demo_model)
    assert (await run_demo(seconds=0.0)).speed_note == tuned.measured_line


async def test_tuned_settings_of_another_machine_are_not_shown(demo_model: Path) -> None:
    preset = save_tuned(await local_environment(demo_model), demo_model)
    launch = Launch(
        EngineCommand([], {}, demo_model.parent),
        await probe_engine(None),
        read_model(demo_model),
        4_096,
        ServeOptions(demo_model),
    )
    assert find_settings_for_launch(launch) == preset
    import_preset(preset)
    assert find_settings_for_launch(launch) is None
    save_tuned(replace(await local_environment(demo_model), cpu="another"), demo_model)
    assert find_settings_for_launch(launch) is None


async def test_nothing_is_read_without_tuned_settings(demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned_match, "check_model", None)
    assert await find_tuned_match(ServeOptions(demo_model, built_in=True)) is None


async def test_tuned_settings_of_another_model_do_not_match(demo_model: Path) -> None:
    save_tuned(ENVIRONMENT, demo_model)
    assert await find_tuned_match(ServeOptions(demo_model, built_in=True)) is None


async def test_an_unreadable_model_is_left_to_the_start(demo_model: Path, tmp_path: Path) -> None:
    save_tuned(await local_environment(demo_model), demo_model)
    assert await find_tuned_match(ServeOptions(tmp_path / "none.gguf")) is None


async def test_another_driver_is_reported_another_gpu_is_not_used(demo_model: Path) -> None:
    now = await local_environment(demo_model)
    gpu = GpuFacts("RTX 4090", "nvidia", 2**34, "580")
    preset = save_tuned(replace(now, gpus=(gpu,)), demo_model)
    driver = match_tuned_settings(preset, replace(preset.evidence.environment, gpus=(replace(gpu, driver="590"),)))
    assert driver.used
    assert "since then the driver was 580 and is 590: measure again" in driver.line
    other = match_tuned_settings(preset, replace(preset.evidence.environment, gpus=(replace(gpu, name="RTX 5090"),)))
    assert not other.used
    assert other.line.startswith("the tuned settings are not used, because the GPU was RTX 4090 and is RTX 5090")
    engine = match_tuned_settings(preset, replace(preset.evidence.environment, engine="b11434-cuda"))
    assert not engine.used  # this engine computes on another device


async def test_doctor_suggests_to_measure_again(demo_model: Path) -> None:
    now = await local_environment(demo_model)
    save_tuned(replace(now, engine_version="an older one"), demo_model)
    (found,) = await find_outdated_matches(read_machine())
    assert found.used
    titles = [problem.title for problem in (await examine_machine()).problems]
    assert any(
        "are used, but may be out of date: the engine was built-in an older one and is" in title for title in titles
    )


async def test_a_changed_file_is_detected(demo_model: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(demo_model.read_bytes())
    save_tuned(await local_environment(own), own)
    assert await find_outdated_matches(read_machine()) == ()
    with own.open("ab") as file:
        file.write(b"\0" * 32)
    (found,) = await find_outdated_matches(read_machine())
    assert not found.used
    assert found.changed == ("The model file has changed.",)


async def test_imported_tuned_settings_wait_for_confirmation(demo_model: Path) -> None:
    preset = import_preset(save_tuned(await local_environment(demo_model), demo_model))
    found = await find_tuned_match(ServeOptions(demo_model, built_in=True))
    assert found is not None
    assert not found.used
    assert "only after a measurement here confirms them" in found.line
    with History() as history:
        one: RunSettings = {"draft": 1, "kv": "q8_0"}
        ids = []
        for off_rate, rate in ((50.0, 60.0), (51.0, 61.0), (50.5, 60.5)):
            ids.append(history.begin_session("bench", await local_environment(demo_model), OFF, workload="code"))
            history.add_runs(ids[-1], [run(off_rate), run(rate, one)])
    found = await find_tuned_match(ServeOptions(demo_model, built_in=True))
    assert found is not None
    assert found.used
    assert set(found.tuned.verified_by) == set(ids)
    assert load_tuned_settings() == (found.tuned,)
    assert found.tuned.settings == preset.settings


async def test_tuned_settings_are_used_in_plans_for_this_machine_only(home: Path) -> None:
    path = add_own_model(home, make_sparse_model("qwen35-9b-q4_k_m"))
    store_record(Record(paths=(path,), bytes=path.stat().st_size, model="own", quant="Q"))
    result = RESULT | {"settings": {"draft": 3, "kv": "q4_0", "threads": 4}}
    with History() as history:
        id_ = history.begin_session("tune", await local_environment(path), {"draft": 0}, workload="code")
        history.finish(id_, result)
        # `save_tune_result` would hash a file of gigabytes.
        save_tuned_settings(TunedSettings.from_session(history.load(id_), path=path))
    catalogue, this = load_catalogue(), replace(describe_machine(24.0, backend="cuda"), described=False)
    before = make_plans(catalogue, this, PlanCriteria(model="own"))
    (first, *others), _ = await apply_own_settings(before, catalogue, this, PlanCriteria(model="own"))
    assert (first.setting.draft, first.setting.kv) == (3, "q4_0")
    assert (first.setting.context, first.setting.ubatch) == (before[0].setting.context, before[0].setting.ubatch)
    assert first.reasons[0].startswith("Tuned settings: draft 3, kv q4_0, threads 4 (1.2 times as fast")
    assert tuple(others) == before[1:]
    criteria = PlanCriteria(model="own", draft=1)  # a setting that the user gives is not replaced
    (mine, *_), _ = await apply_own_settings(make_plans(catalogue, this, criteria), catalogue, this, criteria)
    assert (mine.setting.draft, mine.setting.kv) == (1, "q4_0")
    small = replace(describe_machine(8.0, backend="cuda"), described=False)
    big = PlanCriteria(model="own", context=262_144, ubatch=4_096)
    plans = make_plans(catalogue, small, big)
    # The tuned draft length of 3 would not fit.
    assert (await apply_own_settings(plans, catalogue, small, big))[0] == plans
    other = describe_machine(24.0, backend="cuda")
    assert (await apply_own_settings(before, catalogue, other, PlanCriteria(model="own")))[0] == before


@pytest.mark.parametrize("named", ["as tuned", "by a link"])
@pytest.mark.parametrize("same", [True, False])
async def test_applying_a_tune_stores_its_verdict(
    demo_model: Path, same: bool, named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment = await local_environment(demo_model)
    with History() as history:
        id_ = history.begin_session("tune", environment, {"draft": 0}, workload="code")
        history.finish(id_, RESULT)
    options = ServeOptions(demo_model, built_in=True)
    tune = SimpleNamespace(options=options, verdict=RESULT, record_id=id_)
    monkeypatch.setattr(tuner, "load_tune", lambda _model: tune)
    if named == "by a link":
        (tmp_path / demo_model.name).symlink_to(demo_model)
        options = replace(options, model=tmp_path / demo_model.name)
    await asyncio.to_thread(tuner.save_winner, options, SETTINGS if same else {"draft": 2})
    assert [preset.settings for preset in load_tuned_settings()] == ([SETTINGS] if same else [])
    assert load_model_settings(options.model)["draft"] == (1 if same else 2)


def serve_demo(*arguments: str) -> dict[str, object]:
    """The output of `serve` once it is ready."""
    with forked.start("serve", "demo", "--json", *arguments, stdout=subprocess.PIPE) as program:
        assert program.stdout
        result = json.loads(program.stdout.readline())
        settings = json.loads(forked.run("status", "--json").stdout)
        program.terminate()
        program.wait()
    (server,) = settings["servers"] if isinstance(settings, dict) else settings
    return {**result, "settings": server["settings"]}


@pytest.mark.usefixtures("forked_commands")
@pytest.mark.thorough
async def test_serve_uses_and_reports_tuned_settings_unless_told_to_ignore_them() -> None:
    from launcher.engine.demo import unpack_demo_model

    model = unpack_demo_model()
    preset = save_tuned(await local_environment(model), model)
    save_model_settings(model, {"draft": 1, "slots": 1})  # applying a tune leaves these kept settings
    result = serve_demo()
    assert result["preset"] == {"settings": SETTINGS, "note": f"{preset.summary}; --no-preset ignores them"}
    settings = result["settings"]
    assert isinstance(settings, dict)
    assert (settings["draft"], settings["ubatch"]) == (1, 256)
    assert (settings["p_min"], settings["extra"]) == (0.25, [])
    result = serve_demo("--no-preset")
    assert "preset" not in result
    settings = result["settings"]
    assert isinstance(settings, dict)
    assert settings["draft"] != 1
    assert settings["ubatch"] == 512
    assert load_model_settings(model) == {"draft": 1, "slots": 1}
