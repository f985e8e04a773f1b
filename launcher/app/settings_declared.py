"""Declarations of all app settings: names, valid values, and when a change applies."""

from typing import Literal, NamedTuple

from launcher.app.settings_file import AppSettingValue
from launcher.base.messages import LANGUAGES, mark, message
from launcher.base.paths import MODELS_VARIABLE

SettingKind = Literal["choice", "number", "switch", "folder", "text"]
Applies = Literal["now", "next window", "next download", "next login"]


class Setting(NamedTuple):
    """One app setting. `title`, `sentence`, `group` and the texts of `choices` are English; the window translates them.

    `name` is TABLE.KEY of the file. `choices` are pairs of value and text; a number may be one of them or lie in its
    range. `least`, `most` and `step` are the range of a number in `unit`; with a whole `step` it is a whole number.
    The window shows `least_text` in place of `least`.
    `most` is also the maximum length of a text in characters. `variable` is the environment variable that overrides the
    file. `stored` is False for settings that the system stores. `switch_values` are what off and on mean to one that
    was a switch in earlier versions.
    """

    name: str
    group: str
    title: str
    sentence: str
    kind: SettingKind
    default: AppSettingValue
    applies: Applies = "now"
    choices: tuple[tuple[str, str], ...] = ()
    least: float = 0
    most: float = 0
    step: float = 1
    unit: str = ""
    least_text: str = ""
    variable: str = ""
    stored: bool = True
    switch_values: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """True if it is a whole number."""
        return self.kind == "number" and isinstance(self.step, int)

    @property
    def limits(self) -> str:
        """The valid values in words; empty if they follow from the kind."""
        named = [each for each, _ in self.choices]
        if self.kind == "number":
            least, most = (f"{each:,}" if isinstance(each, int) else f"{each:g}" for each in (self.least, self.most))
            unit = self.unit or None
            numbers = (
                message("a whole number from {least} to {most}[ {unit}]", least=least, most=most, unit=unit)
                if self.whole
                else message("a number from {least} to {most}[ {unit}]", least=least, most=most, unit=unit)
            )
            return message("{numbers}, or {names}", numbers=numbers, names=", ".join(named)) if named else numbers
        if self.kind == "text":
            return message("a text of up to {most:,} characters", most=self.most)
        return message("one of {names}", names=", ".join(named)) if named else ""


# Names of settings, and values of settings with choices.

LANGUAGE, THEME, TEXT_SCALE = "window.language", "window.theme", "window.text_scale"
MOTION, CLOSE = "window.motion", "window.close"
NOTIFICATIONS, DOWNLOAD_LIMIT, CONNECTIONS = "window.notifications", "downloads.limit", "downloads.connections"
READ_HEADERS, SEARCH_HUB = "models.read_headers", "models.search_hub"
MODELS_FOLDER, AT_LOGIN, APPLY = "models.folder", "server.at_login", "server.apply"
ADVICE, REQUEST_LOG = "server.advice", "server.request_log"
UNLOAD_AFTER, MEMORY_LIMIT, UNKNOWN_MODEL = "server.unload_after", "server.memory_limit", "server.unknown_model"
MEMORY_GUARD, ALLOWED_NAMES = "server.memory_guard", "server.allowed_names"
TEMPERATURE, TOP_K, TOP_P, MIN_P = "chat.temperature", "chat.top_k", "chat.top_p", "chat.min_p"
MAX_TOKENS, THINKING, SYSTEM_PROMPT = "chat.max_tokens", "chat.thinking", "chat.system_prompt"
KEEP = "chat.keep"
WEEKLY_CHECK = "updates.weekly"
CACHE_DISK, CACHE_DAYS, LEAVE_OUT = "cache.disk", "cache.keep_days", "cache.leave_out"
VALUE_SYSTEM, VALUE_SERVER, VALUE_NONE, VALUE_ON, VALUE_OFF = "system", "server", "none", "on", "off"
VALUE_ASK, VALUE_TRAY, VALUE_QUIT = "ask", "tray", "quit"
VALUE_FINISH, VALUE_CANCEL = "finish", "cancel"
VALUE_RUNNING, VALUE_REFUSE = "running", "refuse"
VALUE_RESTART = "restart"
VALUE_SUGGEST, VALUE_AUTO = "suggest", "auto"
_AS_SERVER = (VALUE_SERVER, mark("Server default"))

