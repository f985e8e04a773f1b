"""The space of settings: which may be tried, and which fit."""

import pytest

from launcher.base.errors import BadOption
from launcher.tuning.space import Space, SpaceAxis, draft_length, settings_key, way_of

KV = SpaceAxis("kv", ("q4_0", "q8_0", "f16"), memory=True)
P_MIN = SpaceAxis("p_min", (0.0, 0.5), drafting=True)
BASELINE = {"kv": "q8_0", "p_min": 0.0, "ctx": 65_536}


def test_every_combination_exists_once_and_the_baseline_comes_first() -> None:
    space = Space(BASELINE, (1, 2, 4), (KV, P_MIN))
    found = list(space.fitting_settings())
    assert found[0] == {**BASELINE, "draft": 0}
    assert len({settings_key(each) for each in found}) == len(found) == space.size == 3 + 3 * 3 * 2
    assert all(each["ctx"] == 65_536 for each in found)


def test_without_drafts_draft_settings_are_not_varied() -> None:
    off = [each for each in Space(BASELINE, (1,), (KV, P_MIN)).fitting_settings() if not draft_length(each)]
    assert [each["p_min"] for each in off] == [0.0] * 3


def test_without_mtp_its_memory_is_free_for_a_larger_cache() -> None:
    """With drafts only the smallest cache fits, without them all of them do."""
    space = Space(BASELINE, (1, 2), (KV,), fits=lambda s: not draft_length(s) or s["kv"] == "q4_0")
    assert {(draft_length(each), each["kv"]) for each in space.fitting_settings()} == {
        *((0, kv) for kv in KV.values),
        *((draft, "q4_0") for draft in (1, 2)),
    }


def test_memory_ranks_are_the_draft_length_and_positions_on_memory_axes() -> None:
    space = Space({"kv": "q8_0", "threads": 4}, (1, 2), (KV, SpaceAxis("threads", (4, 8))))
    assert space.memory_ranks({"kv": "f16", "threads": 8, "draft": 1}) == (1, KV.values.index("f16"))
    assert space.memory_ranks({"kv": "q4_0", "threads": 4}) == (0, KV.values.index("q4_0"))


@pytest.mark.parametrize(
    ("baseline", "drafts", "axes"),
    [
        (BASELINE, (), ()),
        (BASELINE, (0, 1), ()),
        (BASELINE, (2, 1), ()),
        ({"kv": "q8_0", "draft": 2}, (1,), ()),
        ({"kv": "turbo3"}, (1,), (KV,)),
        ({"draft": 0}, (1,), (SpaceAxis("draft", (0, 1)),)),
        ({f"axis {i}": 0 for i in range(13)}, (1,), tuple(SpaceAxis(f"axis {i}", (0, 1)) for i in range(13))),
    ],
)
def test_an_invalid_space_is_refused(baseline: dict, drafts: tuple, axes: tuple) -> None:
    with pytest.raises(BadOption):
        Space(baseline, drafts, axes)


SEVERAL = Space(
    {"drafter": "draft-mtp", **BASELINE},
    (1, 2, 4),
    (SpaceAxis("drafter", ("draft-dflash", "draft-mtp", "ngram-simple"), memory=True, drafting=True), KV, P_MIN),
)


def test_how_to_draft_is_one_axis_of_which_off_is_one_point() -> None:
    """A drafter without a length has one, and settings that do not apply to it keep the baseline's value."""
    found = list(SEVERAL.fitting_settings())
    assert len({settings_key(each) for each in found}) == len(found)
    ways = dict.fromkeys(way_of(each) for each in found)
    lengths = [(each, n) for each in ("draft-dflash", "draft-mtp") for n in (1, 2, 4)]
    assert list(ways) == [(None, 0), *lengths, ("ngram-simple", 1)]
    assert {each["drafter"] for each in found if not draft_length(each)} == {"draft-mtp"}
    assert {each["p_min"] for each in found if each["drafter"] == "ngram-simple"} == {0.0}


def test_only_a_longer_draft_of_the_same_drafter_surely_needs_more_memory() -> None:
    def rank(drafter: str, draft: int) -> tuple[int, ...]:
        return SEVERAL.memory_ranks({**BASELINE, "drafter": drafter, "draft": draft})

    def needs_as_much(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        return all(a >= b for a, b in zip(one, other, strict=True))

    assert needs_as_much(rank("draft-mtp", 4), rank("draft-mtp", 2))
    assert needs_as_much(rank("draft-dflash", 1), rank("draft-mtp", 0))
    assert not needs_as_much(rank("draft-dflash", 4), rank("draft-mtp", 2))
    assert not needs_as_much(rank("draft-mtp", 4), rank("draft-dflash", 2))
