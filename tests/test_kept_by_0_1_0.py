"""Files that version 0.1.0 kept are read by this one, with all that is in them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.app import settings_file
from launcher.app.measuring.saved_tunes import load_tunes
from launcher.base.paths import HOME_VARIABLE
from launcher.engine.builds import installed
from launcher.engine.server import endpoint, last_start
from launcher.engine.settings import load_model_settings, save_model_settings
from launcher.fetch.queue import DownloadQueue
from launcher.models import library_index, load_history
from launcher.tuning import tuned_settings
from launcher.tuning.history import History

HOME = Path(__file__).parent / "data" / "kept-0.1.0"
MODEL = Path("/models/some.gguf")
READ: dict[str, tuple[Callable[[], object], object]] = {
    "app settings": (lambda: dict(settings_file.read_settings_file().values), {"window.theme": "dark"}),
    "server settings of models": (lambda: load_model_settings(MODEL), {"draft": 1}),
    "ports and keys": (
        lambda: [(each.port, each.api_key) for each in endpoint.saved_endpoints()],
        [(23_456, "an-example-of-a-key")],
    ),
    "last start": (lambda: last_start.load_last_start().log, MODEL),
    "last model": (last_start.load_last_model, "demo"),
    "last used": (lambda: sorted(last_start.load_last_uses()), [str(MODEL)]),
    "measured loads": (lambda: load_history.read_overhead_mib("gpu", "cuda"), 430),
    "tuned settings": (lambda: [each.model.name for each in tuned_settings.load_tuned_settings()], ["Qwen3.6-35B-A3B"]),
    "engines": (
        lambda: [each.name for each in installed.read_store().engines],
        ["b1-cpu", "mine"],
    ),
    "downloads": (lambda: [each.title for each in DownloadQueue({}).read_snapshot().jobs.jobs], ["some"]),
    "models": (lambda: [each.path for each in library_index.read_index()[0].records], [MODEL]),
    "a tune": (lambda: [each.record_id for each in load_tunes()], ["session"]),
}


@pytest.fixture
def kept_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the files of 0.1.0."""
    home = tmp_path / "home"
    shutil.copytree(HOME, home)
    for folder in home.rglob("*"):
        folder.chmod(0o700 if folder.is_dir() else 0o600)  # the modes with which the program makes them
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    return home


@pytest.mark.parametrize("name", READ)
def test_files_of_version_0_1_0_are_read(name: str, kept_home: Path, caplog: pytest.LogCaptureFixture) -> None:
    read, expected = READ[name]
    assert read() == expected
    assert not list(kept_home.rglob("*.bad*"))
    assert not caplog.records


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("state/settings.json", "state/model-settings.json"),
        ("state/loads.json", "state/measured-memory.json"),
        ("data/history/presets.json", "data/history/tuned-settings.json"),
    ],
)
def test_a_renamed_file_is_copied_and_stays_for_the_earlier_version(former: str, now: str, kept_home: Path) -> None:
    before = (kept_home / former).read_bytes()
    for read, expected in READ.values():
        assert read() == expected
    assert (kept_home / former).read_bytes() == (kept_home / now).read_bytes() == before
    save_model_settings(MODEL, {"draft": 3})
    (kept_home / former).unlink()
    assert load_model_settings(MODEL) == {"draft": 3}
    assert (kept_home / former).exists() is False


def test_the_history_of_version_0_1_0_is_read(kept_home: Path) -> None:
    assert (kept_home / "data" / "history" / "history.db").exists()
    with History() as history:
        assert [each.kind for each in history.find_sessions()] == ["tune"]
