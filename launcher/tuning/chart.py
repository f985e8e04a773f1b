"""Chart of a measurement: panels with series over one axis, as data that `gui/plots/picture.py` paints."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import Any

from launcher.base.errors import BadOption
from launcher.base.messages import command_name, mark, message
from launcher.base.text import one_line
from launcher.models.drafters import MTP_OFF, is_drafting
from launcher.tuning.history_records import Session
from launcher.tuning.records import Run, RunSettings
from launcher.tuning.report import Report, ReportRow, common_settings, settings_line
from launcher.tuning.report_export import baseline_report, session_facts
from launcher.tuning.space import DRAFT, settings_key
from launcher.tuning.statistics import Figure

_MOST_SERIES = 5
_LONG_S = 180.0
"""Seconds from which on an axis of time is in minutes."""
_MOST_SUBTITLE = 220


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """A value at `x`, with its 95 % interval if it is known. `measured` is False for a forecast."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    measured: bool = True


def make_point(x: float, y: float, low: float | None, high: float | None) -> ChartPoint:
    """Return a measured point. An interval that is wider than the value is left out, because there were too few
    runs."""
    if low is None or high is None or high - low > y:
        return ChartPoint(x, y)
    return ChartPoint(x, y, low, high)


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """A named line of points in the order of `x`. `colour` is its number among the chart's series."""

    name: str
    points: tuple[ChartPoint, ...]
    colour: int = 0


