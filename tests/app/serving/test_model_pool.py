"""Several models at one address: by name, on demand, as many as fit, with the real engine and copies of the demo."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from launcher.app.planning import start_settings
from launcher.app.serving import model_pool, running_servers
from launcher.app.serving.model_names import ModelAlias, add_alias, keep_model
from launcher.app.serving.model_pool import ModelPool, PoolRules
from launcher.app.serving.session import ServerSession
from launcher.base.errors import Superseded
from launcher.base.paths import models_dir
from launcher.engine.diagnosis.log_reading import STARTED
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.endpoint import replace_keys
from launcher.engine.server.launch import Launch
from launcher.engine.server.load_times import expected_load_time
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import Notice, ServerEvent, ServerState
from launcher.engine.settings import save_model_settings
from launcher.gateway.forwarder import MODEL_HEADER
from launcher.gateway.request_log import RequestRecord

QUESTION = "Explain why a bicycle stays upright."
NAMES = ("second", "third")
ENDLESS = {"max_tokens": 100_000, "ignore_eos": True, "stream": True}


@pytest.fixture
def models(demo_model: Path, home: Path) -> dict[str, Path]:
    """Copies of the demo in the models folder, which start with few threads and little memory."""
    assert home.parent.exists()
    models_dir().mkdir(parents=True)
    paths = {name: models_dir() / f"{name}.gguf" for name in NAMES}
    for path in paths.values():
        shutil.copy(demo_model, path)
        save_model_settings(path, {"threads": 1, "ctx": 4_096})
    return paths


@dataclass
class Served:
    """A server with the demo that loads other models on demand, and a client of it."""

    session: ServerSession
    client: httpx.AsyncClient
    events: list[ServerEvent]
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def pool(self) -> ModelPool:
        assert self.session.pool is not None
        return self.session.pool

    @property
    def notices(self) -> list[str]:
        return [each.code for each in self.events if isinstance(each, Notice)]

    def records(self) -> list[RequestRecord]:
        return self.session.request_log.records

    async def ask(self, model: str | None, *, most: int = 4, **fields: object) -> httpx.Response:
        named = {} if model is None else {"model": model}
        body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": most, "temperature": 0}
        return await self.client.post("/v1/chat/completions", json={**body, **named, **fields})

    async def ask_well(self, model: str | None, **fields: object) -> dict[str, Any]:
        reply = await self.ask(model, **fields)
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer

    @asynccontextmanager
    async def streaming(self, model: str) -> AsyncIterator[None]:
        """Keep a model busy within the block."""
        body = {"messages": [{"role": "user", "content": QUESTION}], "model": model, **ENDLESS}
        async with self.client.stream("POST", "/v1/chat/completions", json=body) as reply:
            assert reply.status_code == 200
            lines = reply.aiter_lines()
            while '"reasoning_content":"' not in await anext(lines):
                pass
            reading = asyncio.create_task(drain_stream(lines))
            yield
            reading.cancel()
            await asyncio.wait([reading])

    async def list_states(self) -> dict[str, str]:
        listed = (await self.client.get("/v1/models")).json()["data"]
        return {each["id"]: each["status"]["value"] for each in listed}

    async def wait_for(self, model: str, state: str) -> None:
        async with asyncio.timeout(60):
            while (await self.list_states())[model] != state:
                await asyncio.sleep(0.05)


async def drain_stream(lines: AsyncIterator[str]) -> None:
    async for _ in lines:
        pass


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> list[PoolRules]:
    """The rules of the pool from the settings; a test may replace them."""
    held = [PoolRules()]
    monkeypatch.setattr("launcher.app.serving.session.read_pool_rules", lambda _: held[0])
    return held


@pytest.fixture
async def demo_server(demo_model: Path, models: dict[str, Path], rules: list[PoolRules]) -> AsyncIterator[Served]:
    assert len(models) == 2
    assert rules
    events: list[ServerEvent] = []
    options = ServeOptions(model=demo_model, built_in=True, threads=1, context=4_096, alias="demo")
    session = ServerSession(takes_models=True, on_event=events.append)
    try:
        await session.start(StartRequest(options))
        endpoint = session.supervisor.endpoint
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        async with httpx.AsyncClient(base_url=endpoint.url, headers=headers, timeout=60, trust_env=False) as client:
            yield Served(session, client, events)
    finally:
        await session.stop()


def estimate_mib(served: Served) -> int:
    return model_pool._estimate_mib(served.session.supervisor.options)


async def test_models_are_loaded_by_name_and_unloaded_to_make_room(demo_server: Served, rules: list[PoolRules]) -> None:
    assert await demo_server.list_states() == {"demo": "loaded", "second": "unloaded", "third": "unloaded"}
    rules[0] = PoolRules(memory_limit_mib=int(2.5 * estimate_mib(demo_server)))
    assert (await demo_server.ask_well("second"))["model"] == "second"
    assert await demo_server.list_states() == {"demo": "loaded", "second": "loaded", "third": "unloaded"}
    await demo_server.ask_well("demo")
    assert (await demo_server.ask_well("third"))["model"] == "third"
    # `second` was used longest ago.
    assert await demo_server.list_states() == {"demo": "loaded", "second": "unloaded", "third": "loaded"}
    (server,) = await running_servers.read_running_servers()
    assert [(each.model, each.state, each.by_request) for each in server.entry.models[1:]] == [("third", "ready", True)]
    assert [each.model for each in demo_server.records()] == ["second", "demo", "third"]


@pytest.mark.thorough
async def test_a_kept_model_stays_loaded_and_the_started_one_is_unloaded_and_reloaded(
    demo_server: Served, rules: list[PoolRules]
) -> None:
    rules[0] = PoolRules(memory_limit_mib=int(2.5 * estimate_mib(demo_server)))
    keep_model("second")
    await demo_server.ask_well("second")
    await demo_server.ask_well("demo")
    await demo_server.ask_well("third")
    assert await demo_server.list_states() == {"demo": "unloaded", "second": "loaded", "third": "loaded"}
    assert (await demo_server.client.get("/health")).status_code == 200
    # A request without a model goes to the model that was used last.
    assert (await demo_server.ask_well(None))["model"] == "third"
    await demo_server.ask_well("demo")
    assert await demo_server.list_states() == {"demo": "loaded", "second": "loaded", "third": "unloaded"}
    assert not demo_server.session.is_idle
    keep_model("demo")
    refused = await demo_server.ask("third")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    assert "not enough memory for third" in refused.json()["error"]["message"]


@pytest.mark.thorough
async def test_models_loaded_by_requests_are_unloaded_when_idle_and_started_ones_are_not(
    demo_server: Served, rules: list[PoolRules]
) -> None:
    rules[0] = PoolRules(idle_s=1.0)
    await demo_server.ask_well("second")
    async with demo_server.streaming("third"):
        await demo_server.wait_for("second", "unloaded")
        assert (await demo_server.list_states())["third"] == "loaded"
    await demo_server.wait_for("third", "unloaded")
    assert (await demo_server.list_states())["demo"] == "loaded"
    assert demo_server.notices.count("model_unloaded") == 2
    assert (await demo_server.ask_well("second"))["model"] == "second"


async def test_a_plan_counts_the_memory_of_the_engines_that_go_for_it(
    demo_server: Served, rules: list[PoolRules], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[list[int]] = []
    resolve_start = start_settings.resolve_start

    async def resolve_start_observed(*arguments: Any, ending: Collection[int] = (), **options: Any) -> Any:  # noqa: ANN401 -- as resolve_start
        counted.append([*ending])
        return await resolve_start(*arguments, ending=ending, **options)

    monkeypatch.setattr(start_settings, "resolve_start", resolve_start_observed)
    rules[0] = PoolRules(memory_limit_mib=int(1.5 * estimate_mib(demo_server)))
    engine_pid = demo_server.session.supervisor.engine_pid
    await demo_server.ask_well("second")
    assert [engine_pid] in counted


async def test_requests_for_an_absent_model_share_one_load(demo_server: Served) -> None:
    replies = await asyncio.gather(*(demo_server.ask_well("second") for _ in range(4)), demo_server.ask_well("demo"))
    assert [each["model"] for each in replies] == [*["second"] * 4, "demo"]
    (second,) = (each for each in demo_server.pool._models if each.name == "second")
    assert sum(STARTED in line for line in second.supervisor.log.last_lines()) == 1


async def test_loads_by_requests_are_recorded_like_that_of_the_first_model(
    demo_server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings: list[tuple[int, bool, bool]] = []

    def record(_: Launch, pid: int, __: list[str], *, has_read_prompt: bool, replaces_last: bool) -> bool:
        readings.append((pid, has_read_prompt, replaces_last))
        return True

    monkeypatch.setattr("launcher.app.planning.load_memory.record_load_memory", record)
    monkeypatch.setattr("launcher.app.serving.load_recording.BUILT_IN", "another")  # the built-in engine uses no GPU
    await demo_server.ask_well("second")
    await asyncio.gather(*demo_server.pool._tasks)
    second = demo_server.pool.supervisors_beside["second"]
    assert second.launch is not None
    assert readings == [(second.engine_pid, False, False)]
    known = expected_load_time(second.launch)
    assert known is not None
    assert known.loads == 1
    long = "What is a draft? " * 200
    for model in ("demo", "second"):  # only the newest load is read again
        await demo_server.ask_well(model, messages=[{"role": "user", "content": long}])
        await asyncio.gather(*demo_server.pool._tasks)
    assert readings[1:] == [(second.engine_pid, True, True)]


async def test_new_keys_are_those_of_all_models(demo_server: Served) -> None:
    await demo_server.ask_well("second")
    before = demo_server.session.supervisor.endpoint
    replace_keys(before.port)
    assert await demo_server.session.reload_keys()
    assert demo_server.session.supervisor.endpoint.api_key != before.api_key
    second = demo_server.pool.supervisors_beside["second"]
    assert second.endpoint == demo_server.session.supervisor.endpoint


async def test_a_busy_model_is_not_unloaded_and_others_wait_for_its_memory(
    demo_server: Served, rules: list[PoolRules]
) -> None:
    rules[0] = PoolRules(memory_limit_mib=int(2.5 * estimate_mib(demo_server)))
    keep_model("demo")
    async with demo_server.streaming("second"):
        waiting = asyncio.create_task(demo_server.ask("third", stream=True))
        done, _ = await asyncio.wait([waiting], timeout=1.5)
        assert not done
        assert (await demo_server.list_states())["second"] == "loaded"
    reply = await waiting
    assert reply.status_code == 200
    assert reply.text.startswith(": waiting")
    assert "data: [DONE]" in reply.text
    assert await demo_server.list_states() == {"demo": "loaded", "second": "unloaded", "third": "loaded"}


async def test_a_model_that_is_always_in_use_makes_room_for_one_that_has_waited(
    demo_server: Served, rules: list[PoolRules], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_pool, "_FAIR_WAIT_S", 0.3)
    rules[0] = PoolRules(memory_limit_mib=int(2.5 * estimate_mib(demo_server)))
    keep_model("demo")
    answered: list[str] = []
    stopping = asyncio.Event()

    async def ask_again_and_again(model: str) -> None:
        while not stopping.is_set():
            answered.append((await demo_server.ask_well(model, most=12, ignore_eos=True))["model"])

    busy = [asyncio.create_task(ask_again_and_again("second")) for _ in range(4)]  # one slot: three always wait
    async with asyncio.timeout(60):
        while len(answered) < 5:
            await asyncio.sleep(0.01)
        assert (await demo_server.ask_well("third"))["model"] == "third"
        before = len(answered)
        assert (await demo_server.ask_well("third"))["model"] == "third", "and again beside the others"
        while len(answered) < before + 5:  # those that were made to wait got their model back
            await asyncio.sleep(0.01)
        stopping.set()
        await asyncio.gather(*busy)
    assert set(answered) == {"second"}


async def test_a_model_that_fits_is_loaded_while_another_waits_for_room(
    demo_server: Served, models: dict[str, Path], rules: list[PoolRules]
) -> None:
    large = models["third"]
    save_model_settings(large, {"threads": 1, "ctx": 65_536})
    fourth = large.with_name("fourth.gguf")
    shutil.copy(large, fourth)
    save_model_settings(fourth, {"threads": 1, "ctx": 4_096})
    options, unit_mib = demo_server.session.supervisor.options, estimate_mib(demo_server)
    assert options is not None
    large_mib = model_pool._estimate_mib(replace(options, context=65_536))
    rules[0] = PoolRules(memory_limit_mib=max(large_mib + unit_mib, 3 * unit_mib) + unit_mib // 2)
    assert large_mib > 1.5 * unit_mib, "else all of them would fit"
    keep_model("demo")
    async with demo_server.streaming("second"):
        waiting = asyncio.create_task(demo_server.ask("third", stream=True))
        await demo_server.wait_for("third", "loading")
        assert (await demo_server.ask_well("fourth"))["model"] == "fourth"
        assert not waiting.done()
    assert (await waiting).status_code == 200


@pytest.mark.thorough
async def test_a_start_that_replaces_a_stop_accepts_requests_for_all_models_again(demo_server: Served) -> None:
    await demo_server.ask_well("second")
    options = demo_server.session.supervisor.options
    assert options is not None
    async with demo_server.streaming("demo"):
        stopping = asyncio.create_task(demo_server.session.stop(drain_s=60))
        await demo_server.session.supervisor.wait_for_state(ServerState.DRAINING)
        await demo_server.session.start(StartRequest(options, again=True))
    assert isinstance((await asyncio.gather(stopping, return_exceptions=True))[0], Superseded)
    assert await demo_server.list_states() == {"demo": "loaded", "second": "unloaded", "third": "unloaded"}
    for model in ("demo", "second"):
        assert (await demo_server.ask_well(model))["model"] == model


async def test_an_unknown_name_is_answered_by_the_only_model_that_was_started(
    demo_server: Served, rules: list[PoolRules]
) -> None:
    reply = await demo_server.ask("gpt-4")
    assert (reply.status_code, reply.headers[MODEL_HEADER]) == (200, "demo")
    assert demo_server.records()[-1].model == "demo"
    assert MODEL_HEADER not in (await demo_server.ask("demo")).headers
    for name in ("/etc/passwd", "../second.gguf", "second.gguf"):
        assert (await demo_server.ask(name)).headers[MODEL_HEADER] == "demo"
    absent = await demo_server.ask("qwen3.6-35b-a3b")
    assert (absent.status_code, "mtp-launcher pull" in absent.text) == (404, True)
    rules[0] = replace(rules[0], refuses_unknown=True)
    refused = await demo_server.ask("gpt-4")
    assert refused.status_code == 404
    assert refused.json()["error"]["message"] == "There is no model 'gpt-4' here. Models: demo, second, third"


async def test_a_failed_load_has_its_own_status_and_other_models_go_on(
    demo_server: Served, models: dict[str, Path]
) -> None:
    assert (await demo_server.list_states())["second"] == "unloaded"
    models["second"].unlink()
    for stream in (False, True):
        gone = await demo_server.ask("second", stream=stream)
        assert (gone.status_code, gone.json()["error"]["type"]) == (404, "not_found_error")
        assert "second.gguf" in gone.json()["error"]["message"]
    models["third"].write_bytes(models["third"].read_bytes()[:1_000_000])
    broken = await demo_server.ask("third")
    assert (broken.status_code, broken.json()["error"]["type"]) == (500, "server_error")
    assert (await demo_server.ask_well("demo"))["model"] == "demo"


@pytest.mark.thorough
async def test_an_alias_has_a_system_text_and_settings(demo_server: Served) -> None:
    add_alias(ModelAlias(name="code", model="second", settings={"draft": "4"}, system="Answer in one word. " * 20))
    add_alias(ModelAlias(name="prose", model="second", settings={"draft": "1"}))
    bare = await demo_server.ask_well("second", most=200)
    (second,) = (each for each in demo_server.pool._models if each.name == "second")
    second.load_s = 0.01
    coded = await demo_server.ask("code", most=200)
    assert (coded.status_code, coded.headers[MODEL_HEADER]) == (200, "second")
    assert coded.json()["usage"]["prompt_tokens"] > bare["usage"]["prompt_tokens"] + 50
    own = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]}
    assert (await demo_server.ask_well("code", **own))["usage"]["prompt_tokens"] < coded.json()["usage"][
        "prompt_tokens"
    ]

    def draft() -> int | None:
        options = second.supervisor.options
        return options.draft if options else None

    assert draft() == 4
    await demo_server.ask_well("prose", most=1)  # a load would take longer than this reply
    assert draft() == 4
    async with demo_server.streaming("code"):
        reply_task = asyncio.create_task(demo_server.ask_well("prose", most=200))
        await asyncio.sleep(0.5)
        assert draft() == 4
    await reply_task
    await demo_server.ask_well("prose", most=200)
    assert draft() == 1
    listed = {each["id"]: each for each in (await demo_server.client.get("/v1/models")).json()["data"]}
    assert (listed["code"]["root"], listed["code"]["status"]["value"]) == ("second", "loaded")
    assert listed["second"]["context_length"] == 4_096
    assert listed["second"]["capabilities"] == ["completion"]


async def test_the_list_of_models_has_what_the_engine_knows_of_a_loaded_one(demo_server: Served) -> None:
    listed = {each["id"]: each for each in (await demo_server.client.get("/v1/models")).json()["data"]}
    endpoint = demo_server.session.supervisor.engine_endpoint
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    async with httpx.AsyncClient(base_url=endpoint.url, headers=headers, trust_env=False) as engine:
        (known,) = (await engine.get("/v1/models")).json()["data"]
    assert listed["demo"]["architecture"] == known["architecture"]
    assert known["meta"].items() <= listed["demo"]["meta"].items()
    assert "architecture" not in listed["second"], "it is not loaded, so its modalities are unknown"


async def test_the_server_ends_when_its_last_model_is_stopped(demo_server: Served) -> None:
    await demo_server.ask_well("second")
    assert (await running_servers.stop_model("demo", None))[1] == "demo"
    assert await demo_server.list_states() == {"demo": "unloaded", "second": "loaded", "third": "unloaded"}
    ended = asyncio.create_task(demo_server.session.wait_until_ended())
    done, _ = await asyncio.wait([ended], timeout=0.3)
    assert not done
    assert (await running_servers.stop_model("second", None))[1] == "second"
    async with asyncio.timeout(60):
        assert await ended is None
    assert await running_servers.read_running_servers() == ()


async def test_metrics_and_state_of_each_model_can_be_read(demo_server: Served) -> None:
    await demo_server.ask_well("second", most=16)
    await demo_server.ask_well("demo")
    counts = {name: await read_counts(demo_server, name) for name in ("demo", "second", "third")}
    assert counts["second"]['mtp_launcher_reply_tokens_total{model="second",key="default"}'] == 16
    assert counts["demo"]["llamacpp:tokens_predicted_total"] < counts["second"]["llamacpp:tokens_predicted_total"]
    assert "llamacpp:tokens_predicted_total" not in counts["third"]
    assert (await demo_server.list_states())["third"] == "unloaded"
    props = (await demo_server.client.get("/props", params={"model": "second"})).json()
    assert props["default_generation_settings"]["n_ctx"] == 4_096


async def read_counts(served: Served, model: str) -> Mapping[str, float]:
    text = (await served.client.get("/metrics", params={"model": model})).text
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


async def test_a_stream_that_waits_for_its_model_gets_comments_and_a_late_failure_as_an_event(
    demo_server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()
    resolve_start = start_settings.resolve_start

    async def resolve_start_slowly(model: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 -- as resolve_start
        start = await resolve_start(model, *arguments, **options)
        begun.set()
        await asyncio.sleep(1.5)
        return replace(start, options=replace(start.options, extra=("--no-such-flag",)))

    monkeypatch.setattr(start_settings, "resolve_start", resolve_start_slowly)
    reply_task = asyncio.create_task(demo_server.ask("second", stream=True))
    await begun.wait()
    reply = await reply_task
    assert reply.status_code == 200
    frames = [each for each in reply.text.split("\n\n") if each]
    assert frames[0] == ": waiting"
    error = json.loads(frames[-1].removeprefix("data: "))["error"]
    assert (error["code"], error["type"]) == (500, "server_error")
