"""From a plan to the first token, over real sockets and with real engines: the hub and GitHub are small programs."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.app.first import first_checks
from launcher.app.first.first_checks import (
    FirstStartRequest,
    check_other_servers,
    make_first_start_request,
    survey_start,
)
from launcher.app.first.first_start import initial_steps, make_server_starter, perform_first_start
from launcher.app.first.first_steps import Step, StepDetail, StepProgress, StepStage
from launcher.app.models.downloads import add_pull, download_queue
from launcher.app.serving.session import ServerSession
from launcher.base.errors import DiskFull, DraftsInert, LauncherError, ModelHasNoHead, NothingFits, Refused, Unreachable
from launcher.base.identity import ProcessId
from launcher.base.paths import models_dir
from launcher.engine.builds.installed import read_store
from launcher.engine.server import registry
from launcher.engine.server.client import Timings
from launcher.engine.server.start_request import StartRequest
from launcher.engine.settings import load_model_settings, save_model_settings
from launcher.fetch.jobs import RequestedState
from launcher.fetch.queue_runner import QueueRunner
from launcher.machine.disks import Disk
from launcher.models.catalogue_load import load_catalogue
from launcher.models.plan import PlanCriteria as PlanWish
from launcher.models.plan import make_plans
from launcher.models.server_settings import Value
from launcher.models.situation import ServerShare, Situation, describe_machine
from launcher.monitor.meter import Acceptance
from launcher.monitor.reply import Reply
from tests.conftest import Hub, ReleaseServer
from tests.engine.test_install import CUDA, WITH_GPU
from tests.models.pulling import DEMO as DEMO_ENTRY
from tests.models.pulling import FILE

REPO = "first/Demo-GGUF"


class StepRecorder:
    """Records the progress of a first start. A test can wait until a step has reached a stage."""

    def __init__(self) -> None:
        self.all: list[StepProgress] = []
        self.reached: dict[tuple[Step, StepStage], asyncio.Event] = {}

    def __call__(self, progress: StepProgress) -> None:
        self.all.append(progress)
        self.at(progress.step, progress.stage).set()

    def at(self, step: Step, stage: StepStage) -> asyncio.Event:
        return self.reached.setdefault((step, stage), asyncio.Event())

    def last(self, step: Step) -> StepProgress:
        return [each for each in self.all if each.step is step][-1]

    def began(self) -> list[Step]:
        """The steps in the order in which they were first reported."""
        return list(dict.fromkeys(each.step for each in self.all if each.stage is StepStage.RUNNING))


@pytest.fixture
def recorder() -> StepRecorder:
    return StepRecorder()


@pytest.fixture
async def session() -> AsyncIterator[ServerSession]:
    session = ServerSession()
    yield session
    await session.stop()


@pytest.fixture
def repository(hub: Hub, demo_model: Path) -> Iterator[Path]:
    """A repository with the demo model."""
    folder = hub.folder / REPO
    folder.mkdir(parents=True)
    shutil.copy(demo_model, folder / FILE)
    yield folder
    shutil.rmtree(folder)


def add_to_catalogue(home: Path, repo: str = REPO) -> None:
    """Add a model "mine" to the user's own catalogue: the demo under another name, in a repository of the hub."""
    folder = home / "config" / "models"
    folder.mkdir(parents=True, exist_ok=True)
    assert DEMO_ENTRY.geometry
    shape = "\n".join(f"{name} = {json.dumps(value)}" for name, value in asdict(DEMO_ENTRY.geometry).items() if value)
    file = f"{{ quant = 'F16', file = '{FILE}', size_bytes = {DEMO_ENTRY.files[0].size_bytes} }}"
    about = f"id = 'mine'\nname = 'Mine'\nrepo = '{repo}'\nspeculation = 'mtp'\nfiles = [{file}]"
    preset = "[[models.presets]]\nquant = 'F16'\nctx = 4096\nkv = 'f16'\ndraft = 2"
    (folder / "mine.toml").write_text(f"[[models]]\n{about}\n[models.geometry]\n{shape}\nffn = 0\n{preset}\n")


def make_request(*, gpu: bool = False) -> FirstStartRequest:
    """Return a request to start the model "mine" by its first plan for a described computer."""
    situation = describe_machine(24.0, host_gib=32.0, backend=None if gpu else "cpu")
    return make_first_start_request(make_plans(load_catalogue(), situation, PlanWish(model="mine"))[0])