@dataclass(frozen=True, slots=True)
class ChartPanel:
    """A plot of series with one unit. Its axis begins at 0."""

    title: str
    unit: str
    series: tuple[ChartSeries, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: panels one below the other over the same axis.

    `ticks` are the labels of the axis at their x. `subtitle` is the result in a sentence, `notes` where it was
    measured. `joined` is whether lines join the points of a series.
    """

    title: str
    subtitle: str
    axis: str
    ticks: tuple[tuple[float, str], ...]
    panels: tuple[ChartPanel, ...]
    notes: tuple[str, ...]
    joined: bool = True


def build_chart(session: Session) -> Chart:
    """Return the chart of a measurement. Raises BadOption if it has no value to show."""
    build = {"curve": _curve_panels, "tune": _draft_panels, "endure": _time_panels}.get(session.kind, _prompt_panels)
    axis, ticks, panels = build(session)
    panels = tuple(panel for panel in panels if any(each.points for each in panel.series))
    if not panels:
        raise BadOption(
            message("{id} has no values for a chart.", id=session.id),
            message("{command} lists the measurements.", command=command_name("history", mark("Tune"))),
        )
    model = session.environment.model.label_with_quant
    facts = session_facts(session)
    where = [facts[name] for name in ("GPU", "Processor", "System", "Engine") if name in facts]
    end = [facts[name] for name in ("Measured", "Source") if name in facts]
    points = [point for panel in panels for series in panel.series for point in series.points]
    if any(point.low is not None for point in points):
        end.append("bars are 95 % intervals, left out where too few runs give a wide one")
    if not all(point.measured for point in points):
        end.append("rings are forecasts")
    joined = axis != _PROMPT
    title = _TITLES.get(session.kind, "speed by prompt")
    if session.kind == "curve":
        title = f"speed by {axis}"
    elif session.result.get("tasks"):
        title = f"tasks of a coding agent ({session.result['agent']})"
    return Chart(
        title=f"{one_line(model)}: {title}",
        subtitle=_whole_sentences(str(session.result.get("overall") or session.result.get("sentence") or "")),
        axis=axis,
        ticks=ticks,
        panels=panels,
        notes=(one_line(", ".join(where), 400), one_line(", ".join(end), 400)),
        joined=joined,
    )


def _whole_sentences(text: str) -> str:
    """Return as many of a result's sentences as the chart has room for, at least a part of the first."""
    kept = one_line(text, len(text) + 1)
    while len(kept) > _MOST_SUBTITLE and ". " in kept:
        kept = kept.rpartition(". ")[0] + "."
    return one_line(kept, _MOST_SUBTITLE)


_PROMPT = "prompt"
_TITLES = {"tune": "speed by draft length", "endure": "speed over time"}
_Panels = tuple[str, tuple[tuple[float, str], ...], Sequence[ChartPanel]]
"""Title of the axis, its ticks, and the panels."""


def _curve_panels(session: Session) -> _Panels:
    """Return the panels of a curve: generation, reading and first token by the place on its axis."""
    points = [point for point in session.result.get("points") or () if isinstance(point, Mapping)]
    places = sorted({int(point["at"]) for point in points})
    axis = str(session.result.get("axis") or "")
    linear = axis == "fill"
    x_by_place = {place: float(place if linear else at) for at, place in enumerate(places)}

    def series_of(name: str) -> tuple[ChartSeries, ...]:
        found: dict[str, list[ChartPoint]] = {}
        for point in points:
            value, low, high = point.get(name), None, None
            if isinstance(value, Mapping):
                value, low, high = (value.get(key) for key in ("estimate", "low", "high"))
            if value is not None:
                found.setdefault(str(point["series"]), []).append(
                    make_point(x_by_place[int(point["at"])], float(value), low, high)
                )
        names = [str(name) for name in session.result.get("series") or found]
        return tuple(
            ChartSeries(each, tuple(sorted(found[each], key=lambda point: point.x)), names.index(each))
            for each in names
            if each in found
        )

    titles = {"fill": "tokens in the context", "context": "context size in tokens", "streams": "requests at a time"}
    ticks = tuple((x_by_place[place], _short_number(place)) for place in places)
    panels = (
        ChartPanel("Generation", "tokens/s", series_of("tokens_per_second")),
        ChartPanel("Reading the prompt", "tokens/s", series_of("prefill_per_second")),
        ChartPanel("Time to the first token", "s", series_of("first_token_s")),
    )
    return titles.get(axis, axis), ticks, panels


def _draft_panels(session: Session) -> _Panels:
    """Return the panels of a tune: generation by draft length, measured and forecast, and the other figures."""
    report = baseline_report(session)
    by_workload = _group_by_workload(session)
    lines = by_workload or _group_by_other_settings(report)
    drafts = sorted({row.draft for row in report.rows})
    shown = session.result.get("shown") or {}
    forecasts = {int(each["draft"]): each for each in session.result.get("forecasts") or ()}
    panels = []
    for title, unit, name in _FIGURES:
        series = []
        for colour, (label, rows) in enumerate(lines):
            points = {row.draft: _figure_point(row.draft, getattr(row, name)) for row in rows}
            is_forecast = name == "decode" and session.result.get("unit") == "tokens/s" and not by_workload
            if is_forecast and _other_settings(rows[0].settings) == _other_settings(shown):
                for draft, each in forecasts.items():
                    if points.get(draft) is None:
                        points[draft] = ChartPoint(draft, each["value"], each["low"], each["high"], measured=False)
            known = tuple(point for _, point in sorted(points.items()) if point is not None)
            series.append(ChartSeries(label, known, colour if len(lines) > 1 else 1))
        panels.append(ChartPanel(title, unit, tuple(series)))
    if goal_title := _GOAL_TITLES.get(str(session.result.get("unit"))):
        values = (
            ChartPoint(draft, each["value"], each["low"], each["high"], measured=False)
            for draft, each in sorted(forecasts.items())
        )
        panels.insert(0, ChartPanel(goal_title, session.result["unit"], (ChartSeries("", tuple(values), 1),)))
    numbers = sorted({*drafts, *forecasts})
    ticks = tuple((float(draft), str(draft) if is_drafting(draft) else MTP_OFF) for draft in numbers)
    return "draft length", ticks, panels


_GOAL_TITLES = {"s": "Time to the answer", "s per task": "Time of a task", "tokens/J": "Energy"}
"""Titles of the panel with the forecasts of a tune for another goal than tokens/s, by its unit."""
_FIGURES = (
    ("Generation", "tokens/s", "decode"),
    ("Reading the prompt", "tokens/s", "prefill"),
    ("Time to the first token", "s", "first_token_s"),
)
"""Panels of a report: title, unit, and the row's attribute."""


def _figure_point(x: float, figure: Figure | None) -> ChartPoint | None:
    return None if figure is None else make_point(float(x), figure.mean, figure.low, figure.high)


def _other_settings(settings: RunSettings) -> Any:  # noqa: ANN401 -- a key of any hashable type
    return settings_key({name: value for name, value in settings.items() if name != DRAFT})


def _group_by_other_settings(report: Report) -> list[tuple[str, list[ReportRow]]]:
    """Group the rows by their settings other than the draft length. Return the groups with the most runs, in order."""
    groups: dict[Any, list[ReportRow]] = {}
    for row in report.rows:
        groups.setdefault(_other_settings(row.settings), []).append(row)
    most = sorted(groups.values(), key=lambda rows: -sum(row.runs for row in rows))[:_MOST_SERIES]
    settings = [{name: value for name, value in rows[0].settings.items() if name != DRAFT} for rows in most]
    common = common_settings(settings)
    own = [{name: value for name, value in each.items() if name not in common} for each in settings]
    single = len(most) == 1
    return [("" if single else settings_line(each), rows) for each, rows in zip(own, most, strict=True)]


def _group_by_workload(session: Session) -> list[tuple[str, list[ReportRow]]]:
    """Return for each workload of a tune the rows of its most measured settings. They differ in draft length only."""
    lines = []
    for each in session.result.get("workloads") or ():
        name = str(each["workload"])
        part = replace(session, runs=tuple(run for run in session.runs if run.prompt.startswith(f"{name}: ")))
        if groups := _group_by_other_settings(baseline_report(part)):
            lines.append((name, groups[0][1]))
    return lines


def _prompt_panels(session: Session) -> _Panels:
    """Return the panels of a benchmark: the figures of each prompt, with a series for each set of settings."""
    report = baseline_report(session)
    prompts = list(dict.fromkeys(run.prompt for run in session.runs))
    by_key = {settings_key(row.settings): row for row in report.rows[:_MOST_SERIES]}
    groups: dict[Any, dict[str, list[Run]]] = {key: {} for key in by_key}
    for run in session.runs:
        if run.is_counted and (key := settings_key(run.settings)) in groups:
            groups[key].setdefault(run.prompt, []).append(run)
    panels = []
    for title, unit, name in (
        ("Generation", "tokens/s", "decode_rate"),
        ("Reading the prompt", "tokens/s", "prefill_rate"),
        ("Time to the first token", "s", "first_token_s"),
    ):
        series = []
        for colour, (key, by_prompt) in enumerate(groups.items()):
            figures = ((prompts.index(prompt), _figure_of(runs, name)) for prompt, runs in by_prompt.items())
            points = sorted(
                (point for at, figure in figures if (point := _figure_point(at, figure)) is not None),
                key=lambda point: point.x,
            )
            label = report.row_label(by_key[key]) if len(by_key) > 1 else ""
            series.append(ChartSeries(label, tuple(points), colour if len(groups) > 1 else 1))
        panels.append(ChartPanel(title, unit, tuple(series)))
    return _PROMPT, tuple((float(at), one_line(name, 40)) for at, name in enumerate(prompts)), panels


def _figure_of(runs: Sequence[Run], name: str) -> Figure | None:
    return Figure.from_values(getattr(run, name) for run in runs)


def _time_panels(session: Session) -> _Panels:
    """Return the panels of an endurance test: speed, temperature and power over time."""
    if tasks := session.result.get("tasks"):
        return _task_panels(tasks)
    runs = [run for run in session.runs if run.is_counted]
    if not runs:
        return "minutes", (), ()
    first_s = session.runs[0].began_s
    length_s = max(run.began_s + run.wall_s - first_s for run in runs)
    unit_s, unit = (60.0, "minutes") if length_s > _LONG_S else (1.0, "seconds")

    def panel(title: str, panel_unit: str, values: Iterator[tuple[Run, float | None]]) -> ChartPanel:
        known = [((run.began_s - first_s) / unit_s, value) for run, value in values if value is not None]
        return ChartPanel(title, panel_unit, (ChartSeries("", tuple(_thin_out(known)), 1),))

    panels = [
        panel("Generation", "tokens/s", ((run, run.decode_rate) for run in runs)),
        panel("Verification steps", "steps/s", ((run, _step_rate(run)) for run in runs)),
        panel("GPU temperature", "°C", ((run, run.temperature_c) for run in runs)),
        panel("GPU power", "W", ((run, run.power_w) for run in runs)),
    ]
    if all(run.acceptance is None for run in runs):
        del panels[1]  # every token is a step
    return unit, _even_ticks(length_s / unit_s), panels


def _task_panels(tasks: Sequence[Mapping[str, Any]]) -> _Panels:
    """Return the panels of an agent's tasks: seconds, and tokens that were read and reused, by task."""
    done = [(number, task) for number, task in enumerate(tasks, 1) if not task["error"]]

    def panel(title: str, unit: str, names: Sequence[tuple[str, str]], first_colour: int = 0) -> ChartPanel:
        series = (
            ChartSeries(label, tuple(ChartPoint(number, task.get(name) or 0.0) for number, task in done), colour)
            for colour, (label, name) in enumerate(names, first_colour)
        )
        return ChartPanel(title, unit, tuple(series))

    step = -(-len(tasks) // 12)
    ticks = tuple((float(number), str(number)) for number in range(1, len(tasks) + 1, step))
    seconds = (("whole task", "seconds"), ("writing", "writing_s"), ("reading", "reading_s"))
    tokens = (("written", "reply_tokens"), ("read", "read_tokens"))
    panels = (
        panel("Time of a task", "s", seconds),
        panel("Read and written", "tokens", tokens, 1),
        panel("Reused from the cache", "tokens", (("reused", "reused_tokens"),)),
    )
    return "task", ticks, panels


def _step_rate(run: Run) -> float | None:
    if not run.steps or not run.decode_rate:
        return None
    return run.decode_rate * run.steps / run.reply_tokens


_MOST_POINTS = 120


def _thin_out(values: Sequence[tuple[float, float]]) -> Iterator[ChartPoint]:
    """Yield at most _MOST_POINTS points: means of neighbours."""
    size = -(-len(values) // _MOST_POINTS)
    for _, group in groupby(enumerate(values), key=lambda each: each[0] // size):
        part = [value for _, value in group]
        yield ChartPoint(fmean(x for x, _ in part), fmean(y for _, y in part))


def _even_ticks(length: float) -> tuple[tuple[float, str], ...]:
    """Return ticks from 0 to a length, about six."""
    step = next((each for each in (0.1, 0.25, 0.5, 1, 2, 5, 10, 15, 30, 60, 120) if length / each <= 7), 240)
    count = int(length / step)
    return tuple((at * step, f"{at * step:g}") for at in range(count + 1))


def _short_number(number: int) -> str:
    """Return a number of tokens as people write it: 500, 2K, 40K, 128K."""
    if number and number % 1_024 == 0:
        return f"{number // 1_024}K"
    return f"{number:,}" if number < 1_000 else f"{number / 1_000:.3g}K"
