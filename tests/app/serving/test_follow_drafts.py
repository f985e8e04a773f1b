"""Drafts that follow the traffic: the real engine changes them between its clients' requests, and changes back."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from launcher.app import settings
from launcher.app.planning.start_settings import make_unresolved_options
from launcher.app.serving import use_counting
from launcher.app.serving.session import ServerSession
from launcher.app.serving.use_counting import DRAFTS_CHANGED, UseCounting
from launcher.app.settings_declared import ADVICE, VALUE_AUTO, VALUE_OFF, VALUE_SUGGEST
from launcher.base.action import Action, ActionKind
from launcher.base.errors import ModelMissing, Superseded
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import Notice
from launcher.engine.settings import load_model_settings
from launcher.monitor.health_event import FindingCode
from launcher.monitor.monitor import MonitorPeriods
from launcher.monitor.traffic import Traffic
from launcher.tuning import advice, draft_follower
from launcher.tuning.history import History
from launcher.tuning.history_environment import Environment
from tests.tuning.test_advice import runs_at
from tools.demo_model.drafts import write_draft

PATIENCE_S = 240.0
FASTER = 600.0
"""How many times as fast as ours the clock of the counts is: an hour takes 6 seconds."""
FEWEST_STEPS, FEWEST_OF_ONE = 600, 10
"""Fewer than usual, for the same reason."""
STEP_S, LONGER_STEP_S = 0.003, 0.015
"""The time that counts for a step with one draft, and with more: that which one takes here depends on who else uses the
computer's processors."""
QUESTION = {"messages": [{"role": "user", "content": "What is a draft?"}], "max_tokens": 200, "temperature": 0.9}


