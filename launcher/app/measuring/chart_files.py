"""Writes the chart of a measurement: as PNG and SVG by a process with the window's libraries, and as an HTML page."""

import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from launcher.app.module_process import ModuleFailed, run_module
from launcher.base.codec import encode_json
from launcher.base.errors import BadOption, LauncherError, LibraryMissing
from launcher.base.files import write_atomically
from launcher.base.messages import command_name, message
from launcher.tuning.chart import Chart, build_chart
from launcher.tuning.history_records import Session
from launcher.tuning.report_export import baseline_report, figures_table, points_table, session_facts

SUFFIXES = (".png", ".svg", ".html")
_PAINT_LIMIT_S = 120.0
_PAINTER = "launcher.gui.plots.picture"


def check_chart_files(files: Sequence[Path]) -> None:
    """Check that charts can be written to these files. Raises BadOption."""
    for file in files:
        if file.suffix.lower() not in SUFFIXES:
            raise BadOption(
                message("The format of {name} is not clear from its name.", name=file.name),
                message("End its name in .png, .svg or .html."),
            )
        if file.exists():
            raise BadOption(message("{file} already exists.", file=file), message("Give another name."))
        if not file.absolute().parent.is_dir():
            raise BadOption(
                message("There is no folder {folder}.", folder=file.absolute().parent), message("Create it first.")
            )


async def write_charts(session: Session, files: Sequence[Path]) -> None:
    """Write the chart of a measurement to files, in the formats of their suffixes.

    Raises BadOption for a measurement without values or a file that cannot be written, LibraryMissing where the
    window's libraries are missing, and OSError.
    """
    check_chart_files(files)
    chart = build_chart(session)
    with tempfile.TemporaryDirectory(prefix="mtp-launcher-") as folder:
        pictures = [Path(folder) / f"{number}{_picture_suffix(file)}" for number, file in enumerate(files)]
        await _paint_chart(chart, pictures)
        for file, picture in zip(files, pictures, strict=True):
            data = picture.read_bytes()
            if file.suffix.lower() == ".html":
                data = _make_page(session, chart, data.decode("utf-8")).encode()
            write_atomically(file, data)


def _picture_suffix(file: Path) -> str:
    suffix = file.suffix.lower()
    return ".svg" if suffix == ".html" else suffix  # a page contains its picture


async def _paint_chart(chart: Chart, files: Sequence[Path]) -> None:
    order = encode_json({"chart": chart, "files": files})
    try:
        await run_module(_PAINTER, order, limit_s=_PAINT_LIMIT_S)
    except TimeoutError:
        raise LauncherError(message("The chart was not drawn in time."), message("Try it again.")) from None
    except ModuleFailed as error:
        raise LibraryMissing(
            message("The chart cannot be drawn: {reason}.", reason=str(error).rstrip(".")),
            message("It needs the libraries of the window[; {command} names them].", command=command_name("doctor")),
        ) from error


# The HTML page.

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #14191e; background: #fff; max-width: 1064px; margin: 2em auto;
  padding: 0 1em; }
svg { width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 1.5em 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3em .8em; border-bottom: 1px solid #d9dfe5; white-space: nowrap; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2em 1em; color: #55616d; font-size: 14px; }
dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; }
"""


def _make_page(session: Session, chart: Chart, svg: str) -> str:
    """Return a page that needs no other file: the chart, its figures as a table, and where they were measured."""
    picture = svg[svg.index("<svg") :]
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in session_facts(session).items())
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(chart.title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style></head>\n<body>\n{picture}\n"
        f'<div class="scroll">{_make_table(_list_figures(session))}</div>\n<dl>{facts}</dl>\n</body></html>\n'
    )


def _list_figures(session: Session) -> list[tuple[str, ...]]:
    """Return the figures of a measurement as rows, the head first."""
    return points_table(session) or figures_table(baseline_report(session))


def _make_table(rows: Sequence[Sequence[str]]) -> str:
    head, *others = rows
    cells = "".join(f"<th>{escape(cell.capitalize())}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in others)
    return f"<table><thead><tr>{cells}</tr></thead>\n<tbody>{body}</tbody></table>"
