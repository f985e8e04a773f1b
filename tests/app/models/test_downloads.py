"""Models and engines through the queue, from the fake servers."""

import asyncio
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.app import settings
from launcher.app.models.downloads import _report_pull, add_engine, add_pull, download_queue
from launcher.app.settings_declared import DOWNLOAD_LIMIT
from launcher.base.errors import BadOption, LauncherError, ModelUnknown
from launcher.base.paths import models_dir
from launcher.base.progress import Phase, Progress
from launcher.engine.builds.install import install_build
from launcher.engine.builds.installed import read_store
from launcher.engine.builds.releases import API_VARIABLE
from launcher.fetch.jobs import JobState, RequestedState
from launcher.fetch.queue_runner import JobProgressed, QueueEvent, QueueRunner
from launcher.fetch.transfer import TransferSettings
from launcher.models.catalogue_load import load_catalogue
from launcher.models.library import list_library
from tests.conftest import Hub, ReleaseServer
from tests.models.test_gguf_split import write_split
from tools.fault_matrix.server import FileServer, run_file_server

FILE = "demo-F16.gguf"
HALF = 4_000_000


@pytest.fixture
def repo(hub: Hub, demo_model: Path) -> Iterator[str]:
    """A repository of the fake hub with the demo model."""
    folder = hub.folder / "queued" / "Demo-GGUF"
    folder.mkdir(parents=True)
    shutil.copy(demo_model, folder / FILE)
    yield "queued/Demo-GGUF"
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[FileServer]:
    """The fake file server with the demo model."""
    with run_file_server(tmp_path_factory.mktemp("served")) as server:
        shutil.copy(demo_model, server.folder / "demo.gguf")
        yield server


async def run_queue(on_event: Callable[[QueueEvent], None] = lambda _event: None) -> None:
    async with asyncio.timeout(60):
        await QueueRunner(download_queue(), on_event, round_s=0.02).run(until_idle=True)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def test_a_model_is_pulled_into_the_library(repo: str, demo_model: Path) -> None:
    added = await add_pull(f"{repo}:{FILE}")
    assert added.is_new
    assert added.job.title == f"{repo}:{FILE}"
    assert not (await add_pull(f"{repo}:{FILE}")).is_new
    await run_queue()
    (job,) = download_queue().read_snapshot().jobs.jobs
    target = models_dir() / repo / FILE
    assert job.state is JobState.DONE
    assert job.result is not None
    assert (job.result["path"], job.result["sha256"]) == (str(target), sha256(demo_model))
    assert job.done_bytes == job.bytes == target.stat().st_size
    assert [local.path for local in list_library(load_catalogue()).models] == [target]


async def test_the_speed_limit_of_the_settings_applies(server: FileServer, demo_model: Path, tmp_path: Path) -> None:
    settings.change_setting(DOWNLOAD_LIMIT, 8)
    await add_pull(server.url("limited", "", "demo.gguf"), sha256=sha256(demo_model), to=tmp_path)
    began_s = time.monotonic()
    await run_queue()
    size = (tmp_path / "demo.gguf").stat().st_size
    # The limit lets a quarter of a second's bytes pass at once.
    assert time.monotonic() - began_s >= (size - 2 * 10**6) / (8 * 10**6)


async def test_a_missing_model_fails_and_the_next_one_is_downloaded(repo: str, hub: Hub) -> None:
    await add_pull(f"{repo}:missing.gguf")
    await add_pull(f"{repo}:{FILE}")
    await run_queue()
    missing, there = download_queue().read_snapshot().jobs.jobs
    assert (missing.state, there.state) == (JobState.FAILED, JobState.DONE)
    assert missing.failure is not None
    assert missing.failure.code == "model_missing"
    assert "missing.gguf" in missing.failure.title


async def test_an_invalid_target_is_not_added() -> None:
    with pytest.raises(ModelUnknown):
        await add_pull("no-such-model")
    with pytest.raises(BadOption):
        await add_pull("https://files.invalid/a.gguf")
    assert not download_queue().read_snapshot().jobs.jobs


async def test_the_quantisation_is_chosen_when_a_download_is_added() -> None:
    added = await add_pull("qwen3.6-35b-a3b-mtp:UD-Q3_K_XL")
    assert added.job.title == "qwen3.6-35b-a3b-mtp:UD-Q3_K_XL"
    assert added.job.bytes is not None
    assert added.job.bytes > 10e9