class Served:
    """A server whose use is counted, and what became of its clients' requests."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.statuses: list[int] = []
        self.drafts: list[int] = []
        self.session = ServerSession(on_event=self._note)
        self.session.monitor.periods = MonitorPeriods(metrics_s=0.05, metrics_rest_s=0.05)

    def _note(self, event: object) -> None:
        if isinstance(event, Notice) and event.code == DRAFTS_CHANGED:
            self.notices.append(f"{event.text}")

    @property
    def draft(self) -> int:
        options = self.session.supervisor.options
        assert options is not None
        return options.draft

    async def ask_until(self, is_over: Callable[[], bool]) -> None:
        """Ask one question after the other, with a pause now and then."""
        endpoint = self.session.supervisor.endpoint
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        deadline_s = time.monotonic() + PATIENCE_S
        async with httpx.AsyncClient(base_url=endpoint.url, headers=headers, timeout=60, trust_env=False) as client:
            while not is_over():
                assert time.monotonic() < deadline_s, (self.notices, len(self.statuses))
                for _ in range(8):
                    reply = await client.post("/v1/chat/completions", json=QUESTION)
                    self.statuses.append(reply.status_code)
                    self.drafts.append(self.draft)
                await asyncio.sleep(1.0)


@asynccontextmanager
async def serve_demo(draft: int, claimed: dict[int, float]) -> AsyncIterator[Served]:
    """Serve the demo, with a history that claims these seconds per step by draft length. Its steps count as
    STEP_S."""
    served = Served()
    counting = UseCounting(served.session, clock=lambda: time.monotonic() * FASTER)

    def add_traffic(traffic: Traffic) -> None:
        steps = traffic.predicted_n - traffic.acceptance.accepted
        step_s = STEP_S if served.draft == 1 else LONGER_STEP_S
        counting.add_traffic(replace(traffic, tokens_per_second=traffic.predicted_n / (steps * step_s)))

    served.session.monitor.on_traffic = add_traffic
    try:
        options = replace(make_unresolved_options("demo", ServeOptions), draft=draft, threads=1)
        await served.session.start(StartRequest(options))
        launch = served.session.supervisor.launch
        assert launch is not None
        here = Environment.for_launch(launch)
        with History() as history:
            runs = runs_at(tuple(claimed), times=claimed, kv=None)
            history.add_runs(history.begin_session("tune", here, {"draft": 0}), runs)
        yield served
    finally:
        await served.session.stop()
        await counting.close()


CLAIMED = {length: STEP_S * (1 + 0.005 * (length - 1)) for length in (1, 4, 8)}
"""Steps that are hardly longer with more drafts, which is not true."""


async def test_drafts_change_between_requests_and_back_when_that_was_slower(
    home: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(use_counting, "_QUIET_S", 0.3)
    monkeypatch.setattr(draft_follower, "_FEWEST_OF_ONE", FEWEST_OF_ONE)
    for module in (advice, draft_follower, use_counting):
        monkeypatch.setattr(module, "FEWEST_STEPS", FEWEST_STEPS)
    settings.change_setting(ADVICE, VALUE_AUTO)
    async with serve_demo(1, CLAIMED) as served:
        await served.ask_until(lambda: len(served.notices) >= 2)
        await served.ask_until(lambda: served.draft == 1)
        assert set(served.statuses) == {200}
        assert max(served.drafts) > 1
    first, second = served.notices[:2]
    assert "from now on" in first
    assert second.startswith("Draft 1 again.")


async def test_by_default_other_drafts_are_a_finding_with_a_fix(home: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (advice, draft_follower, use_counting):
        monkeypatch.setattr(module, "FEWEST_STEPS", 200)
    assert settings.stored_value(ADVICE) == VALUE_SUGGEST
    async with serve_demo(1, CLAIMED) as served:
        watch = served.session.monitor.health_watch
        await served.ask_until(lambda: watch.advice is not None)
        found = watch.advice
        assert found is not None
        assert found.code is FindingCode.OTHER_DRAFTS
        assert found.action is not None
        assert served.draft == 1
        assert not served.notices
        await served.session.apply_fix(found.action)
        assert served.draft == int(found.action.parameters["draft"]) > 1
        await served.ask_until(lambda: not watch.open_findings)
        assert watch.advice is None  # it was about the drafts that were in use


async def test_nothing_is_suggested_any_more_once_that_is_off(home: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (advice, draft_follower, use_counting):
        monkeypatch.setattr(module, "FEWEST_STEPS", 200)
    async with serve_demo(1, CLAIMED) as served:
        watch = served.session.monitor.health_watch
        await served.ask_until(lambda: watch.advice is not None)
        settings.change_setting(ADVICE, VALUE_OFF)
        await served.ask_until(lambda: watch.advice is None)


async def test_a_change_that_yields_is_not_made_while_a_client_waits(home: object) -> None:
    async with serve_demo(1, {}) as served:
        endpoint, options = served.session.supervisor.endpoint, served.session.supervisor.options
        assert options is not None
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        async with httpx.AsyncClient(base_url=endpoint.url, headers=headers, timeout=60, trust_env=False) as client:
            body = QUESTION | {"stream": True, "max_tokens": 2_000, "ignore_eos": True}
            async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
                assert await anext(reply.aiter_lines())
                with pytest.raises(Superseded):
                    await served.session.start(StartRequest(replace(options, draft=2), yields=True))
        assert served.draft == 1


async def test_a_change_that_yields_leaves_a_users_start_in_progress_alone(home: object) -> None:
    async with serve_demo(1, {}) as served:
        options = served.session.supervisor.options
        assert options is not None
        begun = asyncio.create_task(served.session.start(StartRequest(replace(options, draft=3))))
        await asyncio.sleep(0)
        with pytest.raises(Superseded):
            await served.session.start(StartRequest(replace(options, draft=2), yields=True))
        await begun
        assert served.draft == 3
        await served.session.start(StartRequest(replace(options, draft=2), yields=True))
        assert served.draft == 2


async def test_drafts_that_followed_the_traffic_are_not_kept_as_the_users_choice(home: object) -> None:
    async with serve_demo(1, {}) as served:
        options = served.session.supervisor.options
        assert options is not None
        chosen: dict[str, int] = {"draft": 1, "ubatch": 256}
        await served.session.start(StartRequest(replace(options, ubatch=256), chosen=chosen))
        await served.session.start(StartRequest(replace(options, ubatch=256, draft=2), yields=True))
        await served.session.apply_fix(Action(ActionKind.MORE_SLOTS, "Add a slot", {"slots": 2}))
        assert served.draft == 2
        assert load_model_settings(options.model) == {**chosen, "slots": 2}


async def test_a_change_of_drafts_is_told_once_it_was_made(home: object) -> None:
    async with serve_demo(1, {}) as served:
        options = served.session.supervisor.options
        assert options is not None
        notices = (Notice(DRAFTS_CHANGED, "Draft 2 from now on."),)
        lost = replace(options, model=Path("lost.gguf"))
        with pytest.raises(ModelMissing):
            await served.session.start(StartRequest(lost, notices=notices, yields=True))
        assert not served.notices
        await served.session.start(StartRequest(replace(options, draft=2), notices=notices, yields=True))
        assert served.notices == ["Draft 2 from now on."]


async def test_a_draft_that_came_after_the_start_can_be_changed_to(
    home: object, demo_model: Path, tmp_path: Path
) -> None:
    model = tmp_path / "demo.gguf"
    shutil.copy(demo_model, model)
    session = ServerSession()
    try:
        await session.start(StartRequest(ServeOptions(model, built_in=True, threads=1, context=2_048)))
        write_draft(tmp_path / "dflash-demo.gguf", "dflash", demo_model)
        values: dict[str, str | int] = {"draft": 3, "drafter": "draft-dflash"}
        await session.apply_fix(Action(ActionKind.OTHER_DRAFTS, "Use draft 3 by DFlash", values))
        options = session.supervisor.options
        assert options is not None
        assert (options.drafter.name, options.draft) == ("dflash", 3)
    finally:
        await session.stop()


def test_what_was_a_switch_is_read_as_before(home: object) -> None:
    settings.change_setting(ADVICE, False)
    assert settings.stored_value(ADVICE) == VALUE_OFF
    path = settings.read_app_settings().path
    path.write_text("[server]\nadvice = true\n", encoding="utf-8")
    assert settings.stored_value(ADVICE) == VALUE_SUGGEST
    assert settings.read_app_settings().value(ADVICE) == VALUE_SUGGEST
    assert settings.parse_value(settings.find_setting(ADVICE), "off") == VALUE_OFF
    assert settings.parse_value(settings.find_setting(ADVICE), "on") == VALUE_SUGGEST
    assert settings.parse_value(settings.find_setting(ADVICE), "auto") == VALUE_AUTO
