"""The divergence of two distributions, and the limits of the judgement."""

import math
from collections.abc import Mapping

import pytest

from launcher.models.drafters import DRAFTERS, MTP, NO_DRAFTS, DraftChoice
from launcher.tuning.quality import MOST_KL, ServerAnswers, compare_answers, describe_row, kl_divergence


def logs(shares: Mapping[int, float]) -> dict[int, float]:
    return {token: math.log(share) for token, share in shares.items()}


def answers(*positions: Mapping[int, float], replies: tuple[str, ...] = (), found: bool = True) -> ServerAnswers:
    return ServerAnswers(tuple(map(logs, positions)), replies, needle=found, tool_call=found)


def test_the_divergence_follows_its_formula() -> None:
    one, two = {1: 0.5, 2: 0.3, 3: 0.2}, {1: 0.25, 2: 0.25, 3: 0.5}
    assert kl_divergence(logs(one), logs(one)) == 0.0
    expected = sum(p * math.log(p / two[token]) for token, p in one.items())
    assert kl_divergence(logs(one), logs(two)) == pytest.approx(expected)


def test_tokens_of_only_one_list_count_as_one_and_never_raise_the_divergence() -> None:
    whole, cut = {1: 0.6, 2: 0.3, 3: 0.1}, {1: 0.6, 2: 0.3}
    assert kl_divergence(logs(whole), logs(cut)) == pytest.approx(0.0, abs=1e-12)
    other = {1: 0.2, 2: 0.3, 4: 0.5}
    lumped = 0.6 * math.log(0.6 / 0.2) + 0.1 * math.log(0.1 / 0.5)
    assert kl_divergence(logs(whole), logs(other)) == pytest.approx(lumped)
    assert math.isfinite(kl_divergence(logs(whole), {7: 0.0}))
    assert math.isfinite(kl_divergence(logs({1: 1.0}), {1: -3.4e38}))


def judge(reference: ServerAnswers, other: ServerAnswers, drafts: DraftChoice = NO_DRAFTS) -> str:
    row = compare_answers(reference, other, quant="Q8_0", file="m.gguf", kv="f16", drafts=drafts)
    by = f", {drafts.label()}" if drafts.length else ""
    assert str(describe_row(row)).startswith(f"Q8_0, KV f16{by}")
    return row.answer


def test_either_limit_decides() -> None:
    same = {1: 0.6, 2: 0.4}
    assert judge(answers(same, same), answers(same, same)) == "kept"
    flat = {1: 0.51, 2: 0.49}
    assert kl_divergence(logs(same), logs(flat)) < MOST_KL
    assert judge(answers(*[same] * 20), answers(*[flat] * 20)) == "kept"
    flipped = {1: 0.49, 2: 0.51}
    assert judge(answers(*[same] * 20), answers(*[same] * 19, flipped)) == "kept"
    assert judge(answers(*[same] * 20), answers(*[same] * 18, flipped, flipped)) == "beyond"
    sharp = {1: 0.98, 2: 0.02}
    assert judge(answers(same), answers(sharp)) == "beyond"


def test_replies_are_shown_but_a_lost_fact_or_tool_call_counts() -> None:
    reference = answers(replies=("a", "b"))
    row = compare_answers(
        reference, answers(replies=("a", "c")), quant="F16", file="", kv="f16", drafts=DraftChoice(MTP, 3)
    )
    assert (row.answer, row.greedy_equal, row.greedy_replies, row.kl) == ("shown", 1, 2, None)
    assert judge(answers(), answers(found=False), DraftChoice(DRAFTERS["dflash"], 2)) == "beyond"
    assert judge(answers({1: 1.0}, found=False), answers({1: 1.0}, found=False)) == "kept"
