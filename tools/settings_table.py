"""Write docs/settings.md from the declarations: `python -m tools.settings_table`."""

from itertools import groupby
from pathlib import Path

from launcher.app.settings_declared import SETTINGS, Setting

DOCUMENT = Path(__file__).parents[1] / "docs" / "settings.md"
_INTRO = """# Settings

Made by `just generate` from launcher/app/settings_declared.py.

The window's Settings page and `mtp-launcher settings` show and change the same settings. They are saved in
`settings.toml` in the config folder (`mtp-launcher settings` prints the path), which you may edit: `window.theme`
is the key `theme` under `[window]`. Missing settings have their default; unknown keys are left in place, and an
invalid value is reported and ignored. A damaged file is kept as `.bad`.

The command line overrides environment variables, and these override the file. Sharing with the network is not a
setting: see [security.md](security.md). The hub's token is read from where its own tools store it, or from
`HF_TOKEN`; it is never shown or saved here.
"""
_APPLIES = {
    "now": "immediately",
    "next window": "in the next window",
    "next download": "to the next download",
    "next login": "at the next login",
}


def render_document() -> str:
    """Return the text of the document."""
    parts = [_INTRO]
    for group, declared in groupby(SETTINGS, key=lambda each: each.group):
        parts.append(f"\n## {group}\n\n| name | description | values | default | applies |\n|---|---|---|---|---|\n")
        parts += [_line(each) for each in declared]
    return "".join(parts)


def _line(declared: Setting) -> str:
    description = f"{declared.title}: {declared.sentence}"
    if declared.variable:
        description += f" The environment variable `{declared.variable}` overrides it."
    values = {"switch": "on or off", "folder": "the absolute path of a folder"}.get(declared.kind, declared.limits)
    return (
        f"| `{declared.name}` | {description} | {values} | {_default_text(declared)} | {_APPLIES[declared.applies]} |\n"
    )


def _default_text(declared: Setting) -> str:
    if declared.kind == "switch":
        return "on" if declared.default else "off"
    if declared.kind == "folder":
        return "`models` in the data folder"
    unit = "" if isinstance(declared.default, str) else declared.unit
    return f"{declared.default} {unit}".strip() or "empty"


if __name__ == "__main__":
    DOCUMENT.write_text(render_document(), "utf-8", newline="\n")
    print(DOCUMENT)
