"""Several servers measured in turns, on benches in virtual time that share a clock and a drift."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from launcher.base.errors import NothingMeasured
from launcher.tuning.records import Bench, Prompt, Run, RunSettings
from launcher.tuning.server_comparison import compare_servers

PROMPTS = tuple(Prompt(name, (("user", name),), tokens=100) for name in ("a", "b"))


@dataclass
class Room:
    """State that the servers share: a clock, and heat that slows all of them evenly."""

    now_s: float = 0.0
    slower_by_second: float = 0.0


@dataclass
class Server:
    room: Room
    rate: float
    timings: bool = True
    noise: random.Random | None = None
    ends_after: int = 1_000
    requests: list[tuple[str, int, int]] = field(default_factory=list)

    def now_s(self) -> float:
        return self.room.now_s

    async def become(self, settings: RunSettings, **_: bool) -> float:
        raise NotImplementedError(settings)

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        began_s = self.room.now_s
        self.requests.append((prompt.name, seed, prompt.tokens))
        if len(self.requests) > self.ends_after:
            return Run(prompt.name, {}, began_s, 0.0, error="It ended.")
        noise = self.noise.gauss(1.0, 0.02) if self.noise else 1.0
        rate = self.rate * noise * (2.0 if prompt.name == "b" else 1.0) / (1 + self.room.slower_by_second * began_s)
        writing_s = (prompt.tokens - 1) / rate
        self.room.now_s += 0.5 + writing_s
        return Run(
            prompt.name,
            {},
            began_s,
            0.5 + writing_s,
            prompt_tokens=50,
            reply_tokens=prompt.tokens,
            first_token_s=0.5,
            prefill_rate=200.0 if self.timings else 100.0,
            decode_rate=1.1 * rate if self.timings else rate,  # an engine's own clock leaves out the connection
            clock="engine" if self.timings else "wall",
        )


def benches(**servers: Server) -> Mapping[str, Bench]:
    return dict(servers)


async def test_a_common_drift_cancels_in_the_ratio() -> None:
    room = Room(slower_by_second=0.02)
    noise = random.Random(3)
    first, second = Server(room, 40.0, noise=noise), Server(room, 50.0, noise=noise)
    found = await compare_servers(benches(first=first, second=second), PROMPTS, rounds=8)
    assert room.now_s > 20.0, "by the end all is at least 40 % slower"
    assert found[0].ratio is None
    ratio = found[1].ratio
    assert ratio is not None
    assert ratio.n == 8
    assert ratio.low < 1.25 < ratio.high
    assert ratio.half_width < 0.05
    assert found[0].measured
    assert found[0].measured.interval
    assert found[0].measured.interval.half_width > 0.05 * found[0].measured.interval.estimate, "the drift is in it"


async def test_rounds_alternate_in_direction_with_the_same_seeds() -> None:
    room = Room()
    first, second = Server(room, 40.0), Server(room, 40.0)
    order: list[tuple[str, int]] = []
    await compare_servers(
        benches(first=first, second=second),
        PROMPTS[:1],
        rounds=3,
        seed=9,
        on_turn=lambda name, _, number: order.append((name, number)),
    )
    assert order == [
        ("first", 0), ("second", 0),
        ("first", 1), ("second", 1),
        ("second", 2), ("first", 2),
        ("first", 3), ("second", 3),
    ]  # fmt: skip
    assert first.requests == second.requests == [("a", 9, 24), ("a", 10, 100), ("a", 11, 100), ("a", 12, 100)]


async def test_one_server_without_timings_makes_all_use_the_client_clock() -> None:
    room = Room()
    found = await compare_servers(
        benches(first=Server(room, 40.0), second=Server(room, 40.0, timings=False)), PROMPTS, rounds=4
    )
    for each in found:
        assert each.measured
        assert each.measured.clock == "wall"
        assert each.measured.decode
        assert each.measured.decode.mean == pytest.approx(60.0)
        assert each.measured.prefill
        assert each.measured.prefill.mean == pytest.approx(100.0)
    assert found[1].ratio
    assert found[1].ratio.estimate == pytest.approx(1.0)


async def test_a_server_that_ends_is_left_out_and_the_others_go_on() -> None:
    room = Room()
    servers = benches(first=Server(room, 40.0), second=Server(room, 50.0, ends_after=4), third=Server(room, 20.0))
    found = {each.name: each for each in await compare_servers(servers, PROMPTS, rounds=4)}
    assert found["second"].error == "It ended."
    assert found["second"].measured
    assert len(found["second"].measured.answered) == 3
    assert found["second"].ratio is None, "too few pairs"
    assert found["third"].error is None
    assert found["third"].ratio
    assert found["third"].ratio.estimate == pytest.approx(0.5)


async def test_without_an_answering_server_nothing_is_measured() -> None:
    room = Room()
    with pytest.raises(NothingMeasured, match="It ended"):
        await compare_servers(benches(first=Server(room, 1.0, ends_after=0)), PROMPTS)
