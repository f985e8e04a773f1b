"""Table of all plots: their rows, read-outs and curves. Titles are translated when they are shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.gui.plots.asides import (
    Aside,
    PlotState,
    drafts_aside,
    gpu_memory_aside,
    host_memory_aside,
    rate_aside,
    throttling_aside,
)
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

    `scale` is the factor from the values of the series `name` to `unit`. With `keeps_last` a read-out shows the last
    known value with its age. With `of_server` the values belong to the running server, else to the machine. `colour` is
    a theme role; each further `draft_position` (from 1; 0: none) has a lighter shade of it. `label` stands at the end
    of the line. `limit` names a series with the highest value that this one can have. `stands_for` names another
    series: this one is drawn in its place while the other has no value.
    """

    name: str
    title: str
    unit: str
    digits: int = 0
    colour: str = "secondary"
    scale: float = 1.0
    keeps_last: bool = False
    of_server: bool = False
    draft_position: int = 0
    label: str = ""
    limit: str = ""
    stands_for: str = ""

    def format_value(self, value: float) -> str:
        """Return a value as text without its unit, and from 1,000 on without decimals."""
        scaled = value * self.scale
        return f"{scaled:,.{0 if abs(scaled) >= 1_000 else self.digits}f}"


@dataclass(frozen=True, slots=True)
class Plot:
    """One row: a read-out beside curves.

    The read-out shows the first of `read_outs` that has a value. `cursor_only` lists further series for the cursor,
    `references` the reference lines by their names in RateReferences.

    The axis goes from `bottom` to the `limit` of the curves, else to `top`. If values lie beyond an end, the axis is
    longer, up to a multiple of `grain`. Without `top` it ends at a round number above the values, at `least` or more;
    without `bottom` both ends follow the values.

    `height` is the row's share of the panel. A `small` row has no text below its number: what `aside` returns stands at
    the end of its line. The row is shown only on a machine with a GPU (`with_gpu` True), only on one without (False),
    or on any (None); where nothing of it is known, one line says why.
    """

    name: str
    title: str
    read_outs: tuple[Quantity, ...]
    curves: tuple[Quantity, ...]
    bottom: float | None = 0.0
    top: float | None = None
    grain: float = 10.0
    least: float = 10.0
    cursor_only: tuple[Quantity, ...] = ()
    references: tuple[str, ...] = ()
    aside: Callable[[PlotState], Aside | None] | None = None
    height: int = 114
    small: bool = False
    with_gpu: bool | None = None

    @property
    def of_server(self) -> bool:
        """Whether the row belongs to the running server."""
        return self.read_outs[0].of_server


