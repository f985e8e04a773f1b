"""A start as it is asked of a server session."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.state import Notice
from launcher.models.server_settings import Value


@dataclass(frozen=True, slots=True)
class StartRequest:
    """Options to serve, and how to change to them.

    `again` restarts a server that serves them already. With `settles` a running server is changed only when no other
    change has come for a moment, so that clients meet one restart and not several. Open replies that cannot go on get
    `drain_s` seconds to end.

    `chosen` are the settings that the user chose (None: the kept settings stay). Once served, they are kept for the
    model's next start, together with `set_aside`: earlier choices that are not used this time, but stay kept (None: all
    earlier choices). `model_name` is the model as the user named it, for commands that start it again (None: its path).
    `notices` go to the listeners first. One that `yields` raises Superseded while a client's request waits or runs, the
    server is lent, or another start is in progress; its notices go to them once it has succeeded.
    """

    options: ServeOptions
    again: bool = False
    settles: bool = False
    drain_s: float = 0.0
    chosen: Mapping[str, Value] | None = None
    set_aside: Mapping[str, Value] | None = None
    model_name: str | None = None
    notices: Sequence[Notice] = ()
    yields: bool = False
