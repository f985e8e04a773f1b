"""Charts as files: painted by a process of its own, from measurements of each kind."""

import csv
import io
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.app.measuring.chart_files import check_chart_files, write_charts
from launcher.base.codec import from_json, to_json
from launcher.base.errors import BadOption
from launcher.tuning.chart import Chart, build_chart
from launcher.tuning.report_export import as_csv, as_markdown
from tests.tuning.test_session_file import OFF, ON, SESSION, run

POINT = {"low": None, "high": None, "n": 1}
CURVE = replace(
    SESSION,
    kind="curve",
    result={
        "axis": "fill",
        "series": ["no MTP", "draft 2"],
        "sentence": "Draft 2 is faster at every fill.",
        "points": [
            {
                "series": name,
                "at": at,
                "tokens_per_second": {"estimate": speed, "low": speed - 2, "high": speed + 2, "n": 3},
                "prefill_per_second": 900.0 - at / 100,
                "first_token_s": 0.5 + at / 1_000,
                "acceptance": None,
                "power_w": None,
                "cost": {"per_million_tokens": 0.25},
                "replies": 3,
                "why": None,
            }
            for name, first in (("no MTP", 50.0), ("draft 2", 70.0))
            for at, speed in ((0, first), (40_000, first / 2))
        ],
        "ratios": [{"series": "draft 2", "at": 0, "estimate": 1.4, **POINT}],
    },
)


def test_a_chart_has_every_axis_of_a_curve() -> None:
    chart = build_chart(CURVE)
    assert [(panel.title, panel.unit) for panel in chart.panels] == [
        ("Generation", "tokens/s"),
        ("Reading the prompt", "tokens/s"),
        ("Time to the first token", "s"),
    ]
    assert chart.axis == "tokens in the context"
    assert chart.ticks == ((0.0, "0"), (40_000.0, "40K"))
    (off, on) = chart.panels[0].series
    assert (off.name, on.name) == ("no MTP", "draft 2")
    assert [(point.x, point.y, point.low) for point in on.points] == [(0.0, 70.0, 68.0), (40_000.0, 35.0, 33.0)]
    assert from_json(Chart, to_json(chart)) == chart


def test_an_interval_wider_than_the_value_is_left_out() -> None:
    points = [dict(point) for point in CURVE.result["points"]]
    points[0]["tokens_per_second"] = {"estimate": 50.0, "low": 1.0, "high": 400.0, "n": 2}
    wide = replace(CURVE, result={**CURVE.result, "points": points})
    first, second = build_chart(wide).panels[0].series[0].points
    assert (first.y, first.low, first.high) == (50.0, None, None)
    assert second.low is not None
    assert "50.0 (too few runs for limits)" in as_markdown(wide)


def test_a_curve_is_exported_with_every_axis() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(CURVE))))
    assert [(row["axis"], row["at"], row["series"]) for row in rows[:2]] == [
        ("fill", "0", "no MTP"),
        ("fill", "40000", "no MTP"),
    ]
    last = rows[2]
    assert (last["series"], last["tokens_per_second"], last["low"], last["times"]) == ("draft 2", "70.0", "68.0", "1.4")
    assert (last["prefill_per_second"], last["first_token_s"]) == ("900.0", "0.5")
    assert last["cost_per_million_tokens"] == "0.25"
    text = as_markdown(CURVE)
    assert "| 0 | draft 2 | 70.0 ± 2.0 | 1.40 |" in text
    assert "AGAINST THE BASELINE" not in text  # means over all places say nothing


def test_forecasts_of_a_tune_are_shown_where_nothing_was_measured() -> None:
    forecasts = [{"draft": draft, "value": 60.0, "low": 50.0, "high": 70.0} for draft in (2, 3)]
    tuned = replace(SESSION, result={"forecasts": forecasts, "shown": {"draft": 2, "kv": "q8_0"}, "unit": "tokens/s"})
    chart = build_chart(tuned)
    points = {point.x: point.measured for series in chart.panels[0].series for point in series.points}
    assert points == {0.0: True, 2.0: True, 3.0: False}
    assert "rings are forecasts" in chart.notes[-1]


