"""The declarations of all settings: what each is called, what it may be, and when it applies."""

from dataclasses import dataclass
from typing import Literal

from launcher.base.paths import MODELS_VARIABLE
from launcher.settings_file import Value

Kind = Literal["choice", "number", "switch", "folder"]
Applies = Literal["now", "next window", "next download", "next login"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `title`, `sentence`, `group` and the words of `choices` are English, for faces to translate.

    `name` is TABLE.KEY of the file. `choices` are values with their words, `least`, `most` and `step` the limits of a
    number in `unit`. `variable` is the environment's name for it, which goes before the file. `stored` is False for
    what the system itself keeps.
    """

    name: str
    group: str
    title: str
    sentence: str
    kind: Kind
    default: Value
    applies: Applies = "now"
    choices: tuple[tuple[str, str], ...] = ()
    least: int = 0
    most: int = 0
    step: int = 1
    unit: str = ""
    variable: str = ""
    stored: bool = True


LANGUAGE, THEME, TEXT_SCALE = "window.language", "window.theme", "window.text_scale"
NOTIFICATIONS, LIMIT, CONNECTIONS = "window.notifications", "downloads.limit", "downloads.connections"
MODELS_FOLDER, AT_LOGIN = "models.folder", "server.at_login"
SYSTEM = "system"

SETTINGS = (
    Setting(
        LANGUAGE,
        "Window",
        "Language",
        "The language of the window. What a translation lacks is shown in English.",
        "choice",
        SYSTEM,
        "next window",
        ((SYSTEM, "As the system"), ("en", "English"), ("zh_CN", "简体中文")),
    ),
    Setting(
        THEME,
        "Window",
        "Theme",
        "Light or dark, or as the desktop has it, also when that changes.",
        "choice",
        SYSTEM,
        "now",
        ((SYSTEM, "As the system"), ("light", "Light"), ("dark", "Dark")),
    ),
    Setting(
        TEXT_SCALE,
        "Window",
        "Text size",
        "The size of all text, and of what is laid out around it.",
        "number",
        100,
        "next window",
        least=80,
        most=200,
        step=5,
        unit="%",
    ),
    Setting(
        NOTIFICATIONS,
        "Window",
        "Notifications",
        "Says from the tray what is ready, failed or downloaded, while the window is not in front.",
        "switch",
        True,
    ),
    Setting(
        MODELS_FOLDER,
        "Models",
        "Folder for models",
        "Where downloads go, and where models are looked for. What lies in the folder before is not moved.",
        "folder",
        "",
        "next download",
        variable=MODELS_VARIABLE,
    ),
    Setting(
        LIMIT,
        "Downloads",
        "Speed of downloads",
        "A download is not faster than this; 0 is no limit.",
        "number",
        0,
        "next download",
        most=200,
        unit="MB/s",
    ),
    Setting(
        CONNECTIONS,
        "Downloads",
        "Connections of a download",
        "The most that are opened at once to one server; more are only used where they are faster.",
        "number",
        8,
        "next download",
        least=1,
        most=16,
    ),
    Setting(
        AT_LOGIN,
        "Server",
        "Serve from login on",
        "Starts the model that was served last when you log in. No window opens.",
        "switch",
        False,
        "next login",
        stored=False,
    ),
)
"""In the order in which they are shown."""