@pytest.fixture
def own_request(home: Path, repository: Path) -> FirstStartRequest:
    add_to_catalogue(home)
    return make_request()


async def start(request: FirstStartRequest, session: ServerSession, recorder: StepRecorder) -> Reply:
    return await perform_first_start(request, make_server_starter(session), recorder)


async def test_the_demo_needs_no_download(session: ServerSession, recorder: StepRecorder) -> None:
    reply = await start(FirstStartRequest("demo"), session, recorder)
    assert reply.text
    assert reply.acceptance.accepted > 0
    assert recorder.began() == [Step.LOAD, Step.WARM_UP, Step.SELF_TEST]
    assert {step: recorder.last(step).stage for step in Step} == dict.fromkeys(Step, StepStage.DONE)
    assert recorder.last(Step.ENGINE).detail is StepDetail.BUILT_IN
    tested = recorder.last(Step.SELF_TEST)
    assert (tested.accepted, tested.drafted) == (reply.acceptance.accepted, reply.acceptance.drafted)
    assert tested.tokens_per_second
    percents = [each.percent for each in recorder.all if each.step is Step.SELF_TEST and each.percent is not None]
    assert percents == sorted(percents)
    assert len(set(percents)) > 5, "a slow model shows that it goes on"
    assert percents[-1] <= 100
    assert max(each.percent for each in recorder.all if each.step is Step.LOAD and each.percent is not None) == 100


@pytest.mark.thorough
async def test_the_demo_is_served_with_the_settings_of_the_last_time(
    session: ServerSession, recorder: StepRecorder
) -> None:
    await start(FirstStartRequest("demo"), session, recorder)
    first = session.supervisor.launch
    assert first is not None
    kept: dict[str, Value] = {"ctx": 2_048, "draft": 1, "kv": "q8_0"}
    save_model_settings(first.options.model, kept)
    await session.stop()
    await start(FirstStartRequest("demo"), session, recorder)
    launch = session.supervisor.launch
    assert launch is not None
    assert (launch.context, launch.options.draft, launch.options.kv) == (2_048, 1, "q8_0")
    await session.start(StartRequest(replace(launch.options, draft=2), again=True, chosen={"draft": 2}))
    assert load_model_settings(first.options.model) == kept | {"draft": 2}


async def test_a_model_is_downloaded_verified_and_served_as_planned(
    own_request: FirstStartRequest, session: ServerSession, recorder: StepRecorder, demo_model: Path
) -> None:
    await start(own_request, session, recorder)
    assert recorder.began() == [Step.MODEL, Step.VERIFY, Step.LOAD, Step.WARM_UP, Step.SELF_TEST]
    assert recorder.last(Step.MODEL).detail is StepDetail.RECEIVED
    assert recorder.last(Step.MODEL).progress.bytes == demo_model.stat().st_size
    assert recorder.last(Step.VERIFY).detail is StepDetail.VERIFIED
    launch = session.supervisor.launch
    assert launch is not None
    assert (launch.context, launch.options.kv, launch.options.draft) == (4096, "f16", 2)
    assert load_model_settings(launch.options.model) == {}  # the settings of a plan are not stored as the user's choice


async def test_a_file_without_a_published_checksum_is_not_reported_as_verified(
    own_request: FirstStartRequest,
    session: ServerSession,
    recorder: StepRecorder,
    hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.with_faults("no-hash"))
    await start(own_request, session, recorder)
    assert recorder.last(Step.VERIFY).detail is StepDetail.NO_CHECKSUM


async def test_finished_steps_are_reported_as_done_and_not_repeated(
    own_request: FirstStartRequest, session: ServerSession, recorder: StepRecorder, hub: Hub
) -> None:
    await start(own_request, session, recorder)
    hub.requests()
    again = StepRecorder()
    await start(own_request, session, again)
    assert hub.requests() == []
    assert again.began() == [Step.LOAD, Step.SELF_TEST]
    assert again.last(Step.MODEL).detail is StepDetail.ALREADY_DOWNLOADED
    assert again.last(Step.LOAD).detail is StepDetail.SERVED
    assert [each.stage for each in initial_steps(await survey_start(own_request))][:3] == [StepStage.DONE] * 3


