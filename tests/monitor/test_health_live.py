"""From the driver's library to the event: a real engine, and a fake NVML that reports throttling."""

from pathlib import Path

import pytest

from tests.machine.conftest import ask_driver, compile_driver

SERVE = """
import asyncio, json, os
from pathlib import Path
from launcher.base.codec import to_json
from launcher.app.serving.serving import serve
from launcher.engine.server.client import ChatRequest
from launcher.engine.serve_options import ServeOptions
from launcher.monitor.monitor import MonitorPeriods

ENDLESS = ChatRequest([{"role": "user", "content": "What is MTP?"}], extra={"ignore_eos": True})

async def main():
    events = asyncio.Queue()
    def note(event):
        if event.finding.code == "throttled_hot":
            events.put_nowait(event)
    options = ServeOptions(model=Path(os.environ["STUB_MODEL"]), built_in=True, threads=1)
    async with serve(options, on_health=note) as session:
        session.monitor.periods, session.monitor.health_watch.period_s = MonitorPeriods(metrics_s=0.05), 0.05
        asking = asyncio.create_task(session.send_request(ENDLESS))
        raised = await asyncio.wait_for(events.get(), 120)
        os.environ["STUB_REASONS"] = "1"
        over = await asyncio.wait_for(events.get(), 120)
        asking.cancel()
    return [{"cleared": event.cleared, **to_json(event.finding)} for event in (raised, over)]

print(json.dumps(asyncio.run(main())))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_driver(tmp_path_factory.mktemp("driver"))


def test_a_throttle_reason_of_the_driver_arrives_as_an_event_and_is_cleared(
    driver: Path, demo_model: Path, tmp_path: Path
) -> None:
    raised, over = ask_driver(SERVE, driver, tmp_path, MODEL=demo_model, REASONS=0x40 | 0x08)
    assert (raised["code"], raised["level"], raised["cleared"]) == ("throttled_hot", "warning", False)
    assert raised["evidence"]["gpu_temperature_c"] == 61
    assert (over["code"], over["cleared"]) == ("throttled_hot", True)
