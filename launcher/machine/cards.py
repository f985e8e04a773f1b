"""Graphics cards by name, from presets/gpus.toml: what their makers state and drivers do not report."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

from launcher.base.errors import BadOption
from launcher.base.messages import message
from launcher.base.paths import shipped_file

_SAME_MEMORY = 1.15
"""Largest ratio of two memory sizes that count as the same: the RTX 5060 Ti exists with 8 and 16 GB."""
_IGNORED_WORDS = frozenset(
    {"NVIDIA", "GEFORCE", "AMD", "INTEL", "TESLA", "GRAPHICS", "EDITION", "GENERATION", "GPU", "PCIE", "R"}
)
"""Words of a card's name that do not distinguish it from others."""
_SPELLINGS = {"MOBILE": "LAPTOP"}
"""Other spellings of words in a card's name."""


@dataclass(frozen=True, slots=True)
class Card:
    """A graphics card as its maker describes it.

    `memory_gb` is the advertised size, `bandwidth_gb_s` in 10^9 bytes per second, `tflops` the rate of 32-bit floating
    point operations, `watts` the power of the board, `multiprocessors` their number (NVIDIA only, else 0). `typical`
    cards stand for their memory size. A card with `unified` memory shares the host's. `also` are names of the computer
    or module that it is in.
    """

    name: str
    memory_gb: int
    bandwidth_gb_s: int
    tflops: float
    generation: str
    watts: int
    multiprocessors: int = 0
    typical: bool = False
    unified: bool = False
    also: tuple[str, ...] = ()

    def count_words(self, wanted: frozenset[str]) -> int | None:
        """Return how many words the shortest of its names has that contains all that are wanted; None without one."""
        names = [words for name in (self.name, *self.also) if wanted <= (words := _name_words(name))]
        return min(map(len, names), default=None)


@cache
def list_cards() -> tuple[Card, ...]:
    """Return all known cards."""
    with shipped_file("presets", "gpus.toml").open("rb") as file:
        return tuple(Card(**{**row, "also": tuple(row.get("also", ()))}) for row in tomllib.load(file)["gpus"])


def find_card(name: str, memory_gb: float | None = None) -> Card:
    """Return the card that the user means by a part of its name, such as "4090" or "5060 Ti 16GB".

    Raises BadOption, with the nearest names, if there is none or more than one.
    """
    if several := re.fullmatch(r"(\d\d?) ?[x*] ?(.*\w.*)", name.strip(), re.IGNORECASE):
        sizes = "+".join([f"{find_card(several[2], memory_gb).memory_gb:g}"] * min(int(several[1]), 16))
        raise BadOption(
            message("--gpu describes a single card."),
            message("Describe several by their memory: --gpu-memory {sizes}.", sizes=sizes),
            option="--gpu",
        )
    called = name
    if size := re.search(r"\b(\d+) ?GI?B?\b", name, re.IGNORECASE):
        name, memory_gb = name.replace(size[0], " "), float(size[1])
    wanted = _name_words(name)
    cards = [
        (count, card)
        for card in list_cards()
        if (count := card.count_words(wanted) if wanted else None) is not None
        and (memory_gb is None or card.unified or card.memory_gb == memory_gb)
    ]
    fewest = min((count for count, _ in cards), default=0)
    meant = [card for count, card in cards if count == fewest]
    if len({card.name for card in meant}) == 1:  # if a card has two sizes, the usual one is meant
        if memory_gb is not None:
            return _nearest_size(meant, memory_gb)
        return max(meant, key=lambda card: (card.typical, card.memory_gb))
    raise _card_error(called.strip(), wanted, [_label(card) for card in meant])


def _card_error(name: str, wanted: frozenset[str], meant: Sequence[str]) -> BadOption:
    by_words = {" ".join(sorted(_name_words(card.name))).casefold(): _label(card) for card in list_cards()}
    like = get_close_matches(" ".join(sorted(wanted)).casefold(), by_words, n=4)
    near = ", ".join(meant or [by_words[each] for each in like])
    return BadOption(
        message('Several cards are named "{name}".', name=name)
        if meant
        else message('No graphics card "{name}" is known.', name=name),
        message("Choose one of these: {near}. Or describe it by its memory: --gpu-memory.", near=near)
        if near
        else message("Describe it by its memory: --gpu-memory."),
        option="--gpu",
    )


def match_card(name: str | None, memory_gb: float | None) -> Card | None:
    """Return the card with the name and memory that a driver reports, or None if gpus.toml lacks it.

    Without the memory (None), the name must be that of cards of one size.
    """
    if not name:
        return None
    reported_words = _name_words(name)
    same = [
        card
        for card in list_cards()
        if _name_words(card.name) <= reported_words
        and (memory_gb is None or card.unified or is_same_memory(card.memory_gb, memory_gb))
    ]
    best = max(same, key=lambda card: len(_name_words(card.name)), default=None)
    if best is None:
        return None
    sizes = [card for card in same if card.name == best.name]
    if memory_gb is None:
        return best if len(sizes) == 1 else None
    return _nearest_size(sizes, memory_gb)


def _nearest_size(cards: Sequence[Card], memory_gb: float) -> Card:
    return min(cards, key=lambda card: abs(card.memory_gb - memory_gb))


def typical_card(memory_gb: float, *, unified: bool = False) -> Card | None:
    """Return the card that stands for a memory size, or None if no known card has about that size.

    With `unified` it is the chip whose largest memory is nearest, because these chips come with many sizes.
    """
    if unified:
        return _nearest_size([card for card in list_cards() if card.typical and card.unified], memory_gb)
    near = _nearest_size([card for card in list_cards() if card.typical and not card.unified], memory_gb)
    return near if is_same_memory(near.memory_gb, memory_gb) else None


def is_same_memory(one_gb: float, other_gb: float) -> bool:
    """Return whether two memory sizes may be of the same card: one as its maker states it, one as its driver does."""
    return max(one_gb, other_gb) <= _SAME_MEMORY * min(one_gb, other_gb)


def _name_words(name: str) -> frozenset[str]:
    """Return the words and numbers of a card's name that tell it from others."""
    spaced = re.sub(r"(\d)(TI|XTX?|SUPER|GRE)\b", r"\1 \2", re.sub(r"\(R\)|\(TM\)", " ", name.upper()))
    words: Sequence[str] = re.findall(r"[A-Z]*\d+[A-Z]?|[A-Z]+", spaced)
    return frozenset(_SPELLINGS.get(word, word) for word in words) - _IGNORED_WORDS


def _label(card: Card) -> str:
    several = sum(each.name == card.name for each in list_cards()) > 1
    return f"{card.name} {card.memory_gb}GB" if several else card.name