async def test_an_engine_for_the_gpu_is_installed_first(
    own_request: FirstStartRequest,
    session: ServerSession,
    recorder: StepRecorder,
    releases: ReleaseServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_checks, "describe_computer", lambda _machine: WITH_GPU)
    releases.publish("b11400", "cpu", "vulkan", "cuda-13.4", devices={"cuda-13.4": [CUDA]})
    releases.publish("v0.7.0", points_at="b11400")
    wanted = make_request(gpu=True)
    await start(wanted, session, recorder)
    assert recorder.began()[0] is not Step.LOAD
    assert recorder.all.index(recorder.last(Step.ENGINE)) < [each.step for each in recorder.all].index(Step.LOAD, 7)
    engine = recorder.last(Step.ENGINE)
    assert (engine.stage, engine.subject, engine.detail) == (
        StepStage.DONE,
        "b11400-cuda-13.4-x64",
        StepDetail.INSTALLED_AND_TESTED,
    )
    assert any(item.subject == "llama.cpp b11400, cuda-13.4" and item.progress.bytes for item in recorder.all)
    assert session.supervisor.launch is not None
    assert session.supervisor.launch.build.name == "b11400-cuda-13.4-x64"
    releases.requests()
    again = StepRecorder()
    await start(wanted, session, again)
    assert releases.requests() == []
    assert Step.ENGINE not in again.began()


