"""Events that the window's server posts from the core's thread, besides those of launcher.engine.server.state."""

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from launcher.app.planning.start_settings import ResolvedStart
    from launcher.engine.server.client import Delta
    from launcher.engine.server.launch import Launch
    from launcher.monitor.health_event import Finding
    from launcher.monitor.reply import Reply


class ModelRequest(NamedTuple):
    """Request to start a model, named as the user did, with a draft length; or with exactly the settings in `start`."""

    model: str
    draft: int | None = None
    start: "ResolvedStart | None" = None


class Launched(NamedTuple):
    """A server is ready, or shared in another way: its launch, model, settings text, address, and remark.

    It may be `shared` with the network, and `encrypted` for other computers.
    """

    launch: "Launch"
    model: str
    settings: str
    address: str
    note: str
    shared: bool = False
    encrypted: bool = False


class SharingChanged(NamedTuple):
    """A server whose own model is unloaded is shared in another way."""

    shared: bool
    encrypted: bool


class DeltaReceived(NamedTuple):
    """A part of reply `number` has arrived."""

    number: int
    delta: "Delta"


class ReplyFinished(NamedTuple):
    """Reply `number` is complete."""

    number: int
    reply: "Reply"


class DrainAnswer(Enum):
    """The user's answer to DrainAsked. Without one the replies are waited for."""

    CUT = auto()
    """Cut the replies off and restart now."""
    CANCEL = auto()
    """Leave the settings as they are, and the replies running."""


class DrainAsked(NamedTuple):
    """A restart has waited for some time for replies that cannot go on after it; with 0 `replies` it waits no more."""

    replies: int


class LinkRequested(NamedTuple):
    """The user asked to open a link."""

    url: str


class HealthChanged(NamedTuple):
    """The open health findings, which are those that still hold."""

    findings: "tuple[Finding, ...]"
