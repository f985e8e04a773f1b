"""The control API of a program that serves models: a class for each verb, and the client that sends them.

session_control.py answers them. The names of verbs and fields are also those of versions before and after this one:
they may be added to, and unknown fields are ignored.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from launcher.base.action import Action
from launcher.base.codec import WrongShape, from_json, to_json
from launcher.base.control import ControlAddress, send_request
from launcher.base.errors import BadOption
from launcher.base.messages import add_message_data, message, restore_messages
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.start_request import StartRequest
from launcher.models.server_settings import Value

# Of a running server. Any program of the user may send them.


@dataclass(frozen=True, slots=True)
class GetStatus:
    """Ask for the state of the server, and for what changes of its registry entry."""


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Ask for the last `lines` of the engine's log, and with `follow` for all that come until the server ends."""

    lines: int = 200
    follow: bool = False


@dataclass(frozen=True, slots=True)
class ReadRequests:
    """Ask for the last `count` requests of clients, and with `follow` for each that ends until the server ends.

    With `current` those in progress are sent, too, whenever they change and once a second.
    """

    count: int = 0
    follow: bool = False
    current: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the server, or unload `model`. Open requests get `drain_s` seconds to end."""

    model: str | None = None
    drain_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart the server with the settings in `set`, as users write them. See Stop for `drain_s`."""

    set: Mapping[str, str] = field(default_factory=dict)
    drain_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PreviewRestart:
    """Ask for the effects of Restart, without changing anything."""

    set: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Share:
    """Share the server with the network, or stop sharing it. See ServerSession.set_shared."""

    shared: bool
    encrypted: bool = True
    drain_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ApplyFix:
    """Apply a fix by a start. See ServerSession.apply_fix."""

    action: Action
    drain_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ForeseeHandover:
    """Ask what a restart of the engine would mean for clients now."""


@dataclass(frozen=True, slots=True)
class PrepareFor:
    """Have the engine ready for a client, such as a coding agent, as far as its earlier sessions were kept."""

    client: str


@dataclass(frozen=True, slots=True)
class ReloadKeys:
    """Have the server use the saved API keys of its port."""


@dataclass(frozen=True, slots=True)
class Join:
    """Load a further model at the server, as resolve_start would start it, for as long as the connection is open.

    `base` are options for any model. `keeps_others`: no other model is unloaded for it.
    """

    model: str
    settings: Mapping[str, Value]
    base: ServeOptions
    use_kept: bool = True
    use_tuned: bool = True
    vision: bool = False
    keeps_others: bool = False


@dataclass(frozen=True, slots=True)
class Lend:
    """Lend the server to a measurement, for as long as the connection is open. See borrowed_session.py."""


@dataclass(frozen=True, slots=True)
class RestartLent:
    """Restart the lent server with other settings."""

    options: ServeOptions


@dataclass(frozen=True, slots=True)
class GiveBack:
    """End the loan. The server gets its previous settings again, unless `keep`."""

    keep: bool = False


# Of the server process. Its owner, a window, sends them: see session_host.py.


@dataclass(frozen=True, slots=True)
class Own:
    """Become the owner for as long as the connection is open, and get all that happens."""


@dataclass(frozen=True, slots=True)
class CancelStarts:
    """Cancel the owner's starts in progress."""


@dataclass(frozen=True, slots=True)
class NoteRequests:
    """Tell how many requests the engine is processing, as the owner reads it."""

    processing: int


@dataclass(frozen=True, slots=True)
class NoteReplies:
    """Tell the earliest time of the last token of the owner's replies, in monotonic seconds; None without any."""

    quiet_since: float | None


@dataclass(frozen=True, slots=True)
class NoteFindings:
    """Tell the open health findings, as JSON."""

    findings: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Quit:
    """Stop the server, and end its process."""


VERBS = {
    "status": GetStatus,
    "logs": ReadLog,
    "requests": ReadRequests,
    "start": StartRequest,
    "stop": Stop,
    "restart": Restart,
    "preview": PreviewRestart,
    "share": Share,
    "fix": ApplyFix,
    "foresee": ForeseeHandover,
    "prepare": PrepareFor,
    "reload-keys": ReloadKeys,
    "join": Join,
    "lend": Lend,
    "lent-start": RestartLent,
    "lent-end": GiveBack,
    "own": Own,
    "cancel": CancelStarts,
    "note-requests": NoteRequests,
    "note-replies": NoteReplies,
    "note-findings": NoteFindings,
    "quit": Quit,
}
_NAMES = {verb: name for name, verb in VERBS.items()}


def read_verb(name: str, fields: Mapping[str, Any]) -> object:
    """Return the verb that another process has sent. Raises BadOption for one that this version does not know."""
    hint = message("Is it an older version?")
    if name not in VERBS:
        raise BadOption(
            message("The program that runs this server does not support {verb}.", verb=name), hint, verb=name
        )
    try:
        return from_json(VERBS[name], restore_messages(fields))
    except WrongShape as error:
        raise BadOption(
            message("The program that runs this server does not understand {verb}: {why}.", verb=name, why=str(error)),
            hint,
            verb=name,
        ) from None


async def send_verb(address: ControlAddress, verb: object, *, number: int = 0) -> AsyncGenerator[Any]:
    """Send a verb, and yield the values of the answer. See send_request.

    `number` counts the owner's changes, which each come over a connection of their own: an older one that comes late
    does nothing.
    """
    fields = add_message_data({**to_json(verb), "number": number})
    async with aclosing(send_request(address, _NAMES[type(verb)], **fields)) as answers:
        async for each in answers:
            yield each


async def ask(address: ControlAddress, verb: object) -> Mapping[str, Any]:
    """Send a verb, and return the last value of the answer, or {}. See send_request."""
    last: Mapping[str, Any] = {}
    async for each in send_verb(address, verb):
        last = each
    return last
