"""Server settings in a few words, in the window's language."""

from typing import TYPE_CHECKING

from launcher.gui.translation import ntr, tr

if TYPE_CHECKING:
    from launcher.models.server_settings import Value


def setting_text(name: str, value: "Value") -> str:
    """Return a setting, by its name in ROWS, with its value: "3 threads". Most are named as on the command line."""
    # Imported late: the first paint shows no settings.
    from launcher.models.server_settings import ROWS, format_settings

    match name, value:
        case "ctx", int():
            return tr("{tokens} context", tokens=format_context_length(value))
        case "kv", _:
            return tr("KV {type}", type=value)
        case "ubatch", int():
            return tr("ubatch {count:,}", count=value)
        case "slots", int():
            return ntr("1 slot", "{n} slots", value)
        case "threads", _:
            return ntr("1 thread", "{n} threads", int(value)) if value else tr("default threads")
        case "draft_sampling", "probabilistic":
            return tr("sampled drafts")
    # A name that is not in ROWS comes from another version of this program.
    return format_settings({name: value}) if name in ROWS else f"{name} {value}"


def format_context_length(count: int) -> str:
    """Return a context length as text: 256K, 49,152."""
    return f"{count // 1024}K" if count % 1024 == 0 else f"{count:,}"
