"""One HTML page with all pictures of a folder, by page and state, to look through. It needs no other files."""

import html
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PAGES = ("start", "cockpit", "tune", "models", "agents", "logs", "settings", "keys", "about")
_STATES = ("loading", "empty", "failed", "stale")
"""States in the order in which they are shown; those with content come after them."""
_SIZES = ("1000x640", "1440x900", "2560x1440")
_LANGUAGES = {"en": "English", "zh_CN": "简体中文"}
_HEAD = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>MTP Launcher</title>
<style>
:root { color-scheme: light dark; font: 14px/1.5 system-ui, sans-serif; }
body { margin: 0 24px 48px; }
header { position: sticky; top: 0; padding: 12px 0; background: Canvas; border-bottom: 1px solid GrayText; z-index: 1; }
header nav a, header label { margin-right: 12px; }
figure { display: inline-block; margin: 0 16px 16px 0; vertical-align: top; }
img { max-width: min(720px, 92vw); height: auto; border: 1px solid GrayText; }
figcaption, p { color: GrayText; }
h3 { margin: 16px 0 8px; }
</style>
<header><nav>{links}</nav><form>{choices}</form></header>
<h1>MTP Launcher: its pages and their states</h1>
<p>Speeds, replies and requests are those of the demo on the processor of this computer. The graphics card is described:
its name, its memory and its readings were written by the tool that took these pictures, and not measured. The server
that passes the check of Agents is a scripted one, because the demo calls no tools.</p>
"""
_SCRIPT = """<script>
const form = document.querySelector("form");
function show() {
  const chosen = new FormData(form);
  for (const figure of document.querySelectorAll("figure"))
    figure.hidden = ["theme", "language", "size"].some(
      (name) => chosen.get(name) !== "all" && chosen.get(name) !== figure.dataset[name]);
}
form.addEventListener("change", show);
show();
</script>
</html>
"""


class Picture(NamedTuple):
    """Content of a picture: the parts of its file name, PAGE~STATE~THEME~LANGUAGE~SIZE.png."""

    page: str
    state: str
    theme: str
    language: str
    size: str

    @property
    def file_name(self) -> str:
        """The name of its file."""
        return "~".join(self) + ".png"


def list_pictures(folder: Path) -> list[Picture]:
    """Return the pictures of a folder in the order in which they are shown."""
    found = [
        Picture(*parts) for path in folder.glob("*~*.png") if len(parts := path.stem.split("~")) == len(Picture._fields)
    ]

    def picture_order(picture: Picture) -> tuple[object, ...]:
        page = _PAGES.index(picture.page) if picture.page in _PAGES else len(_PAGES)
        state = _STATES.index(picture.state) if picture.state in _STATES else len(_STATES)
        return page, state, picture.state, picture.language, picture.theme, picture.size.zfill(9)

    return sorted(found, key=picture_order)


def write_gallery(folder: Path) -> int:
    """Write index.html of a folder's pictures. Return their number."""
    pictures = list_pictures(folder)
    links = " ".join(
        f'<a href="#{page}">{page.capitalize()}</a>' for page in dict.fromkeys(each.page for each in pictures)
    )
    page_html = (
        _HEAD.replace("{links}", links).replace("{choices}", _format_choices())
        + "".join(_format_sections(pictures))
        + _SCRIPT
    )
    (folder / "index.html").write_text(page_html, encoding="utf-8")
    return len(pictures)


def _format_choices() -> str:
    """Return the controls for theme, language and size. At first both themes are shown, in English and one size."""
    groups = {"theme": ("light", "dark"), "language": tuple(_LANGUAGES), "size": _SIZES}
    first = {"theme": "all", "language": "en", "size": "1440x900"}
    lines = []
    for name, values in groups.items():
        options = "".join(
            f'<option value="{each}"{" selected" if each == first[name] else ""}>'
            f"{_LANGUAGES.get(each, 'all' if each == 'all' else each)}</option>"
            for each in ("all", *values)
        )
        lines.append(f'<label>{name} <select name="{name}" autocomplete="off">{options}</select></label>')
    return "".join(lines)


def _format_sections(pictures: list[Picture]) -> Iterator[str]:
    """Yield the HTML of each page and state."""
    page = state = ""
    for each in pictures:
        if each.page != page:
            page, state = each.page, ""
            yield f'<h2 id="{html.escape(page)}">{html.escape(page.capitalize())}</h2>\n'
        if each.state != state:
            state = each.state
            yield f"<h3>{html.escape(state)}</h3>\n"
        name = html.escape(each.file_name)
        caption = f"{each.size}, {each.theme}, {_LANGUAGES.get(each.language, each.language)}"
        data = f'data-theme="{each.theme}" data-language="{each.language}" data-size="{each.size}"'
        alt = html.escape(f"{page}, {state}: {caption}")
        yield (
            f'<figure {data}><a href="{name}"><img src="{name}" alt="{alt}" loading="lazy"></a>'
            f"<figcaption>{caption}</figcaption></figure>\n"
        )