_RATE = Quantity(
    "tokens_per_second", mark("Tokens per second"), "t/s", 1, "rate", keeps_last=True, of_server=True,
    label=mark("now {value}"),
)  # fmt: skip
_ACCEPTANCE = Quantity(
    "acceptance_percent", mark("Draft acceptance"), "%", 1, "acceptance", keeps_last=True, of_server=True,
    label=mark("all {value} %"),
)  # fmt: skip
_POSITION_RATES = tuple(
    Quantity(
        position_name(n), mark("Position {n}"), "%", 0, "acceptance", draft_position=n, label=mark("{n}: {value} %")
    )
    for n in range(1, POSITIONS + 1)
)
_LENGTH = Quantity(MEAN_LENGTH, mark("Mean accepted length"), mark("tokens"), 2)
_TEMPERATURE = Quantity("gpu_temperature_c", mark("Temperature"), "°C", 0, "temperature")
_POWER = Quantity("gpu_power_w", mark("Power"), "W", 0, "power", limit="gpu_power_limit_w")
_CLOCK = Quantity("gpu_clock_mhz", mark("Clock"), "MHz", 0, "clock")
_OTHER_VRAM = Quantity(
    "others_vram_mib", mark("Other programs"), "GiB", 1, "others", _GIB_PER_MIB, label=mark("others {value}")
)
_SERVER_VRAM = Quantity(
    "engine_vram_mib", mark("VRAM, this server"), "GiB", 1, "ours", _GIB_PER_MIB, of_server=True,
    label=mark("server {value}"), limit="vram_total_mib",
)  # fmt: skip
_VRAM = Quantity(
    "vram_used_mib", mark("VRAM in use"), "GiB", 1, "others", _GIB_PER_MIB, label=mark("in use {value}"),
    limit="vram_total_mib", stands_for="engine_vram_mib",
)  # fmt: skip
_VRAM_TOTAL = Quantity("vram_total_mib", mark("VRAM in total"), "GiB", 1, "limit", scale=_GIB_PER_MIB)
_GPU_USE = Quantity("gpu_use_percent", mark("GPU use"), "%", 0, "power")
_CPU = Quantity("host_cpu_percent", mark("Processor"), "%", 0, "power")
_RAM = Quantity(
    "host_memory_used_mib", mark("Memory in use"), "GiB", 1, "others", _GIB_PER_MIB,
    label=mark("in use {value}"), limit="host_memory_total_mib",
)  # fmt: skip
_SERVER_RAM = Quantity(
    "engine_memory_mib", mark("Memory, this server"), "GiB", 1, "ours", _GIB_PER_MIB, of_server=True,
    label=mark("server {value}"), limit="host_memory_total_mib",
)  # fmt: skip
_RAM_TOTAL = Quantity("host_memory_total_mib", mark("Memory in total"), "GiB", 1, "limit", scale=_GIB_PER_MIB)

PLOTS = (
    Plot(
        "rate", mark("Tokens per second"), (_RATE,), (_RATE,),
        references=("limit", "baseline"), aside=rate_aside, height=178,
    ),
    Plot(
        "acceptance", mark("Draft acceptance"), (_ACCEPTANCE,), (*reversed(_POSITION_RATES), _ACCEPTANCE),
        bottom=40.0, top=100.0, grain=20.0, cursor_only=(_LENGTH,), aside=drafts_aside,
    ),
    Plot(
        "vram", mark("VRAM"), (_SERVER_VRAM, _VRAM), (_VRAM, _OTHER_VRAM, _SERVER_VRAM), least=1.0,
        cursor_only=(_VRAM_TOTAL, _GPU_USE), aside=gpu_memory_aside, height=122, with_gpu=True,
    ),
    Plot(
        "temperature", mark("Temperature"), (_TEMPERATURE,), (_TEMPERATURE,),
        bottom=40.0, top=90.0, small=True, height=45,
    ),
    Plot("power", mark("Power"), (_POWER,), (_POWER,), least=50.0, small=True, height=45, with_gpu=True),
    Plot(
        "clock", mark("Clock"), (_CLOCK,), (_CLOCK,),
        bottom=None, grain=300.0, aside=throttling_aside, small=True, height=45, with_gpu=True,
    ),
    Plot(
        "host", mark("Memory"), (_SERVER_RAM, _RAM), (_RAM, _SERVER_RAM), least=1.0,
        cursor_only=(_RAM_TOTAL,), aside=host_memory_aside, height=122, with_gpu=False,
    ),
    Plot("processor", mark("Processor"), (_CPU,), (_CPU,), top=100.0, small=True, height=45, with_gpu=False),
)  # fmt: skip
"""The rows of the panel, from top to bottom."""

GPU_NAMES = ("gpu_temperature_c", "gpu_power_w", "gpu_clock_mhz", "vram_used_mib", "gpu_use_percent")
"""A GPU is present once one of these has a value."""


def exported_quantities() -> tuple[Quantity, ...]:
    """Return all recorded series once each, in the order of the rows."""
    by_name = {
        each.name: each for plot in PLOTS for each in (*plot.read_outs, *reversed(plot.curves), *plot.cursor_only)
    }
    return tuple(by_name.values())
