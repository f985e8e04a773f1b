"""Table of all plots: their cards, read-outs and curves. Titles are translated when they are shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from launcher.gui.plots.asides import Aside, PlotState, drafts_aside, memory_aside, rate_aside, throttling_aside
from launcher.gui.translation import mark

if TYPE_CHECKING:
    from launcher.monitor.monitor import MonitorSnapshot

POSITIONS = 8
"""Draft positions with a curve each. Longer drafts cannot be set."""
MEAN_LENGTH = "mean_accepted_tokens"
_GIB_PER_MIB = 1 / 1_024


def position_name(position: int) -> str:
    """Return the series name of a draft position, counted from 1."""
    return f"accepted_at_{position}_percent"


def read_values(sample: MonitorSnapshot) -> dict[str, float | None]:
    """Return the values of all series at one moment: the readings, and the figures of the drafts."""
    values = {name: reading.value for name, reading in sample.readings.items()}
    if sample.acceptance is not None:
        values[MEAN_LENGTH] = sample.acceptance.mean_length
        shares = sample.acceptance.rates_by_position[:POSITIONS]
        values |= {position_name(n): 100 * share for n, share in enumerate(shares, 1)}
    return values


@dataclass(frozen=True, slots=True)
class Quantity:
    """One series and its display.

    `scale` is the factor from the values of the series `name` to `unit`. A read-out reserves the width of the text
    `widest`; with `keeps_last` it shows the last known value with its age. With `of_server` the values belong to the
    running server, else to the machine. `colour` is a theme role; each further `draft_position` (from 1; 0: none) has
    a lighter shade of it.

    `axis`: "left" has labels in `unit`; "right" goes to 100 % and has a label at its end only; "share" is the left axis
    in percent of the series `reference`, or of the curve's own highest value. `stands_for` names a series in whose
    place this one is drawn while that one has no value.
    """

    name: str
    title: str
    unit: str
    digits: int = 0
    colour: str = "secondary"
    widest: str = "000"
    scale: float = 1.0
    keeps_last: bool = False
    of_server: bool = False
    draft_position: int = 0
    dashed: bool = False
    axis: Literal["left", "right", "share"] = "left"
    reference: str = ""
    stands_for: str = ""

    def format_value(self, value: float) -> str:
        """Return a value as text without its unit."""
        return f"{value * self.scale:,.{self.digits}f}"


@dataclass(frozen=True, slots=True)
class Plot:
    """One card: read-outs over curves. `top` is the upper end of the left axis, None to follow the values.

    `least` is then the lowest that the end can be. `cursor_only` lists further series for the cursor read-out,
    `references` the reference lines by their names in RateReferences. `aside` makes the text at the right of the
    read-outs; None leaves it as it is. `height` is the card's share of the panel. The card is shown only on a machine
    with a GPU (`with_gpu` True), only on one without (False), or on any (None).
    """

    name: str
    title: str
    read_outs: tuple[Quantity, ...]
    curves: tuple[Quantity, ...]
    unit: str
    top: float | None = None
    least: float = 10.0
    cursor_only: tuple[Quantity, ...] = ()
    references: tuple[str, ...] = ()
    aside: Callable[[PlotState], Aside | None] | None = None
    height: int = 3
    with_gpu: bool | None = None

    @property
    def of_server(self) -> bool:
        """Whether all read-outs belong to the running server."""
        return all(quantity.of_server for quantity in self.read_outs)

    @property
    def has_right_axis(self) -> bool:
        """Whether a curve is drawn to the right axis."""
        return any(curve.axis == "right" for curve in self.curves)


_RATE = Quantity(
    "tokens_per_second", mark("Tokens per second"), "t/s", 1, "rate", "0,000.0", keeps_last=True, of_server=True
)
_ACCEPTANCE = Quantity(
    "acceptance_percent", mark("Draft acceptance"), "%", 1, "acceptance", "100.0", keeps_last=True, of_server=True
)
_POSITION_RATES = tuple(
    Quantity(position_name(n), mark("Position {n}"), "%", 0, "acceptance", draft_position=n)
    for n in range(1, POSITIONS + 1)
)
_LENGTH = Quantity(MEAN_LENGTH, mark("Mean accepted length"), mark("tokens"), 2)
_TEMPERATURE = Quantity("gpu_temperature_c", mark("Temperature"), "°C", 0, "temperature", "00")
_POWER = Quantity("gpu_power_w", mark("Power"), "W", 0, "power", "000", axis="share", reference="gpu_power_limit_w")
_CLOCK = Quantity("gpu_clock_mhz", mark("Clock"), "MHz", 0, "clock", "0,000", axis="share")
_SERVER_VRAM = Quantity(
    "engine_vram_mib", mark("VRAM, this server"), "GiB", 1, "ours", "00.0", _GIB_PER_MIB, of_server=True
)
_OTHER_VRAM = Quantity("others_vram_mib", mark("Other programs"), "GiB", 1, "others", "00.0", _GIB_PER_MIB)
_VRAM = Quantity(
    "vram_used_mib", mark("VRAM in use"), "GiB", 1, "others", "00.0", _GIB_PER_MIB, stands_for="engine_vram_mib"
)
_VRAM_TOTAL = Quantity("vram_total_mib", mark("VRAM in total"), "GiB", 1, "limit", scale=_GIB_PER_MIB, dashed=True)
_GPU_USE = Quantity("gpu_use_percent", mark("GPU use"), "%", 0, "power", "100", axis="right")
_CPU = Quantity("host_cpu_percent", mark("Processor"), "%", 0, "power", "100", axis="right")
_RAM = Quantity("host_memory_used_mib", mark("Memory in use"), "GiB", 1, "others", "00.0", _GIB_PER_MIB)
_SERVER_RAM = Quantity(
    "engine_memory_mib", mark("Memory, this server"), "GiB", 1, "ours", "00.0", _GIB_PER_MIB, of_server=True
)
_RAM_TOTAL = Quantity(
    "host_memory_total_mib", mark("Memory in total"), "GiB", 1, "limit", scale=_GIB_PER_MIB, dashed=True
)

PLOTS = (
    Plot(
        "rate", mark("Tokens per second"), (_RATE,), (_RATE,), "t/s",
        height=4, references=("limit", "baseline"), aside=rate_aside,
    ),
    Plot(
        "acceptance", mark("Draft acceptance"), (_ACCEPTANCE,), (*reversed(_POSITION_RATES), _ACCEPTANCE), "%",
        top=100.0, cursor_only=(_LENGTH,), aside=drafts_aside,
    ),
    Plot(
        "gpu", mark("Temperature, power and clock"), (_TEMPERATURE, _POWER, _CLOCK), (_CLOCK, _POWER, _TEMPERATURE),
        "°C, %", top=100.0, aside=throttling_aside,
    ),
    Plot(
        "vram", mark("VRAM and GPU use"), (_SERVER_VRAM, _OTHER_VRAM, _GPU_USE),
        (_GPU_USE, _VRAM_TOTAL, _VRAM, _OTHER_VRAM, _SERVER_VRAM), "GiB",
        least=1.0, aside=partial(memory_aside, used="vram_used_mib", total="vram_total_mib"), with_gpu=True,
    ),
    Plot(
        "host", mark("Processor and memory"), (_SERVER_RAM, _RAM, _CPU), (_CPU, _RAM_TOTAL, _RAM, _SERVER_RAM), "GiB",
        least=1.0, aside=partial(memory_aside, used="host_memory_used_mib", total="host_memory_total_mib"),
        with_gpu=False,
    ),
)  # fmt: skip
"""The cards of the panel, from top to bottom."""

GPU_NAMES = ("gpu_temperature_c", "gpu_power_w", "gpu_clock_mhz", "vram_used_mib", "gpu_use_percent")
"""A GPU is present once one of these has a value."""


def exported_quantities() -> tuple[Quantity, ...]:
    """Return all recorded series once each, in the order of the cards."""
    by_name = {
        each.name: each for plot in PLOTS for each in (*plot.read_outs, *reversed(plot.curves), *plot.cursor_only)
    }
    return tuple(by_name.values())
