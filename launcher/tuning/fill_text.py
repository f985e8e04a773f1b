"""Text without end for filling a context: the journal of a harbour that is not, the same on every computer.

No entry is like another, so that neither a cache nor n-gram drafts have more of it than of any text.
"""

import hashlib
from collections.abc import Iterator, Sequence

_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November")
_WINDS = ("north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west")
_SKIES = (
    "clear to the horizon",
    "grey with breaks towards noon",
    "low cloud, and rain since the night watch",
    "haze over the shoals, the far buoy out of sight",
    "snow in gusts",
    "high thin cloud and a ring round the sun",
    "fog until nine, then bright",
    "thunder in the hills, none here",
)
_SHIPS = (
    "Marianne",
    "Two Brothers",
    "Skua",
    "Patience",
    "Anna Lind",
    "Kestrel",
    "Halcyon",
    "Old Tom",
    "Verity",
    "Stork",
)
_KINDS = ("the cutter", "the barge", "the mail boat", "the trawler", "the yawl", "the collier", "the dredger")
_GOODS = (
    "boxes of haddock",
    "sacks of seed potatoes",
    "coils of tarred rope",
    "crates of window glass",
    "barrels of lamp oil",
    "bales of wool",
    "tons of gravel for the new pier",
    "cases of oranges, a third of them spoilt",
    "letters and a piano",
    "sheep for the island",
)
_WORK = (
    "cleaned the third lamp and cut its wick",
    "sounded the channel by the old wreck and found less water than the chart has",
    "painted the rail of the upper gallery",
    "mended the bell rope, which the gale had frayed",
    "counted the signal flags; the yellow one is missing",
    "set the clock back after the noon gun",
    "took the skiff to the outer mark and replaced its chain",
    "wrote to the board about the crack in the sea wall",
    "caulked the boat house door against the spring tide",
)
_PEOPLE = ("Olsen", "Mrs Farr", "Young Bede", "Carrow", "Ilse", "The pilot", "Dunmore", "Tarn", "The new boy")
_REMARKS = (
    "A seal lay on the slip all afternoon and would not be moved.",
    "Somebody has carved a date into the bollard, wrong by a year.",
    "Eggs are dearer again; the cook blames the ferry.",
    "Two strangers asked for the house on the point, and were told that it burnt down.",
    "The tide gauge sticks at its upper end and wants oil.",
    "Heard geese before dawn, first of the season.",
    "The inspector's report came by mail: nothing to complain of but the stairs.",
    "Lent the long ladder to the chapel.",
    "No ships after dark.",
)


def entries(begin: int = 0) -> Iterator[str]:
    """Yield entries of the journal without end, from the one with the number `begin` on."""
    number = begin
    while True:
        yield _entry(number)
        number += 1


def _entry(number: int) -> str:
    # A hash, and not `random`, whose choices may differ from one Python to the next.
    digits = iter(hashlib.sha512(f"harbour {number}".encode()).digest())

    def one(words: Sequence[str]) -> str:
        return words[next(digits) % len(words)]

    def amount(low: int, high: int) -> int:
        return low + (256 * next(digits) + next(digits)) % (high - low + 1)

    head = f"Entry {number + 1}, {amount(1, 28)} {one(_MONTHS)}, {amount(4, 22)}:{amount(0, 59):02}."
    weather = f"Wind {one(_WINDS)}, {amount(2, 47)} knots, glass at {amount(968, 1038)}; {one(_SKIES)}."
    came = f"At {amount(5, 21)}:{amount(0, 59):02} {one(_KINDS)} {one(_SHIPS)} came in"
    trade = f"{came} with {amount(3, 480)} {one(_GOODS)}."
    return f"{head} {weather} {trade} {one(_PEOPLE)} {one(_WORK)}. {one(_REMARKS)}"
