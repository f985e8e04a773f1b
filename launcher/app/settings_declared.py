"""Declarations of all app settings: names, valid values, and when a change applies."""

from dataclasses import dataclass
from typing import Literal

from launcher.app.settings_file import Value
from launcher.base.messages import LANGUAGES, mark
from launcher.base.paths import MODELS_VARIABLE

Kind = Literal["choice", "number", "switch", "folder", "text"]
Applies = Literal["now", "next window", "next download", "next login"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `title`, `sentence`, `group` and the texts of `choices` are English, for faces to translate.

    `name` is TABLE.KEY of the file. `choices` are pairs of value and text; those of a number are valid beside its
    range. `least`, `most` and `step` are the range of a number in `unit`; with a whole `step` it is a whole number.
    `most` is also the maximum length of a text in characters. `variable` is the environment variable that overrides the
    file. `stored` is False for what the system itself keeps.
    """

    name: str
    group: str
    title: str
    sentence: str
    kind: Kind
    default: Value
    applies: Applies = "now"
    choices: tuple[tuple[str, str], ...] = ()
    least: float = 0
    most: float = 0
    step: float = 1
    unit: str = ""
    variable: str = ""
    stored: bool = True

    @property
    def whole(self) -> bool:
        """Whether it is a whole number."""
        return self.kind == "number" and isinstance(self.step, int)

    @property
    def limits(self) -> str:
        """Valid values in words. Empty where the kind explains them."""
        named = [each for each, _ in self.choices]
        if self.kind == "number":
            least, most = (f"{each:,}" if isinstance(each, int) else f"{each:g}" for each in (self.least, self.most))
            numbers = f"from {least} to {most} {self.unit}".strip()
            return ", or ".join([f"{'a whole' if self.whole else 'a'} number {numbers}", *named])
        if self.kind == "text":
            return f"a text of up to {self.most:,} characters"
        return f"one of {', '.join(named)}" if named else ""


LANGUAGE, THEME, TEXT_SCALE = "window.language", "window.theme", "window.text_scale"
MOTION, CLOSE = "window.motion", "window.close"
NOTIFICATIONS, LIMIT, CONNECTIONS = "window.notifications", "downloads.limit", "downloads.connections"
MODELS_FOLDER, AT_LOGIN, APPLY = "models.folder", "server.at_login", "server.apply"
ADVICE = "server.advice"
TEMPERATURE, TOP_K, TOP_P, MIN_P = "chat.temperature", "chat.top_k", "chat.top_p", "chat.min_p"
MAX_TOKENS, THINKING, SYSTEM_PROMPT = "chat.max_tokens", "chat.thinking", "chat.system_prompt"
KEEP = "chat.keep"
WEEKLY_CHECK = "updates.weekly"
SYSTEM, SERVER, NONE, ON, OFF = "system", "server", "none", "on", "off"
ASK, TRAY, QUIT = "ask", "tray", "quit"
FINISH, CANCEL = "finish", "cancel"
_AS_SERVER = (SERVER, mark("As the server has it"))

SETTINGS = (
    Setting(
        LANGUAGE,
        mark("Window"),
        mark("Language"),
        mark("The language of the window. What a translation lacks is shown in English."),
        "choice",
        SYSTEM,
        "next window",
        ((SYSTEM, mark("As the system")), *LANGUAGES.items()),
    ),
    Setting(
        THEME,
        mark("Window"),
        mark("Theme"),
        mark("Light or dark, or as the desktop has it, also when that changes."),
        "choice",
        SYSTEM,
        "now",
        ((SYSTEM, mark("As the system")), ("light", mark("Light")), ("dark", mark("Dark"))),
    ),
    Setting(
        TEXT_SCALE,
        mark("Window"),
        mark("Text size"),
        mark("The size of all text, and of what is laid out around it."),
        "number",
        100,
        "next window",
        least=80,
        most=200,
        step=5,
        unit="%",
    ),
    Setting(
        MOTION,
        mark("Window"),
        mark("Motion"),
        mark("As the system asks; or off: the text cursor does not blink, and nothing is animated."),
        "choice",
        SYSTEM,
        "now",
        ((SYSTEM, mark("As the system")), (OFF, mark("Off"))),
    ),
    Setting(
        CLOSE,
        mark("Window"),
        mark("Closing the window"),
        mark("Quitting stops the server. Where the system has no tray, nothing can be served without the window."),
        "choice",
        ASK,
        "now",
        ((ASK, mark("Ask while a model is served")), (TRAY, mark("Keep serving from the tray")), (QUIT, mark("Quit"))),
    ),
    Setting(
        NOTIFICATIONS,
        mark("Window"),
        mark("Notifications"),
        mark("Says from the tray what is ready, failed or downloaded, while the window is not in front."),
        "switch",
        True,
    ),
    Setting(
        MODELS_FOLDER,
        mark("Models"),
        mark("Folder for models"),
        mark("Where downloads go, and where models are looked for. What lies in the folder before is not moved."),
        "folder",
        "",
        "next download",
        variable=MODELS_VARIABLE,
    ),
    Setting(
        LIMIT,
        mark("Downloads"),
        mark("Speed of downloads"),
        mark("A download is not faster than this."),
        "number",
        NONE,
        "next download",
        ((NONE, mark("No limit")),),
        least=1,
        most=10_000,
        unit="MB/s",
    ),
    Setting(
        CONNECTIONS,
        mark("Downloads"),
        mark("Connections of a download"),
        mark("The most that are opened at once to one server; more are only used where they are faster."),
        "number",
        8,
        "next download",
        least=1,
        most=16,
    ),
    Setting(
        AT_LOGIN,
        mark("Server"),
        mark("Serve from login on"),
        mark("Starts the model that was served last when you log in. No window opens."),
        "switch",
        False,
        "next login",
        stored=False,
    ),
    Setting(
        APPLY,
        mark("Server"),
        mark("Applying other settings"),
        mark(
            "Replies that run when the window restarts the server may end first, for up to two minutes, or are cut off."
        ),
        "choice",
        FINISH,
        "now",
        ((FINISH, mark("Finish replies first")), (CANCEL, mark("Cancel replies"))),
    ),
    Setting(
        ADVICE,
        mark("Server"),
        mark("Advice from use"),
        mark(
            "Counts tokens and accepted drafts while you use a server, and says when another draft length would have "
            "been faster. Only these counts are kept, on this computer."
        ),
        "switch",
        True,
    ),
    Setting(
        TEMPERATURE,
        mark("Chat"),
        mark("Temperature"),
        mark("How freely tokens are drawn; 0 always takes the likeliest."),
        "number",
        SERVER,
        "now",
        (_AS_SERVER,),
        most=2.0,
        step=0.05,
    ),
    Setting(
        TOP_K,
        mark("Chat"),
        mark("Top-k"),
        mark("Only this many of the likeliest tokens are drawn from; 0 is all."),
        "number",
        SERVER,
        "now",
        (_AS_SERVER,),
        most=1_000,
    ),
    Setting(
        TOP_P,
        mark("Chat"),
        mark("Top-p"),
        mark("Only the likeliest tokens that make up this share are drawn from."),
        "number",
        SERVER,
        "now",
        (_AS_SERVER,),
        most=1.0,
        step=0.05,
    ),
    Setting(
        MIN_P,
        mark("Chat"),
        mark("Min-p"),
        mark("Only tokens at least this likely, compared with the likeliest, are drawn."),
        "number",
        SERVER,
        "now",
        (_AS_SERVER,),
        most=1.0,
        step=0.01,
    ),
    Setting(
        MAX_TOKENS,
        mark("Chat"),
        mark("Token limit"),
        mark("A reply ends after this many tokens."),
        "number",
        SERVER,
        "now",
        (_AS_SERVER,),
        least=1,
        most=1_000_000,
    ),
    Setting(
        THINKING,
        mark("Chat"),
        mark("Thinking"),
        mark("Whether the model thinks before it replies, where its template has a switch for it."),
        "choice",
        SERVER,
        "now",
        (_AS_SERVER, (ON, mark("On")), (OFF, mark("Off"))),
    ),
    Setting(
        SYSTEM_PROMPT,
        mark("Chat"),
        mark("System prompt"),
        mark("What the model is told before a conversation."),
        "text",
        "",
        "next window",
        most=20_000,
    ),
    Setting(
        KEEP,
        mark("Chat"),
        mark("Keep conversations"),
        mark("Off: conversations of the window are written nowhere, and those kept before are not shown."),
        "switch",
        True,
        "next window",
    ),
    Setting(
        WEEKLY_CHECK,
        mark("Updates"),
        mark("Look for newer versions"),
        mark("Asks once a week, when the window opens, whether there is one. Nothing about you is sent or installed."),
        "switch",
        True,
        "next window",
    ),
)
"""All settings, in display order."""