async def test_a_server_of_another_process_must_be_stopped_first(
    own_request: FirstStartRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan counts the memory of our servers as free, although a start does not replace another process's server."""
    del own_request
    wanted = replace(make_request(gpu=True), needed_mib=20_000)
    other = ServerShare(7, "Other", (9_000,), 0, measured=True)
    here = replace(describe_machine(24.0), described=False, own=(other,), by_device_now_mib=(14_000,))

    async def read(_wish: object, **_kwargs: object) -> Situation:
        return here

    monkeypatch.setattr(first_checks, "read_situation", read)
    launcher = ProcessId(1, 0.0)
    running = [SimpleNamespace(first=SimpleNamespace(engine_pid=7), launcher=launcher)]
    monkeypatch.setattr(registry, "list_entries", lambda: running)
    with pytest.raises(
        NothingFits, match=r"^Other is still running and uses [\d,]+ MiB of the memory that mine:F16 needs\."
    ):
        await check_other_servers(wanted)
    await check_other_servers(replace(wanted, needed_mib=12_000))  # 12,000 MiB fit beside the running server
    running[0].launcher = ProcessId(os.getpid(), 0.0)
    await check_other_servers(wanted)  # a process may replace its own server


class TestBeforeAnythingLarge:
    @pytest.mark.usefixtures("hub")
    async def test_a_gated_model_is_reported(
        self, home: Path, releases: ReleaseServer, session: ServerSession, recorder: StepRecorder
    ) -> None:
        releases.publish("b11400", "cpu")
        releases.publish("v0.7.0", points_at="b11400")
        add_to_catalogue(home, "gated/model")
        with pytest.raises(Refused, match="is gated") as refused:
            await start(make_request(gpu=True), session, recorder)
        assert "accept the terms" in refused.value.hint
        assert recorder.last(Step.MODEL).error is refused.value
        assert not [request for request in releases.requests() if "/download/" in request["target"]]

    async def test_a_full_disk_is_reported(
        self,
        own_request: FirstStartRequest,
        session: ServerSession,
        recorder: StepRecorder,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def read_full_disks(folders: list[Path]) -> tuple[Disk, ...]:
            return tuple(Disk(folder, 10**12, 2**28, "ext4") for folder in folders)

        monkeypatch.setattr(first_checks, "read_disks", read_full_disks)
        with pytest.raises(DiskFull, match="The download needs"):
            await start(own_request, session, recorder)
        assert recorder.last(Step.MODEL).stage is StepStage.FAILED
        assert not models_dir().exists()

    @pytest.mark.usefixtures("own_request")
    async def test_an_unavailable_engine_is_reported_before_the_model_is_downloaded(
        self, session: ServerSession, recorder: StepRecorder, releases: ReleaseServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MTP_LAUNCHER_GITHUB_API", releases.with_faults("limited"))
        with pytest.raises(LauncherError):
            await start(make_request(gpu=True), session, recorder)
        assert recorder.last(Step.ENGINE).stage is StepStage.FAILED
        assert not models_dir().exists()

    async def test_local_files_are_served_without_a_network(
        self,
        own_request: FirstStartRequest,
        session: ServerSession,
        recorder: StepRecorder,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        await start(own_request, session, recorder)
        await session.stop()
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        assert (await start(own_request, session, StepRecorder())).text
        shutil.rmtree(models_dir())
        with pytest.raises(Unreachable):
            await start(own_request, session, recorder)
        assert recorder.last(Step.MODEL).stage is StepStage.FAILED


class TestPausing:
    async def test_an_interrupted_download_is_resumed(
        self,
        own_request: FirstStartRequest,
        session: ServerSession,
        recorder: StepRecorder,
        hub: Hub,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("HF_ENDPOINT", hub.with_faults("stalls"))
        starting = asyncio.ensure_future(start(own_request, session, recorder))
        while not (recorder.all and recorder.last(Step.MODEL).progress.done_bytes > 0):
            await asyncio.sleep(0.01)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert recorder.last(Step.MODEL).stage is StepStage.PAUSED
        waiting = {each.step: each for each in initial_steps(await survey_start(own_request))}[Step.MODEL]
        assert waiting.stage is StepStage.PAUSED
        assert 0 < waiting.progress.done_bytes < (waiting.progress.bytes or 0)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.requests()
        await start(own_request, session, recorder)
        (request,) = [each for each in hub.requests() if each["server"] == "store"]
        assert int(request["Range"].removeprefix("bytes=").split("-")[0]) > 0

    @pytest.mark.cases(1)
    @pytest.mark.parametrize("step", [Step.LOAD, Step.WARM_UP, Step.SELF_TEST])
    async def test_an_interrupted_later_step_is_resumed(
        self, step: Step, own_request: FirstStartRequest, session: ServerSession, recorder: StepRecorder
    ) -> None:
        starting = asyncio.ensure_future(start(own_request, session, recorder))
        await recorder.at(step, StepStage.RUNNING).wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert recorder.all[-1].step is step
        assert recorder.all[-1].stage is StepStage.PAUSED
        assert (await start(own_request, session, recorder)).text


async def test_a_model_without_its_mtp_head_fails_verification(
    home: Path, repository: Path, headless_model: Path, session: ServerSession, recorder: StepRecorder
) -> None:
    shutil.copy(headless_model, repository / FILE)
    add_to_catalogue(home)
    toml = home / "config" / "models" / "mine.toml"
    size = str(DEMO_ENTRY.files[0].size_bytes)
    toml.write_text(toml.read_text().replace(size, str(headless_model.stat().st_size)))
    with pytest.raises(ModelHasNoHead):
        await start(make_request(), session, recorder)
    assert recorder.last(Step.VERIFY).stage is StepStage.FAILED
    assert recorder.last(Step.MODEL).stage is StepStage.DONE


async def test_a_download_of_the_queue_is_awaited_and_then_used(
    own_request: FirstStartRequest,
    session: ServerSession,
    recorder: StepRecorder,
    hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.with_faults("stalls"))
    added = await add_pull(own_request.model)
    queue = download_queue()
    working = asyncio.create_task(QueueRunner(queue, lambda _: None, round_s=0.02).run())
    while not list(models_dir().rglob("*.part")):
        await asyncio.sleep(0.01)
    starting = asyncio.ensure_future(start(own_request, session, recorder))
    while not any(each.detail is StepDetail.DOWNLOADED_ELSEWHERE for each in recorder.all):
        await asyncio.sleep(0.01)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    queue.request_state(RequestedState.PAUSE, added.job.id)
    assert (await starting).text
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working


async def test_drafts_that_are_never_accepted_are_an_error(recorder: StepRecorder) -> None:
    timings = Timings(1, 0, 1.0, 48, 100.0, 480.0, 90, 0)
    inert = Reply("one two", "", timings, Acceptance(90, 0, (45, 45), (0, 0)), 0.1, "length")

    async def ask(_request: object, _on_delta: object) -> Reply:
        return inert

    async def serve(_options: object, _hear: object) -> object:
        return ask

    with pytest.raises(DraftsInert, match="none of its 90 drafted tokens"):
        await perform_first_start(FirstStartRequest("demo"), serve, recorder)  # type: ignore[arg-type]
    assert recorder.last(Step.SELF_TEST).stage is StepStage.FAILED


async def test_an_engine_added_by_the_user_is_used(
    home: Path, real_engine: Path, own_request: FirstStartRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from launcher.engine.builds import installed

    assert (await survey_start(make_request(gpu=True))).engine is None
    engine = installed.add_engine(real_engine, "my-own")
    installed.use_engine(engine.name)
    found = (await survey_start(make_request(gpu=True))).engine
    assert found is not None
    assert found.name == "my-own"
    assert not found.tested
    assert read_store().current == "my-own"
