"""Machine presets in use, on this machine with the real built-in engine and the demo model."""

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher import machine_presets, tuner
from launcher.doctor import diagnose
from launcher.engine.build import probe
from launcher.engine.launch import ServeOptions
from launcher.engine.settings import remember, remembered
from launcher.machine.machine import read_machine
from launcher.machine_presets import Found, find_preset, judged, outdated, settings_kept, settings_used, with_presets
from launcher.models.catalogue_load import load_catalogue
from launcher.models.gguf import read_model
from launcher.models.library_index import Record, keep_record
from launcher.models.plan import Wish, make_plans
from launcher.models.situation import described
from launcher.tuning.history import History
from launcher.tuning.history_environment import Environment, GpuFacts, model_facts
from launcher.tuning.machine_preset import MachinePreset, keep_preset, keep_tuned, presets
from launcher.tuning.records import Settings
from tests.cli.conftest import own_model
from tests.tuning.measured import ENVIRONMENT, OFF, run
from tools.sparse_models.models import model as made

SETTINGS = {"draft": 1, "ubatch": 256, "p_min": 0.25}
RESULT = {"mtp": "on", "settings": SETTINGS, "speedup": 1.2, "sentence": "Draft 1 is 20 % faster than no MTP."}


async def here(model: Path) -> Environment:
    build = await probe(None)
    return Environment.here(model_facts(read_model(model)), build.name, build.version)


def tuned(environment: Environment, model: Path) -> MachinePreset:
    """A preset of this machine, as a tune there would have left it."""
    with History() as history:
        id_ = history.add_session("tune", environment, {"draft": 0}, workload="code")
        history.finish(id_, RESULT)
    return keep_tuned(id_, model)


def imported(preset: MachinePreset) -> MachinePreset:
    keep_preset(preset.model_copy(update={"verified_by": (), "path": None}))
    (kept,) = presets()
    return kept


async def test_one_that_matches_is_used(demo_model: Path) -> None:
    preset = tuned(await here(demo_model), demo_model)
    assert len(preset.evidence.environment.model.sha256[0]) == 64  # computed, as it was not known
    found = await find_preset(ServeOptions(demo_model, built_in=True))
    assert found == Found(preset, (), used=True)
    assert found.line == f"{preset.words}; --no-preset leaves it out"
    assert await outdated(read_machine()) == ()


async def test_without_one_nothing_is_looked_at(demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_presets, "check_model", None)
    assert await find_preset(ServeOptions(demo_model, built_in=True)) is None


async def test_one_for_another_model_is_none(demo_model: Path) -> None:
    tuned(ENVIRONMENT, demo_model)
    assert await find_preset(ServeOptions(demo_model, built_in=True)) is None


async def test_a_model_that_cannot_be_read_is_for_the_start_to_tell(demo_model: Path, tmp_path: Path) -> None:
    tuned(await here(demo_model), demo_model)
    assert await find_preset(ServeOptions(tmp_path / "none.gguf")) is None


async def test_another_driver_is_told_another_gpu_is_not_used(demo_model: Path) -> None:
    now = await here(demo_model)
    gpu = GpuFacts("RTX 4090", "nvidia", 2**34, "580")
    preset = tuned(replace(now, gpus=(gpu,)), demo_model)
    driver = judged(preset, replace(preset.evidence.environment, gpus=(replace(gpu, driver="590"),)))
    assert driver.used
    assert "since then the driver was 580 and is 590: measure again" in driver.line
    other = judged(preset, replace(preset.evidence.environment, gpus=(replace(gpu, name="RTX 5090"),)))
    assert not other.used
    assert other.line.startswith("a preset is not used, as the GPU was RTX 4090 and is RTX 5090")
    engine = judged(preset, replace(preset.evidence.environment, engine="b11434-cuda"))
    assert not engine.used  # it computes elsewhere


async def test_doctor_suggests_to_measure_again(demo_model: Path) -> None:
    now = await here(demo_model)
    tuned(replace(now, engine_version="an older one"), demo_model)
    (found,) = await outdated(read_machine())
    assert found.used
    titles = [finding.title for finding in (await diagnose()).findings]
    assert any("is used all the same: the engine was built-in an older one and is" in title for title in titles)


