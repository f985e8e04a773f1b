"""Write docs/settings.md from the declarations: `python -m tools.settings_table`."""

from itertools import groupby
from pathlib import Path

from launcher.app.settings_declared import SETTINGS, Setting

DOCUMENT = Path(__file__).parents[1] / "docs" / "settings.md"
_INTRO = """# Settings

Made by `just generate` from launcher/app/settings_declared.py.

The window's Settings page and `mtp-launcher settings` show and change the same. They are kept in `settings.toml` in
the config folder (`mtp-launcher settings` says where), which may be edited by hand: `window.theme` is the
key `theme` under `[window]`. What is not named there is as usual; unknown keys are left in place, and a value
that cannot be used is said and not used. A damaged file is kept as `.bad`.

What a command line says goes before the environment, and that before the file. Sharing with the network is no setting:
see [security.md](security.md). The hub's token is read from where its own tools keep it, or from `HF_TOKEN`; it is
never shown nor kept here.
"""
_APPLIES = {
    "now": "at once",
    "next window": "to the next window",
    "next download": "to the next download",
    "next login": "at the next login",
}


def rendered() -> str:
    """Return the text of the document."""
    parts = [_INTRO]
    for group, declared in groupby(SETTINGS, key=lambda each: each.group):
        parts.append(f"\n## {group}\n\n| name | what it is | values | as usual | applies |\n|---|---|---|---|---|\n")
        parts += [_line(each) for each in declared]
    return "".join(parts)


def _line(declared: Setting) -> str:
    what = f"{declared.title}: {declared.sentence}"
    if declared.variable:
        what += f" The environment's `{declared.variable}` goes before it."
    values = {"switch": "on or off", "folder": "the whole path of a folder"}.get(declared.kind, declared.limits)
    return f"| `{declared.name}` | {what} | {values} | {_usual(declared)} | {_APPLIES[declared.applies]} |\n"


def _usual(declared: Setting) -> str:
    if declared.kind == "switch":
        return "on" if declared.default else "off"
    if declared.kind == "folder":
        return "`models` in the data folder"
    unit = "" if isinstance(declared.default, str) else declared.unit
    return f"{declared.default} {unit}".strip() or "empty"


if __name__ == "__main__":
    DOCUMENT.write_text(rendered(), "utf-8", newline="\n")
    print(DOCUMENT)
