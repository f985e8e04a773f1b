"""A measurement as a user names it: by its id, as a file, or as a published table."""

from pathlib import Path

from launcher.base.errors import BadOption
from launcher.base.paths import expanded
from launcher.tuning.history import History
from launcher.tuning.history_records import Session
from launcher.tuning.report_published import PREFIX, published_table
from launcher.tuning.share import read_file


def session_named(history: History, text: str) -> Session:
    """Return a measurement by the beginning of its id, "last", published:NAME, or the path of a file (.json).

    Raises ResultMissing, ResultUnreadable.
    """
    if text.startswith(PREFIX):
        return published_table(text).session
    if text.lower().endswith(".json"):
        return read_file(expanded(Path(text)))
    return history.load(history.id_of(text))


def split_choice(text: str) -> tuple[str, dict[str, str]]:
    """Return `ID:draft=2,kv=q8_0` as the id and the settings that are meant. Raises BadOption."""
    name, colon, choice = text.rpartition(":")
    if not colon or "=" not in choice:
        return text, {}
    chosen: dict[str, str] = {}
    for part in choice.split(","):
        setting, equals, value = part.partition("=")
        if not equals or not setting.strip() or not value.strip():
            raise BadOption(f"{part} chooses nothing.", "Write it as in `ID:draft=2,kv=q8_0`.")
        chosen[setting.strip()] = value.strip()
    return name, chosen