async def test_a_changed_file_is_seen(demo_model: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(demo_model.read_bytes())
    tuned(await here(own), own)
    assert await outdated(read_machine()) == ()
    with own.open("ab") as file:
        file.write(b"\0" * 32)
    (found,) = await outdated(read_machine())
    assert not found.used
    assert found.changed == ("The model's file is another one.",)


async def test_an_imported_one_waits_until_it_is_confirmed_here(demo_model: Path) -> None:
    preset = imported(tuned(await here(demo_model), demo_model))
    found = await find_preset(ServeOptions(demo_model, built_in=True))
    assert found is not None
    assert not found.used
    assert "nothing here confirms it yet" in found.line
    with History() as history:
        one: Settings = {"draft": 1, "kv": "q8_0"}
        ids = []
        for off_rate, rate in ((50.0, 60.0), (51.0, 61.0), (50.5, 60.5)):
            ids.append(history.add_session("bench", await here(demo_model), OFF, workload="code"))
            history.add_runs(ids[-1], [run(off_rate), run(rate, one)])
    found = await find_preset(ServeOptions(demo_model, built_in=True))
    assert found is not None
    assert found.used
    assert set(found.preset.verified_by) == set(ids)
    assert presets() == (found.preset,)
    assert found.preset.settings == preset.settings


def test_what_the_user_asks_for_and_chose_goes_before_it() -> None:
    preset = MachinePreset.model_validate(
        {"settings": SETTINGS, "evidence": {"mtp": "on", "environment": ENVIRONMENT}, "verified_by": ["x"]}
    )
    found = Found(preset, (), used=True)
    assert settings_used(None, {}, {}) == {}
    assert settings_used(found, {}, {}) == SETTINGS
    assert settings_used(found, {"draft": 3}, {}) == {"ubatch": 256, "p_min": 0.25}
    chosen = {"draft": 3, "ubatch": 256, "kv": "q8_0"}  # 256 is what the tune left there
    assert settings_used(found, {}, chosen) == {"ubatch": 256, "p_min": 0.25}
    assert settings_kept(found, {}, chosen) == {"draft": 3, "kv": "q8_0"}
    assert settings_kept(found, {"kv": "f16"}, chosen) == {"draft": 3}
    not_used = replace(found, used=False)
    assert settings_used(not_used, {}, chosen) == {}
    assert settings_kept(not_used, {}, chosen) == {"draft": 3, "kv": "q8_0"}
    stranger = replace(not_used, preset=preset.model_copy(update={"verified_by": ()}))
    assert settings_kept(stranger, {}, chosen) == chosen


async def test_a_plan_for_this_machine_takes_it_and_one_for_another_does_not(home: Path) -> None:
    path = own_model(home, made("qwen35-9b-q4_k_m"))
    keep_record(Record(paths=(path,), bytes=path.stat().st_size, model="own", quant="Q"))
    result = RESULT | {"settings": {"draft": 3, "kv": "q4_0", "threads": 4}}
    with History() as history:
        id_ = history.add_session("tune", await here(path), {"draft": 0}, workload="code")
        history.finish(id_, result)
        keep_preset(MachinePreset.of(history.load(id_), path=path))  # keep_tuned would hash a file of gigabytes
    catalogue, this = load_catalogue(), replace(described(24.0, backend="cuda"), described=False)
    before = make_plans(catalogue, this, Wish(model="own"))
    first, *others = await with_presets(before, catalogue, this, Wish(model="own"))
    assert (first.setting.draft, first.setting.kv) == (3, "q4_0")
    assert (first.setting.context, first.setting.ubatch) == (before[0].setting.context, before[0].setting.ubatch)
    assert first.reasons[0].startswith("Preset of this machine: draft 3, kv q4_0, threads 4 (Draft 1 is 20 % faster")
    assert tuple(others) == before[1:]
    wish = Wish(model="own", draft=1)  # what the user fixes stays
    (mine, *_) = await with_presets(make_plans(catalogue, this, wish), catalogue, this, wish)
    assert (mine.setting.draft, mine.setting.kv) == (1, "q4_0")
    small = replace(described(8.0, backend="cuda"), described=False)
    big = Wish(model="own", context=262_144, ubatch=4_096)
    plans = make_plans(catalogue, small, big)
    assert await with_presets(plans, catalogue, small, big) == plans  # with draft 3 it would not fit
    other = described(24.0, backend="cuda")
    assert await with_presets(before, catalogue, other, Wish(model="own")) == before


@pytest.mark.parametrize("named", ["as tuned", "by a link"])
@pytest.mark.parametrize("same", [True, False])
async def test_applying_a_tune_keeps_its_verdict_as_the_preset(
    demo_model: Path, same: bool, named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment = await here(demo_model)
    with History() as history:
        id_ = history.add_session("tune", environment, {"draft": 0}, workload="code")
        history.finish(id_, RESULT)
    options = ServeOptions(demo_model, built_in=True)
    tune = SimpleNamespace(options=options, verdict=RESULT, session=id_)
    monkeypatch.setattr(tuner, "kept_tune", lambda _model: tune)
    if named == "by a link":
        (tmp_path / demo_model.name).symlink_to(demo_model)
        options = replace(options, model=tmp_path / demo_model.name)
    await asyncio.to_thread(tuner.keep_winner, options, SETTINGS if same else {"draft": 2})
    assert [preset.settings for preset in presets()] == ([SETTINGS] if same else [])
    assert remembered(options.model)["draft"] == (1 if same else 2)


def served(*arguments: str) -> dict[str, object]:
    """What `serve` says once it is ready."""
    command = [sys.executable, "-m", "launcher", "serve", "demo", "--json", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout
        told = json.loads(program.stdout.readline())
        settings = json.loads(
            subprocess.run(
                [sys.executable, "-m", "launcher", "status", "--json"], capture_output=True, text=True, check=True
            ).stdout
        )
        program.terminate()
        program.wait()
    (server,) = settings["servers"] if isinstance(settings, dict) else settings
    return {**told, "settings": server["settings"]}


async def test_serve_takes_it_says_so_and_leaves_it_out_when_asked() -> None:
    from launcher.engine.demo import unpack_demo_model

    model = unpack_demo_model()
    preset = tuned(await here(model), model)
    remember(model, {"draft": 1, "slots": 1})  # as applying a tune leaves it
    told = served()
    assert told["preset"] == {"settings": SETTINGS, "note": f"{preset.words}; --no-preset leaves it out"}
    settings = told["settings"]
    assert isinstance(settings, dict)
    assert (settings["draft"], settings["ubatch"]) == (1, 256)
    assert settings["extra"] == ["--spec-draft-p-min", "0.25"]
    told = served("--no-preset")
    assert "preset" not in told
    settings = told["settings"]
    assert isinstance(settings, dict)
    assert settings["draft"] != 1
    assert settings["ubatch"] is None
    assert remembered(model) == {"draft": 1, "slots": 1}
