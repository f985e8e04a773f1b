"""Every kind of file that the program keeps, with every kind of damage: the program goes on, and reports it once."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.app import settings_file
from launcher.app.measuring.saved_tunes import SavedTune, load_tunes, save_tune
from launcher.app.serving.model_names import keep_model, read_model_names
from launcher.app.settings_declared import THEME
from launcher.base import kept_files
from launcher.base.paths import HOME_VARIABLE, data_dir, state_dir
from launcher.engine import settings
from launcher.engine.builds import installed
from launcher.engine.builds.build import Device
from launcher.engine.builds.probe import list_devices_once, probe_engine
from launcher.engine.builds.releases import ReleaseClient
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import endpoint, last_start, load_times, registry
from launcher.engine.server.launch import Launch, prepare_launch
from launcher.fetch.queue import DownloadQueue
from launcher.models import header_summary, hub_figures, library_index, load_history
from launcher.models.catalogue_load import figures_folder, shipped_models
from launcher.models.gguf import read_header
from launcher.tuning import tuned_settings
from launcher.tuning.goal import Goal
from launcher.tuning.space import Space
from launcher.tuning.tune_state import TuneState, tune_identity
from launcher.tuning.workloads import load_workload
from launcher.updates.check import RELEASES_VARIABLE, check_weekly
from tests import forked
from tests.conftest import ReleaseServer
from tests.tuning.test_tuned_settings import saved_tune as keep_a_preset

MODEL = Path("/models/some.gguf")
SHA256 = "0" * 64
CATALOGUED = next(model for model in shipped_models() if model.repo and not model.revision)
FAULTS: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "binary": lambda path: path.write_bytes(b"\x00\xff\xfe" * 500),
    "of another type": lambda path: path.write_bytes(b"[7]"),
    "nested deeply": lambda path: path.write_bytes(b"[" * 50_000),
    "nested deeply and closed": lambda path: path.write_bytes(b"a = " + b"[" * 50_000 + b"]" * 50_000),
    "tables in tables": lambda path: path.write_bytes(b'{"a":' * 50_000 + b"0" + b"}" * 50_000),
    "a folder": lambda path: (path.unlink(), path.mkdir(), (path / "inner").touch()),
    "unreadable": lambda path: (path.unlink(), path.symlink_to(path)),  # a link to itself, which not even root can read
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@dataclass
class Circumstances:
    """Objects that some kinds need."""

    launch: Launch
    demo: Path
    engine: Path
    releases: ReleaseServer


@dataclass(frozen=True)
class Kind:
    """A kind of kept file: the glob of its place in the home, how it is made, and what is read of it.

    `harmless_faults` are the faults that do this kind of file no harm.
    """

    place: str
    make: Callable[[Circumstances], object]
    read: Callable[[Circumstances], object]
    harmless_faults: frozenset[str] = frozenset()


async def list_known_devices(engine: Path) -> tuple[Device, ...]:
    return await list_devices_once(await probe_engine(engine), "drivers")


def write(path: Path, data: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


def make_tune(_: Circumstances) -> None:
    work, space = load_workload("code"), Space({}, (1, 2))
    state = TuneState(tune_identity(space, work.name, work.prompts, Goal()), 1, ((0, 60.0),))
    save_tune(SavedTune("m", ServeOptions(model=MODEL), work, Goal(), 60.0, space, state, "session"))


def make_figures(_: Circumstances) -> None:
    model = CATALOGUED
    file = {"repo": model.repo, "revision": "r", "file": model.files[0].file, "size_bytes": 7, "sha256": SHA256}
    kept = {"repo": model.repo, "asked": model.revision, "revision": "told", "files": [file]}
    write(figures_folder() / f"{model.id}.json", kept)


def make_check(_: Circumstances) -> None:
    manifest = {"version": "7.0.0", "notes": "", "artefacts": []}
    kept = {"folder": os.environ[RELEASES_VARIABLE], "asked_s": time.time(), "answered": True, "manifest": manifest}
    write(state_dir() / "updates.json", kept)


def make_manifest(_: Circumstances) -> None:
    values = {"tag": "b1", "backend": "cpu", "arch": "x64", "archives": {}, "version": "1", "installed_s": 0.0}
    write(data_dir() / "engines" / "b1-cpu" / installed.MANIFEST, values)


def fetch_tags(_: Circumstances) -> object:
    return [release.tag for release in ReleaseClient().fetch_builds()]


KINDS = {
    "settings": Kind(
        "config/settings.toml",
        lambda _: settings_file.write_setting(THEME, "dark"),
        lambda _: dict(settings_file.read_settings_file().values),
        frozenset({"empty", "cut", "of another type"}),  # TOML may hold only a comment, and [7] is a table's head
    ),
    "settings of models": Kind(
        "state/model-settings.json",
        lambda _: settings.save_model_settings(MODEL, {"draft": 1}),
        lambda _: settings.load_model_settings(MODEL),
    ),
    "names of models": Kind("config/model-names.json", lambda _: keep_model("demo"), lambda _: read_model_names().kept),
    "ports and keys": Kind(
        "state/endpoints.json",
        lambda _: endpoint.claim_endpoint(23_456),
        lambda _: [each.port for each in endpoint.saved_endpoints()],
    ),
    "last start": Kind(
        "state/last-start.json",
        lambda _: last_start.save_last_start(None, MODEL),
        lambda _: last_start.load_last_start(),
    ),
    "tuned settings": Kind(
        "data/history/tuned-settings.json",
        lambda _: keep_a_preset(),
        lambda _: [each.model.name for each in tuned_settings.load_tuned_settings()],
    ),
    "last model": Kind(
        "state/last-model",
        lambda _: last_start.save_last_model("demo"),
        lambda _: last_start.load_last_model(),
        frozenset({"cut", "of another type"}),  # any short text is a valid name
    ),
    "last used": Kind(
        "state/last-used.json", lambda _: last_start.save_last_use(MODEL), lambda _: sorted(last_start.load_last_uses())
    ),
    "load times": Kind(
        "state/load-times.json",
        lambda at: load_times.save_load_time(at.launch, 2.0),
        lambda at: load_times.expected_load_time(at.launch),
    ),
    "measured loads": Kind(
        "state/measured-memory.json",
        lambda _: load_history.record_load("gpu", "cuda", buffers_mib=100, measured_mib=530),
        lambda _: load_history.read_overhead_mib("gpu", "cuda"),
    ),
    "what an engine can do": Kind(
        "cache/probes/*.json",
        lambda at: asyncio.run(probe_engine(at.engine)),
        lambda at: asyncio.run(probe_engine(at.engine)).version,
    ),
    "devices of an engine": Kind(
        "cache/probes/*.devices.json",
        lambda at: asyncio.run(list_known_devices(at.engine)),
        lambda at: asyncio.run(list_known_devices(at.engine)),
    ),
    "installed engine": Kind(
        "data/engines/b1-cpu/installed.json",
        make_manifest,
        lambda _: [each.name for each in installed.read_store().engines],
        frozenset({"unreadable"}),  # a dangling link is not a file of the folder
    ),
    "engine in use": Kind(
        "data/engines/engines.json",
        lambda at: installed.add_engine(at.engine, "mine"),
        lambda _: [each.name for each in installed.read_store().engines],
    ),
    "answers about releases": Kind("cache/releases/*.json", fetch_tags, fetch_tags),
    "running server": Kind(
        "state/run/*/server-*.json",
        lambda _: registry.register_server(None, registry.ServedModel(model="m", engine="e", draft=0)),
        lambda _: [each.first.model for each in registry.list_entries()],
    ),
    "downloads": Kind(
        "state/downloads/queue.json",
        lambda _: DownloadQueue({}).add_job("copy", {}, "some"),
        lambda _: [each.title for each in DownloadQueue({}).read_snapshot().jobs.jobs],
    ),
    "models": Kind(
        "data/library.json",
        lambda _: library_index.store_record(library_index.Record(paths=(MODEL,))),
        lambda _: [each.path for each in library_index.read_index()[0].records],
    ),
    "what the hub reported": Kind(
        f"cache/hub-figures/{CATALOGUED.id}.json",
        make_figures,
        lambda _: hub_figures.fill_from_hub_cache(CATALOGUED).revision,
    ),
    "headers": Kind(
        "cache/header-summaries/*.json",
        lambda at: header_summary.store_summary(SHA256, read_header(at.demo)),
        lambda _: header_summary.load_summary(SHA256),
    ),
    "newer versions": Kind("state/updates.json", make_check, lambda _: asyncio.run(check_weekly())),
    "a tune": Kind("state/tune-*.json", make_tune, lambda _: [each.record_id for each in load_tunes()]),
}


@pytest.fixture
def circumstances(demo_model: Path, fake_engine: Path, releases: ReleaseServer) -> Circumstances:
    releases.publish("b11434", "cpu")
    options = ServeOptions(model=demo_model, built_in=True)
    return Circumstances(
        asyncio.run(prepare_launch(options, endpoint.Endpoint(20_001, "k"))), demo_model, fake_engine, releases
    )


@pytest.mark.cases(6)
@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes are otherwise there")
@pytest.mark.parametrize("name", KINDS)
def test_any_damage_to_a_kept_file_is_reported_once_and_survived(
    name: str,
    circumstances: Circumstances,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kind = KINDS[name]
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "nothing kept"))
    default = kind.read(circumstances)
    for fault, bring_about in FAULTS.items():
        home = tmp_path / fault
        monkeypatch.setenv(HOME_VARIABLE, str(home))
        kind.make(circumstances)
        whole = kind.read(circumstances)
        (path,) = home.glob(kind.place)
        path.with_name(f"{path.name}.copy").unlink(missing_ok=True)
        bring_about(path)
        caplog.clear()
        if fault in kind.harmless_faults:
            kind.read(circumstances)
            assert os.path.lexists(path), fault
            continue
        assert kind.read(circumstances) == default, fault
        bad = path.with_name(f"{path.name}.bad")
        assert os.path.lexists(bad), fault
        assert bad.is_dir() == (fault == "a folder"), fault
        received = [record.getMessage() for record in caplog.records if str(bad) in record.getMessage()]
        # The download queue reports damage in its snapshot, not in the log.
        assert len(received) == (name != "downloads"), fault
        kind.read(circumstances)
        kind.make(circumstances)
        assert kind.read(circumstances) == whole, fault
        assert len(list(home.glob(f"{kind.place}.bad*"))) == 1, fault


@pytest.mark.cases(3)
@pytest.mark.usefixtures("forked_commands")
@pytest.mark.parametrize("text", [b"a = " + b"[" * 50_000, b"[" * 50_000, b"a." * 3_000 + b"a = 1"])
@pytest.mark.parametrize("verb", [("settings", "list"), ("plan", "--gpu-memory", "8"), ("status",)])
def test_a_deeply_nested_file_causes_no_traceback(text: bytes, verb: tuple[str, ...], home: Path) -> None:
    (home / "config").mkdir(parents=True)
    (home / "config" / "settings.toml").write_bytes(text)
    result = forked.run(*verb)
    assert "Traceback" not in result.stderr
    assert result.stderr.count("is kept as") <= 2
    assert (home / "config" / "settings.toml.bad").read_bytes() == text


@pytest.mark.usefixtures("forked_commands")
@pytest.mark.parametrize("place", ["models", "presets", "engines"])
def test_a_deeply_nested_file_of_the_user_is_named(place: str, home: Path) -> None:
    (home / "config" / place).mkdir(parents=True)
    (home / "config" / place / "mine.toml").write_text("a = " + "[" * 50_000)
    result = forked.run("models")
    assert result.returncode == 0
    assert "Traceback" not in result.stderr


def test_a_damaged_file_that_another_reader_has_just_renamed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[[[")

    def be_second(path: Path, target: Path) -> None:
        path.rename(target)  # by the other one
        os.rename(path, target)  # noqa: PTH104

    monkeypatch.setattr(kept_files, "replace_file", be_second)
    assert kept_files.set_aside(file, "The settings") == tmp_path / "settings.toml.bad"
