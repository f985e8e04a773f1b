"""An engine that hangs in the middle of a client's reply although its health check passes (llama.cpp #27388)."""

from functools import partial
from pathlib import Path

import pytest

from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import supervisor as supervisor_module
from launcher.engine.server.guard import GuardLimits
from launcher.engine.server.supervisor import RestartPolicy
from tests.app.serving.test_failing_replies import Watched, serve


@pytest.fixture
def options(demo_model: Path, fake_engine: Path, monkeypatch: pytest.MonkeyPatch) -> ServeOptions:
    limits = partial(GuardLimits, period_s=0.05, asleep_s=60.0, silent_s=0.1, stalled_s=0.5)
    monkeypatch.setattr(supervisor_module, "GuardLimits", limits)
    monkeypatch.setattr("launcher.engine.server.guard._LOOP_ANSWER_S", 0.1)
    monkeypatch.setattr(supervisor_module, "RestartPolicy", partial(RestartPolicy, pauses_s=(0.0,)))
    return ServeOptions(model=demo_model, engine=fake_engine, threads=1)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("stalls", "its health check passes, but a running reply got no token"),
        ("wedges", "in the middle of a reply it stopped, and answers no question on its slots"),
    ],
    ids=["idle", "computing"],
)
async def test_a_clients_stream_that_stops_ends_with_the_reason_and_another_engine_starts(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch, fault: str, sentence: str
) -> None:
    monkeypatch.setenv("FAKE_FAULTS", fault)
    watched = Watched()
    async with serve(options, watched) as server:
        pid = server.session.supervisor.engine_pid
        # For the next engine, which a busy machine may hold up for half a second:
        monkeypatch.setenv("FAKE_FAULTS", "")
        server.session.supervisor._limits = GuardLimits()
        answer = await server.ask()  # the fake has no chat template with which a reply could go on
        assert answer.status_code == 200
        assert "The engine ended before the reply was complete: The engine hung: " + sentence in answer.text
        await server.wait_for_another_engine(pid)
        assert (await server.ask()).text.rstrip().endswith("data: [DONE]")
        assert len(server.notices) == 1
        assert server.notices[0].startswith("The engine hung: " + sentence)
