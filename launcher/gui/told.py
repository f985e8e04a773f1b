"""What comes back from the core's thread beside the core's own events."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.app import Reply
    from launcher.engine.client import Delta
    from launcher.engine.launch import Launch, ServeOptions
    from launcher.engine.settings import Value
    from launcher.monitor.health_event import Finding


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be served: a model as its user names it; with `options` exactly so.

    `chosen` are the settings among them that the user chose, to be kept for the model's next start.
    """

    model: str
    draft: int | None = None
    options: "ServeOptions | None" = None
    chosen: "Mapping[str, Value] | None" = None


@dataclass(frozen=True, slots=True)
class Launched:
    """A server is ready: what it serves, and where."""

    launch: "Launch"
    model: str
    settings: str
    address: str
    note: str
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Came:
    """A part of a reply came."""

    number: int
    delta: "Delta"


@dataclass(frozen=True, slots=True)
class Replied:
    """A reply is whole."""

    number: int
    reply: "Reply"


@dataclass(frozen=True, slots=True)
class Link:
    """An address that the user asked to be opened."""

    url: str


@dataclass(frozen=True, slots=True)
class Health:
    """What stands against the server's health now."""

    standing: "tuple[Finding, ...]"
