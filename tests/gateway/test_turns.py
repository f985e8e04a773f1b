"""Turns in the engine: who gets one, and that none is lost."""

import asyncio

import pytest

from launcher.gateway.access import Refusal
from launcher.gateway.turns import TurnRecalled, Turns


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def take_all(turns: Turns, count: int) -> None:
    for _ in range(count):
        await asyncio.wait_for(turns.take_turn(), 10)


async def test_a_client_that_leaves_as_it_gets_its_turn_gives_it_back() -> None:
    turns = Turns()
    turns.set_limit(1)
    await turns.take_turn()
    leaving = asyncio.ensure_future(turns.take_turn())
    await settle()
    turns.end_turn()  # the one that waits has the turn now, and does not know it yet
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert turns.take_free_turn()


async def test_a_client_that_leaves_while_it_waits_has_no_turn_to_give_back() -> None:
    turns = Turns()
    turns.set_limit(1)
    await turns.take_turn()
    leaving = asyncio.ensure_future(turns.take_turn())
    await settle()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert not turns.take_free_turn()
    turns.end_turn()
    assert turns.take_free_turn()
    assert not turns.take_free_turn()


async def test_turns_go_to_those_that_wait_in_their_order() -> None:
    turns, got = Turns(), []

    async def wait_as(name: str, *, first: bool = False) -> None:
        await turns.take_turn(first=first)
        got.append(name)

    tasks = [asyncio.ensure_future(wait_as(name)) for name in ("one", "two")]
    await settle()
    tasks.append(asyncio.ensure_future(wait_as("cut", first=True)))
    await settle()
    turns.set_limit(2)
    await settle()
    assert got == ["cut", "one"]
    assert not turns.take_free_turn()
    turns.end_turn()
    await asyncio.gather(*tasks)
    assert got == ["cut", "one", "two"]


async def test_those_that_wait_are_refused_and_others_served_again() -> None:
    turns = Turns()
    waiting = asyncio.ensure_future(turns.take_turn())
    await settle()
    turns.refuse_all("The engine has ended")
    with pytest.raises(Refusal, match="The engine has ended"):
        await waiting
    with pytest.raises(Refusal, match="The engine has ended"):
        await turns.take_turn()
    turns.set_limit(2)
    await take_all(turns, 2)
    assert not turns.take_free_turn()


async def test_those_that_wait_are_recalled_once_and_a_client_that_left_is_no_hindrance() -> None:
    turns = Turns()
    left, waiting = [asyncio.ensure_future(turns.take_turn()) for _ in range(2)]
    await settle()
    left.cancel()
    turns.recall_waiting()
    with pytest.raises(TurnRecalled):
        await asyncio.wait_for(waiting, 10)
    turns.set_limit(1)
    await take_all(turns, 1)
    assert not turns.take_free_turn()


async def test_a_turn_that_is_lent_counts_again() -> None:
    turns = Turns()
    turns.set_limit(1)
    await turns.take_turn()
    with turns.lend_turn():
        assert turns.take_free_turn()
        turns.end_turn()
        assert turns.take_free_turn()
    turns.end_turn()  # that of the one that lent it; the other one's remains
    assert not turns.take_free_turn()
    turns.end_turn()
    assert turns.take_free_turn()
