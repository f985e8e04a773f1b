"""Tuned settings: kept from a verdict, exported and imported, and confirmed."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base.errors import NothingMeasured, ResultMissing, ResultUnreadable
from launcher.tuning.history import History
from launcher.tuning.history_environment import Environment, GpuFacts, ModelFacts
from launcher.tuning.records import RunSettings
from launcher.tuning.tuned_settings import (
    Evidence,
    TunedSettings,
    delete_tuned_settings,
    find_confirming_sessions,
    find_tuned_settings,
    load_tuned_settings,
    load_tuned_settings_by_name,
    read_tuned_settings,
    save_tune_result,
    save_tuned_settings,
    tuned_settings_file,
)
from tests.tuning.measured import ENVIRONMENT, MODEL, OFF, ON, run

VERDICT = {
    "mtp": "on",
    "draft": 2,
    "settings": {"draft": 2, "kv": "q8_0", "p_min": 0.5},
    "speedup": 1.41,
    "ci_low": 1.38,
    "ci_high": 1.44,
    "sentence": "Draft 2 is 41 % faster than no MTP for code.",
    "because": "a step yields 2.40 tokens and takes 1.70 times as long",
    "goal": "speed",
}


def store_tune(result: object = VERDICT, environment: Environment = ENVIRONMENT) -> str:
    """Store a tune with this result in the history; return its ID."""
    with History(clock=lambda: 1_793_534_400.0) as history:
        id_ = history.begin_session("tune", environment, OFF, workload="code")
        history.finish(id_, dict(result))  # type: ignore[call-overload]
    return id_


def saved_tune(**changes: object) -> TunedSettings:
    return save_tune_result(store_tune(VERDICT | changes), Path("/models/some.gguf"))


OTHER = replace(ENVIRONMENT, gpus=(GpuFacts("Tesla T4", "nvidia"),))


def store_benches(
    runs: Sequence[tuple[RunSettings, Sequence[float]]], environment: Environment = ENVIRONMENT, *, times: int = 3
) -> list[str]:
    """Store `times` benches of each of the settings, whose rates differ by about 3 %; return their IDs."""
    ids = []
    with History() as history:
        for at, (settings, rates) in itertools.product(range(times), runs):
            ids.append(history.begin_session("bench", environment, settings, workload="code"))
            history.add_runs(ids[-1], [run(rate * (1.0, 1.03, 0.98)[at], settings) for rate in rates])
    return ids


def test_the_verdict_of_a_tune_is_kept_with_its_evidence(home: Path) -> None:
    preset = saved_tune()
    assert load_tuned_settings() == (preset,)
    assert find_tuned_settings(MODEL) == preset
    assert preset.settings == {"draft": 2, "kv": "q8_0", "p_min": 0.5}
    assert preset.evidence.environment == ENVIRONMENT
    assert preset.evidence.environment.model.sha256 == MODEL.sha256
    assert (preset.evidence.ci_low, preset.evidence.ci_high) == (1.38, 1.44)
    assert preset.verified
    assert preset.summary == "draft 2, kv q8_0, p-min 0.5 (1.4 times as fast as with MTP off), 2026-11-01"


def test_each_model_and_quantisation_has_one_entry(home: Path) -> None:
    first = saved_tune()
    second = saved_tune(settings={"draft": 3})
    assert load_tuned_settings() == (second,)
    other = store_tune(environment=replace(ENVIRONMENT, model=replace(MODEL, quant="Q4_K_M")))
    third = save_tune_result(other, Path("/models/other.gguf"))
    assert load_tuned_settings() == (second, third)
    assert find_tuned_settings(ModelFacts("another")) is None
    delete_tuned_settings(first)
    assert load_tuned_settings() == (third,)


def test_the_day_of_a_tune_is_that_of_its_end(home: Path) -> None:
    times = iter((1_793_534_400.0, 1_793_574_000.0))
    with History(clock=lambda: next(times)) as history:
        id_ = history.begin_session("tune", ENVIRONMENT, OFF, workload="code")
        history.finish(id_, dict(VERDICT))  # type: ignore[call-overload]
    assert save_tune_result(id_, Path("/models/some.gguf")).evidence.measured_s == 1_793_574_000.0


def test_only_a_verdict_is_stored(home: Path) -> None:
    for result in ({}, {"mean": 50.0}, {"mtp": "on"}, {"mtp": "perhaps", "settings": {}}):
        with pytest.raises(NothingMeasured):
            save_tune_result(store_tune(result), Path("/models/some.gguf"))
    with pytest.raises(ResultMissing):
        save_tune_result("nothing", Path("/models/some.gguf"))
    assert load_tuned_settings() == ()


def test_exported_settings_are_unverified_on_another_machine(home: Path, tmp_path: Path) -> None:
    preset = saved_tune()
    file = tmp_path / "preset.json"
    file.write_text(preset.export_text(), "utf-8")
    text = file.read_text("utf-8")
    assert "/models" not in text
    assert "verified_by" not in text
    read = read_tuned_settings(file)
    assert not read.verified
    assert read.path is None
    assert read.settings == preset.settings
    assert read.evidence == preset.evidence
    save_tuned_settings(read)
    assert load_tuned_settings() == (read,)


def test_prompts_and_files_of_the_user_are_not_exported(home: Path) -> None:
    own = replace(ENVIRONMENT, model=replace(MODEL, file="for-my-divorce.gguf"))
    values = {
        "workload": "divorce",
        "sentence": "Draft 2 is 41 % faster than no MTP for divorce: 70 against 50 tokens/s.",
    }
    preset = TunedSettings(settings=dict(ON), evidence=Evidence(mtp="on", environment=own, **values))
    assert "divorce" not in preset.export_text()
    assert "for own prompts: 70 against 50" in preset.export_text()
    assert saved_tune().export_text().count("code") == 2  # names of the program's own workloads stay


def test_a_file_cannot_claim_to_be_verified(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "preset.json"
    file.write_text(
        json.dumps(json.loads(saved_tune().export_text()) | {"verified_by": ["me"], "path": "/etc/passwd"}), "utf-8"
    )
    assert not read_tuned_settings(file).verified
    assert read_tuned_settings(file).path is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "mtp-launcher preset", "version": 9}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "preset.json"
    file.write_text(text)
    with pytest.raises(ResultUnreadable, match="not a file of tuned settings"):
        read_tuned_settings(file)
    with pytest.raises(ResultMissing):
        read_tuned_settings(tmp_path / "none.json")
    file.write_bytes(b" " * 2_000_000)
    with pytest.raises(ResultUnreadable, match="too large"):
        read_tuned_settings(file)


def test_an_entry_is_found_by_a_part_of_its_model_name(home: Path) -> None:
    preset = saved_tune()
    assert load_tuned_settings_by_name("q3_k") == preset
    with pytest.raises(ResultMissing, match="no tuned settings for gemma"):
        load_tuned_settings_by_name("gemma")
    save_tune_result(
        store_tune(environment=replace(ENVIRONMENT, model=replace(MODEL, quant="Q4_K_M"))), Path("/x.gguf")
    )
    with pytest.raises(ResultMissing, match="2 tuned settings"):
        load_tuned_settings_by_name("qwen")


def test_a_damaged_file_is_restored_from_its_copy(home: Path) -> None:
    preset = saved_tune()
    tuned_settings_file().write_bytes(b"{")
    assert load_tuned_settings() == (preset,)
    assert tuned_settings_file().with_name("tuned-settings.json.bad").exists()


def test_runs_of_this_machine_confirm_mtp_on(home: Path) -> None:
    preset = saved_tune()
    with History() as history:
        assert find_confirming_sessions(preset, history, ENVIRONMENT) == ()
        on = store_benches([(ON, (70.0, 71.0, 70.5))])
        assert find_confirming_sessions(preset, history, ENVIRONMENT) == ()  # nothing to compare with
        off = store_benches([(OFF, (50.0, 51.0, 50.5))])
        assert set(find_confirming_sessions(preset, history, ENVIRONMENT)) == {*on, *off}


def test_single_starts_confirm_nothing(home: Path) -> None:
    on = saved_tune()
    store_benches([(ON, (70.0, 71.0, 70.5)), (OFF, (50.0, 51.0, 50.5))], times=2)
    with History() as history:
        assert find_confirming_sessions(on, history, ENVIRONMENT) == ()
    off = saved_tune(mtp="off", draft=0, settings={"draft": 0, "kv": "q8_0"})
    store_benches([(ON, (40.0, 41.0, 40.5)), (OFF, (50.0, 51.0, 50.5))], OTHER, times=2)
    with History() as history:
        assert find_confirming_sessions(off, history, OTHER) == ()


@pytest.mark.parametrize(
    ("faster", "settings"),
    [
        ((50.5, 51.5, 50.0), ON),  # no faster
        ((45.0, 46.0, 45.5), ON),  # slower
        ((70.0, 71.0, 70.5), {"draft": 3, "kv": "q8_0"}),  # another draft length
        ((70.0, 71.0, 70.5), {"draft": 2, "kv": "f16"}),  # another setting
    ],
)
def test_insufficient_runs_confirm_nothing(home: Path, faster: Sequence[float], settings: RunSettings) -> None:
    preset = saved_tune()
    store_benches([(OFF, (50.0, 51.0, 50.5)), (settings, faster)])
    with History() as history:
        assert find_confirming_sessions(preset, history, ENVIRONMENT) == ()


def test_runs_elsewhere_confirm_nothing(home: Path) -> None:
    preset = saved_tune()
    store_benches([(OFF, (50.0, 51.0, 50.5)), (ON, (70.0, 71.0, 70.5))], OTHER)
    with History() as history:
        assert find_confirming_sessions(preset, history, ENVIRONMENT) == ()
        assert find_confirming_sessions(preset, history, OTHER)


def test_mtp_off_is_confirmed_by_drafts_that_are_no_faster(home: Path) -> None:
    preset = saved_tune(mtp="off", draft=0, settings={"draft": 0, "kv": "q8_0"})
    with History() as history:
        store_benches([(OFF, (50.0, 51.0, 50.5))])
        assert find_confirming_sessions(preset, history, ENVIRONMENT) == ()
        store_benches([(ON, (40.0, 41.0, 40.5))])
        assert find_confirming_sessions(preset, history, ENVIRONMENT)
        store_benches([({"draft": 3, "kv": "q8_0"}, (60.0, 61.0, 60.5))])
        assert find_confirming_sessions(preset, history, ENVIRONMENT) == ()


def test_differences_of_environments_are_told_in_sentences() -> None:
    newer = replace(ENVIRONMENT, engine="b12000-cuda", gpus=(replace(ENVIRONMENT.gpus[0], driver="590.1"),))
    assert ENVIRONMENT.differences(ENVIRONMENT) == ()
    assert ENVIRONMENT.identity_differences(newer) == ()
    assert ENVIRONMENT.differences(newer) == (
        "The driver was 580.82 and is 590.1.",
        "The engine was b11434-cuda 11434 (abcdef0) and is b12000-cuda 11434 (abcdef0).",
    )
    for change, what in (
        ({"gpus": ()}, "The GPU was NVIDIA GeForce RTX 4090 and is none."),
        ({"cpu": None}, "The processor was AMD Ryzen 9 7950X and is unknown."),
        ({"model": replace(MODEL, bytes=1)}, "The model file has changed."),
        ({"model": replace(MODEL, sha256=("00" * 32,))}, "The model file has changed."),
        ({"model": replace(MODEL, quant="Q4")}, "The model was Qwen3.6-35B-A3B UD-Q3_K_XL and is Qwen3.6-35B-A3B Q4."),
    ):
        assert ENVIRONMENT.identity_differences(replace(ENVIRONMENT, **change)) == (what,)
    touched = replace(ENVIRONMENT, model=replace(MODEL, sha256=()))
    assert ENVIRONMENT.identity_differences(touched) == ()
    assert "was modified" in ENVIRONMENT.differences(touched)[0]