async def test_a_paused_download_resumes_and_a_discarded_one_leaves_no_file(
    server: FileServer, demo_model: Path, tmp_path: Path
) -> None:
    url = server.url("middle", f"stalls={HALF}*2", "demo.gguf")
    await add_pull(url, sha256=sha256(demo_model), to=tmp_path)

    def pause(event: QueueEvent) -> None:
        if isinstance(event, JobProgressed) and event.progress.done_bytes >= HALF:
            download_queue().request_state(RequestedState.PAUSE, 1)

    await run_queue(pause)
    paused = download_queue().read_snapshot().jobs.find_job(1)
    assert (paused.state, paused.done_bytes) == (JobState.PAUSED, HALF)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("demo")) == [
        "demo.gguf.part",
        "demo.gguf.part.journal",
    ]
    download_queue().request_state(RequestedState.DISCARD, 1)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("demo")]
    await add_pull(url, sha256=sha256(demo_model), to=tmp_path)
    await run_queue(pause)
    download_queue().request_state(RequestedState.RUN, 1)
    await run_queue()
    done = download_queue().read_snapshot().jobs.find_job(1)
    assert done.state is JobState.DONE
    assert done.result is not None
    assert done.result["resumed_bytes"] == HALF
    assert sha256(tmp_path / "demo.gguf") == sha256(demo_model)


async def test_discarding_a_split_model_deletes_its_finished_parts(hub: Hub, tmp_path: Path) -> None:
    folder, here = hub.folder / "queued" / "Split-GGUF", models_dir() / "queued" / "Split-GGUF"
    first = write_split(folder)
    whole = sorted(folder.iterdir())
    await add_pull(f"queued/Split-GGUF:{first.name}")
    here.mkdir(parents=True)
    for part in whole[:-1]:  # as if the program had ended before it could copy the last part
        shutil.copy(part, here)
    await add_pull(f"queued/Split-GGUF:{first.name}", to=tmp_path / "mine")
    shutil.copytree(here, tmp_path / "mine")
    download_queue().request_state(RequestedState.DISCARD, 1, 2)
    assert not list(here.glob("*.gguf"))
    # Files in a folder of the user's choice are not deleted.
    assert len(list((tmp_path / "mine").glob("*.gguf"))) == len(whole) - 1
    download_queue().request_state(RequestedState.RUN, 1)
    await run_queue()
    assert download_queue().read_snapshot().jobs.find_job(1).state is JobState.DONE
    download_queue().request_state(RequestedState.DISCARD, 1)  # discarding a finished job deletes no file
    assert len(list(here.glob("*.gguf"))) == len(whole)
    shutil.rmtree(folder)


async def test_a_model_without_the_head_that_its_name_promises_fails_and_is_kept(hub: Hub) -> None:
    folder = hub.folder / "queued" / "Headless-MTP-GGUF"
    first = write_split(folder, heads=0)
    await add_pull(f"queued/Headless-MTP-GGUF:{first.name}")
    await run_queue()
    (job,) = download_queue().read_snapshot().jobs.jobs
    assert job.state is JobState.FAILED
    assert job.failure is not None
    assert job.failure.code == "model_has_no_mtp_head"
    assert (models_dir() / "queued" / "Headless-MTP-GGUF" / first.name).is_file()
    shutil.rmtree(folder)


def test_verification_does_not_lower_the_progress() -> None:
    received: list[Progress] = []
    report = _report_pull(received.append)
    at = Progress(900, 1_000, 50.0, 2.0, item="a")
    report(at)
    report(replace(at, phase=Phase.VERIFYING, done_bytes=400))
    assert received == [at, Progress(900, 1_000, note="verifying 40 %")]


async def test_an_engine_is_installed(releases: ReleaseServer) -> None:
    releases.publish("b11434", "cpu")
    await add_engine("b11434", "cpu")
    await run_queue()
    (job,) = download_queue().read_snapshot().jobs.jobs
    assert job.failure is None
    assert job.state is JobState.DONE
    assert job.result is not None
    assert job.result["engine"] == read_store().current == "b11434-cpu-x64"
    assert Path(job.result["path"]).is_file()


async def test_discarding_one_engine_keeps_the_download_of_another(
    releases: ReleaseServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases.publish("b11400", "cpu")
    releases.publish("b11434", "cpu")
    monkeypatch.setenv(API_VARIABLE, releases.with_faults("breaks-off"))
    engine = install_build("b11434", "cpu", settings=TransferSettings(attempts=0, backoff_s=0.01))
    with pytest.raises(LauncherError):
        await engine
    monkeypatch.setenv(API_VARIABLE, releases.api)
    await add_engine("b11400", "cpu")
    await add_engine("b11401", "cpu")
    download_queue().request_state(RequestedState.DISCARD, 2)
    await run_queue()
    assert download_queue().read_snapshot().jobs.find_job(1).state is JobState.DONE
    (kept,) = (home / "cache" / "downloads" / "engines").rglob("*.part")
    await add_engine("b11434", "cpu")
    download_queue().request_state(RequestedState.DISCARD, 3)
    assert not kept.exists()


async def test_an_engine_that_is_not_published_fails(releases: ReleaseServer) -> None:
    await add_engine("b1")
    await run_queue()
    (job,) = download_queue().read_snapshot().jobs.jobs
    assert job.state is JobState.FAILED
    assert job.failure is not None
    assert "b1" in job.failure.title
    download_queue().request_state(RequestedState.DISCARD, 1)
    assert download_queue().read_snapshot().jobs.find_job(1).state is JobState.CANCELLED