SETTINGS = (
    Setting(
        LANGUAGE,
        mark("Window"),
        mark("Language"),
        mark("Language of the window. Untranslated texts appear in English."),
        "choice",
        VALUE_SYSTEM,
        "now",
        ((VALUE_SYSTEM, mark("Same as system")), *LANGUAGES.items()),
    ),
    Setting(
        THEME,
        mark("Window"),
        mark("Theme"),
        mark("Light, dark, or the same as the desktop."),
        "choice",
        VALUE_SYSTEM,
        "now",
        ((VALUE_SYSTEM, mark("Same as system")), ("light", mark("Light")), ("dark", mark("Dark"))),
    ),
    Setting(
        TEXT_SCALE,
        mark("Window"),
        mark("Text size"),
        mark("Size of all text; the layout follows."),
        "number",
        100,
        "now",
        least=80,
        most=200,
        step=5,
        unit="%",
    ),
    Setting(
        MOTION,
        mark("Window"),
        mark("Motion"),
        mark("Off stops all animations and the blinking text cursor."),
        "choice",
        VALUE_SYSTEM,
        "now",
        ((VALUE_SYSTEM, mark("Same as system")), (VALUE_OFF, mark("Off"))),
    ),
    Setting(
        CLOSE,
        mark("Window"),
        mark("Closing the window"),
        mark("Quitting stops the server. On a system without a tray, closing the window always quits."),
        "choice",
        VALUE_ASK,
        "now",
        (
            (VALUE_ASK, mark("Ask while a server is running")),
            (VALUE_TRAY, mark("Keep running in the tray")),
            (VALUE_QUIT, mark("Quit")),
        ),
    ),
    Setting(
        NOTIFICATIONS,
        mark("Window"),
        mark("Notifications"),
        mark("Notifies you about ready models, failures and finished downloads while the window is in the background."),
        "switch",
        True,
    ),
    Setting(
        MODELS_FOLDER,
        mark("Models"),
        mark("Folder for models"),
        mark("Downloads are saved here, and models are found here. Files in the old folder are not moved."),
        "folder",
        "",
        "next download",
        variable=MODELS_VARIABLE,
    ),
    Setting(
        READ_HEADERS,
        mark("Models"),
        mark("Read headers from Hugging Face"),
        mark("Makes plans exact before a download. About 10 MB per file, once."),
        "choice",
        VALUE_ASK,
        "now",
        ((VALUE_ASK, mark("Ask")), (VALUE_ON, mark("Always")), (VALUE_OFF, mark("Never"))),
    ),
    Setting(
        SEARCH_HUB,
        mark("Models"),
        mark("Search on Hugging Face"),
        mark("The search on Models also looks there. It sends the words of the search."),
        "choice",
        VALUE_ASK,
        "now",
        ((VALUE_ASK, mark("Ask")), (VALUE_ON, mark("Always")), (VALUE_OFF, mark("Never"))),
    ),
    Setting(
        DOWNLOAD_LIMIT,
        mark("Downloads"),
        mark("Download speed limit"),
        mark("The most that one download may use."),
        "number",
        VALUE_NONE,
        "next download",
        ((VALUE_NONE, mark("No limit")),),
        least=1,
        most=10_000,
        unit="MB/s",
    ),
    Setting(
        CONNECTIONS,
        mark("Downloads"),
        mark("Connections per download"),
        mark("Most connections to one server. Extra ones are opened only if they make the download faster."),
        "number",
        8,
        "next download",
        least=1,
        most=16,
    ),
    Setting(
        AT_LOGIN,
        mark("Server"),
        mark("Start server at login"),
        mark("Loads the last used model when you log in, without opening a window."),
        "switch",
        False,
        "next login",
        stored=False,
    ),
    Setting(
        APPLY,
        mark("Server"),
        mark("When settings change"),
        mark("Before a restart, wait for running replies that cannot go on after it, or cut them off."),
        "choice",
        VALUE_FINISH,
        "now",
        ((VALUE_FINISH, mark("Finish replies first")), (VALUE_CANCEL, mark("Cancel replies"))),
    ),
    Setting(
        UNLOAD_AFTER,
        mark("Server"),
        mark("Unload idle models"),
        mark("Unloads a model that a request loaded, after this time without requests. 0 means never."),
        "number",
        15,
        most=10_000,
        unit="min",
    ),
    Setting(
        MEMORY_LIMIT,
        mark("Server"),
        mark("Memory for models"),
        mark("The most that all models together may take. To make room, the model used longest ago is unloaded."),
        "number",
        VALUE_NONE,
        "now",
        ((VALUE_NONE, mark("What is free")),),
        least=1,
        most=10_000_000,
        unit="MiB",
    ),
    Setting(
        MEMORY_GUARD,
        mark("Server"),
        mark("When host memory runs out"),
        mark("A restart of the engine frees what its caches took. Running replies go on after it."),
        "choice",
        VALUE_ASK,
        "now",
        ((VALUE_ASK, mark("Warn and suggest a restart")), (VALUE_RESTART, mark("Restart the engine in time"))),
    ),
    Setting(
        UNKNOWN_MODEL,
        mark("Server"),
        mark("Requests for unknown models"),
        mark("The running model can answer them, if you started only one."),
        "choice",
        VALUE_RUNNING,
        "now",
        ((VALUE_RUNNING, mark("The running model answers")), (VALUE_REFUSE, mark("Refuse"))),
    ),
    Setting(
        ALLOWED_NAMES,
        mark("Server"),
        mark("Other names and pages"),
        mark(
            "Names by which programs may reach the server besides this computer's own, and web pages that may use it, "
            "such as https://chat.example. The API key is needed all the same."
        ),
        "text",
        "",
        most=2_000,
    ),
    Setting(
        CACHE_DISK,
        mark("Server"),
        mark("Conversations on disk"),
        mark("What a model has read is kept when it is unloaded, so that it need not be read again. 0 keeps nothing."),
        "number",
        20,
        "now",
        least=0,
        most=2_000,
        step=5,
        unit="GiB",
        least_text=mark("Keep nothing"),
    ),
    Setting(
        CACHE_DAYS,
        mark("Server"),
        mark("Keep conversations for"),
        mark("A conversation that was not used for so long is deleted from the disk."),
        "number",
        30,
        "now",
        least=1,
        most=365,
        step=1,
        unit="days",
    ),
    Setting(
        LEAVE_OUT,
        mark("Server"),
        mark("Conversations not kept"),
        mark(
            "Names of API keys and aliases, with spaces between them. What comes with such a key, or for such an "
            "alias, is not kept on disk."
        ),
        "text",
        "",
        most=2_000,
    ),
    Setting(
        ADVICE,
        mark("Server"),
        mark("Advice from use"),
        mark(
            "Counts tokens and accepted drafts while you use a server, and suggests better drafts, or changes to them "
            "between two requests. Only these counts are saved, on this computer."
        ),
        "choice",
        VALUE_SUGGEST,
        "now",
        (
            (VALUE_OFF, mark("Count nothing")),
            (VALUE_SUGGEST, mark("Suggest other drafts")),
            (VALUE_AUTO, mark("Change them between requests")),
        ),
        switch_values=(VALUE_OFF, VALUE_SUGGEST),
    ),
    Setting(
        REQUEST_LOG,
        mark("Server"),
        mark("Keep a log of requests"),
        mark(
            "Saves who sent each request, its token counts, speed and end, but none of its text, on this computer. "
            "The last 10,000 are kept."
        ),
        "switch",
        True,
    ),
    Setting(
        TEMPERATURE,
        mark("Chat"),
        mark("Temperature"),
        mark("Randomness of replies. 0 always picks the most likely token."),
        "number",
        VALUE_SERVER,
        "now",
        (_AS_SERVER,),
        most=2.0,
        step=0.05,
    ),
    Setting(
        TOP_K,
        mark("Chat"),
        mark("Top-k"),
        mark("Samples from this many of the most likely tokens. 0 means all."),
        "number",
        VALUE_SERVER,
        "now",
        (_AS_SERVER,),
        most=1_000,
    ),
    Setting(
        TOP_P,
        mark("Chat"),
        mark("Top-p"),
        mark("Samples from the most likely tokens that together reach this probability."),
        "number",
        VALUE_SERVER,
        "now",
        (_AS_SERVER,),
        most=1.0,
        step=0.05,
    ),
    Setting(
        MIN_P,
        mark("Chat"),
        mark("Min-p"),
        mark("Drops tokens below this share of the top token's probability."),
        "number",
        VALUE_SERVER,
        "now",
        (_AS_SERVER,),
        most=1.0,
        step=0.01,
    ),
    Setting(
        MAX_TOKENS,
        mark("Chat"),
        mark("Token limit"),
        mark("Longest reply, in tokens."),
        "number",
        VALUE_SERVER,
        "now",
        (_AS_SERVER,),
        least=1,
        most=1_000_000,
    ),
    Setting(
        THINKING,
        mark("Chat"),
        mark("Thinking"),
        mark("Lets the model think before it replies. Only for models whose chat template supports it."),
        "choice",
        VALUE_SERVER,
        "now",
        (_AS_SERVER, (VALUE_ON, mark("On")), (VALUE_OFF, mark("Off"))),
    ),
    Setting(
        SYSTEM_PROMPT,
        mark("Chat"),
        mark("System prompt"),
        mark("Instructions for the model at the start of each conversation."),
        "text",
        "",
        "next window",
        most=20_000,
    ),
    Setting(
        KEEP,
        mark("Chat"),
        mark("Keep conversations"),
        mark("Saves chats on this computer. Off: new chats are not saved, and saved ones are hidden."),
        "switch",
        True,
        "next window",
    ),
    Setting(
        WEEKLY_CHECK,
        mark("Updates"),
        mark("Check for updates"),
        mark("Checks once a week when the window opens. Sends no data about you and installs nothing."),
        "switch",
        True,
        "next window",
    ),
)
"""All settings, in display order."""
