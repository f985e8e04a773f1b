"""Estimates of the pause at a restart, for a real model's figures and on the real engine."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.app.planning.preview import Previewer
from launcher.app.serving import running_servers
from launcher.app.serving.pause_estimate import PauseEstimate, estimate_pause
from launcher.engine.builds.slot_files import SlotFiles
from launcher.engine.serve_options import ServeOptions
from launcher.gateway.exchange import HandoverOutlook
from launcher.models.server_settings import Value
from tests.app.planning.test_preview import describe_server
from tests.gateway.test_handover import ReadReply, read_stream, serve_model

OUTLOOK = HandoverOutlook(1, prompt_tokens=58_000, reply_tokens=3_000, reading_speed=1_500.0, slot_speed=1e9)


def estimate(
    changes: dict[str, Value], *, outlook: HandoverOutlook = OUTLOOK, unified: bool = False, **details: object
) -> PauseEstimate:
    basis = describe_server()
    settings = replace(basis.plan_settings, kv_unified=unified or None)
    options = replace(basis.options, kv_unified=unified or None)
    basis = replace(basis, plan_settings=settings, options=options, **details)  # type: ignore[arg-type]
    return estimate_pause(Previewer(basis).preview(changes), outlook)


def test_a_recurrent_model_reads_its_reply_again_and_its_slot_has_the_measured_size() -> None:
    pause = estimate({"draft": 3})
    assert (pause.load_s, pause.reading_s, pause.tokens_read, pause.reads_prompts) == (8.6, 2.0, 3_000, False)
    assert pause.slots_s == pytest.approx((61_000 * 10_880 + 9 * 62.85 * 2**20) / 1e9, rel=0.02)
    assert pause.seconds == pytest.approx(8.6 + 2.0 + 1.25, abs=0.05)


def test_a_model_with_attention_only_reads_nothing_again() -> None:
    geometry = describe_server().geometry
    assert geometry is not None
    pause = estimate({"draft": 3}, geometry=replace(geometry, attention_layers=geometry.layers))
    assert (pause.reading_s, pause.tokens_read) == (0.0, 0)


@pytest.mark.parametrize("change", [{"kv": "f16"}, {"slots": 2}, {"extra": "--no-warmup"}, {"ctx": 32_768}])
def test_where_slots_cannot_be_restored_prompts_are_read_again(change: dict[str, Value]) -> None:
    pause = estimate(change)
    assert (pause.reads_prompts, pause.tokens_read) == (True, 61_000)
    assert pause.reading_s == pytest.approx(61_000 / 1_500)


def test_slots_of_a_unified_cache_can_be_restored_into_more_slots() -> None:
    assert not estimate({"slots": 2}, unified=True).reads_prompts


@pytest.mark.parametrize(
    ("found", "reads"),
    [(None, False), (SlotFiles.COMPLETE, False), (SlotFiles.NO_CHECKPOINTS, True), (SlotFiles.NONE, True)],
)
def test_an_engine_without_checkpoints_in_its_slot_files_reads_prompts_again(
    found: SlotFiles | None, *, reads: bool
) -> None:
    assert estimate({"draft": 3}, slot_files=found).reads_prompts == reads


def test_the_pause_is_unknown_before_it_was_measured() -> None:
    pause = estimate({"draft": 3}, outlook=replace(OUTLOOK, reading_speed=None), load=None)
    assert (pause.seconds, pause.load_s, pause.reading_s) == (None, None, None)


async def test_a_preview_says_what_a_restart_means_for_a_running_stream(demo_model: Path) -> None:
    options = ServeOptions(model=demo_model, built_in=True, threads=1, context=32_768, alias="demo")
    async with serve_model(options) as (session, client):
        assert (await running_servers.preview_restart(None, {"draft": "3"}))["pause"] is None
        reply = ReadReply()
        reading = asyncio.create_task(read_stream(client, reply))
        await reply.wait_for_parts(20)
        preview = await running_servers.preview_restart(None, {"draft": "3"})
        assert (preview["replies"], preview["reasons"]) == ({"go_on": 1, "uncertain": 0, "end_first": 0}, [])
        pause = preview["pause"]
        assert pause["load_s"] == preview["restart_s"]
        assert pause["tokens_read"] >= 20
        assert pause["seconds"] >= pause["load_s"]
        assert not pause["reads_prompts"]
        reply.most_parts = reply.parts + 5
        await reading
        assert session.supervisor.launch is not None