def test_a_tune_for_another_goal_begins_with_the_panel_of_that_goal() -> None:
    forecasts = [{"draft": draft, "value": 9.0 - draft, "low": 5.0, "high": 10.0} for draft in (0, 2)]
    chart = build_chart(replace(SESSION, result={"forecasts": forecasts, "unit": "s per task"}))
    assert [panel.title for panel in chart.panels][:2] == ["Time of a task", "Generation"]
    assert [(point.x, point.y, point.measured) for point in chart.panels[0].series[0].points] == [
        (0, 9.0, False),
        (2, 7.0, False),
    ]


def test_each_workload_of_a_tune_has_a_series() -> None:
    runs = [
        replace(run(speed, settings), prompt=f"{name}: one")
        for name, speeds in (("code", (50.0, 80.0)), ("prose", (50.0, 40.0)))
        for settings, speed in zip((OFF, ON), speeds, strict=True)
    ]
    result = {
        "sentence": "Draft 2 for both. Draft 2 for code. MTP off for prose.",
        "overall": "Draft 2 for both.",
        "workloads": [{"workload": "code"}, {"workload": "prose"}],
    }
    chart = build_chart(replace(SESSION, runs=tuple(runs), result=result))
    assert chart.subtitle == "Draft 2 for both."
    lines = {series.name: [point.y for point in series.points] for series in chart.panels[0].series}
    assert lines == {"code": [50.0, 80.0], "prose": [50.0, 40.0]}
    long = replace(SESSION, result={"sentence": "Draft 2 is best. " + "Why so? " * 40})
    assert build_chart(long).subtitle == "Draft 2 is best."


def test_prompts_are_not_joined_by_lines_and_time_has_even_ticks() -> None:
    bench = build_chart(replace(SESSION, kind="bench", runs=(run(50.0), run(40.0, prompt="b"), run(70.0, ON))))
    assert not bench.joined
    assert [text for _, text in bench.ticks] == ["parser", "b"]
    assert [series.name for series in bench.panels[0].series] == ["MTP off", "draft 2"]
    later = [replace(run(50.0 + at, OFF), began_s=5_000.0 + 60 * at) for at in range(10)]
    endured = build_chart(replace(SESSION, kind="endure", runs=tuple(later)))
    assert endured.axis == "minutes"
    assert [text for _, text in endured.ticks] == ["0", "2", "4", "6", "8"]
    assert [panel.title for panel in endured.panels] == ["Generation"]


def test_reading_and_writing_in_tasks_of_an_agent_are_separate_series() -> None:
    task = {"seconds": 9.0, "reading_s": 2.0, "writing_s": 6.0, "reused_tokens": 90, "read_tokens": 10, "error": None}
    result = {"agent": "loop", "tasks": [task, {**task, "seconds": 10.0}, {**task, "error": "It broke."}]}
    session = replace(SESSION, kind="endure", result=result)
    chart = build_chart(session)
    assert "| 1 | 9.0 | 2.0 | 6.0 | 0 | 10 | 90 | 0 |  |" in as_markdown(session)
    assert chart.title.endswith(": tasks of a coding agent (loop)")
    seconds = {each.name: [(point.x, point.y) for point in each.points] for each in chart.panels[0].series}
    assert seconds == {
        "whole task": [(1, 9.0), (2, 10.0)],
        "writing": [(1, 6.0), (2, 6.0)],
        "reading": [(1, 2.0), (2, 2.0)],
    }


async def test_png_svg_and_html_are_written(tmp_path: Path) -> None:
    files = [tmp_path / "a.png", tmp_path / "b.svg", tmp_path / "c.html"]
    await write_charts(CURVE, files)
    assert files[0].read_bytes().startswith(b"\x89PNG")
    picture = ET.parse(files[1]).getroot()
    words = {"".join(each.itertext()).strip() for each in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {"no MTP", "draft 2", "40K", "70.0", "tokens in the context"} <= words
    page = files[2].read_text(encoding="utf-8")
    assert "<svg" in page
    assert "<td>40,000</td><td>draft 2</td><td>35.0 ± 2.0</td>" in page
    assert "<td>0.25</td>" in page
    assert "http" not in page.replace("http://www.w3.org/", "")
    with pytest.raises(BadOption, match="already exists"):
        await write_charts(CURVE, files[:1])


def test_a_file_or_measurement_without_a_chart_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="not clear from its name"):
        check_chart_files([tmp_path / "a.pdf"])
    with pytest.raises(BadOption, match="no folder"):
        check_chart_files([tmp_path / "none" / "a.png"])
    with pytest.raises(BadOption, match="no values"):
        build_chart(replace(SESSION, runs=(), result={}))
