"""A curve in a few sentences."""

from collections.abc import Sequence

from launcher.tuning.curves import Axis, Curve, Ratio

_AT = {
    Axis.FILL: "with {} tokens in the context",
    Axis.CONTEXT: "with a context of {}",
    Axis.STREAMS: "with {} streams",
}

_OVER = {
    Axis.FILL: "from {} to {} tokens",
    Axis.CONTEXT: "from a context of {} to one of {}",
    Axis.STREAMS: "from {} to {} streams",
}
_WIDEST = 1.5
"""How many times the upper end of an interval may be the lower one where something is said of the middle."""


def sentences(curve: Curve) -> list[str]:
    """Return what the curve shows: MTP against none at each place, then each series from its first place to its last.

    Only what 95 % confidence allows is called faster or slower.
    """
    said = [_against(curve, name) for name in curve.series[1:]]
    said += [_along(curve, each) for each in curve.along]
    return [each for each in said if each]


def _against(curve: Curve, name: str) -> str:
    found = [each for each in curve.ratios if each.series == name]
    if not found:
        return ""
    base = curve.series[0]
    subject = f"{name.capitalize()} is"
    parts = []
    for clear, word in ((True, f"faster than {base}"), (False, f"slower than {base}"), (None, "not distinguishable")):
        some = [each for each in found if each.clear is clear]
        if some and len(some) == len(found):
            only = len(some) == 1
            where = _at(curve, [each.place for each in some]) if only else f"{_everywhere(curve.axis)}: {_listed(some)}"
            than = f" from {base}" if clear is None else ""
            return f"{subject} {word}{than} {where}{f' ({_times(some[0])})' if only else ''}."
        if some:
            than = f" from {base}" if clear is None else ""
            parts.append(f"{word}{than} {_at(curve, [each.place for each in some])} ({', '.join(map(_times, some))})")
    return f"{subject} {'; '.join(parts)}."


def _along(curve: Curve, ratio: Ratio) -> str:
    point = next(each for each in curve.points if each.series == ratio.series and each.rate is not None)
    here, there = f"{ratio.place:,}", f"{point.place:,}"
    low, high = ratio.interval.low, ratio.interval.high
    if high > _WIDEST * low:
        what = _OVER[curve.axis].format(there, here)
        return f"{_capital(ratio.series)}: how its speed changes {what} is too uncertain to say. More --rounds tell."
    open_ = ""
    if ratio.clear is None:
        open_ = f" (no difference is shown: {100 * (low - 1):+.0f} to {100 * (high - 1):+.0f} %)"
    times = ratio.interval.estimate
    match curve.axis:
        case Axis.FILL:
            return (
                f"{_capital(ratio.series)} keeps {100 * times:.0f} % of its speed from {there} to {here} tokens{open_}."
            )
        case Axis.CONTEXT:
            change = f"{100 * abs(times - 1):.1f} % {'faster' if times >= 1 else 'slower'}"
            return f"{_capital(ratio.series)}: a context of {here} is {change} than one of {there}{open_}."
        case Axis.STREAMS:
            one = "one" if point.place == 1 else there
            return f"{_capital(ratio.series)}: {here} streams together are {times:.2f} times as fast as {one}{open_}."


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _everywhere(axis: Axis) -> str:
    return {Axis.FILL: "at every fill", Axis.CONTEXT: "at every context", Axis.STREAMS: "at any number of streams"}[
        axis
    ]


def _at(curve: Curve, places: Sequence[int]) -> str:
    listed = [f"{place:,}" for place in places]
    text = listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"
    return _AT[curve.axis].format(text).replace("with 1 streams", "with 1 stream")


def _listed(some: Sequence[Ratio]) -> str:
    return ", ".join(f"{_times(each)} at {each.place:,}" for each in some)


def _times(ratio: Ratio) -> str:
    return f"{ratio.interval.estimate:.2f} times"
