"""What the monitor needs of a server, whoever started it."""

from typing import Protocol

from launcher.engine.client import EngineClient
from launcher.engine.launch import Launch
from launcher.engine.logs import LogBook
from launcher.engine.state import Status


class Watched(Protocol):
    """A server that is watched: a Supervisor's, or one that others started, whose process and log are not known."""

    @property
    def engine_pid(self) -> int | None:
        """The engine's pid while it runs on this computer and is ours."""

    @property
    def status(self) -> Status:
        """What it is doing now."""

    @property
    def launch(self) -> Launch | None:
        """What it was started with, where we started it."""

    @property
    def log(self) -> LogBook | None:
        """Its log, where we keep it."""

    @property
    def client(self) -> EngineClient:
        """Its HTTP. Raises ServerNotFound unless it is ready."""

    def note_requests(self, processing: int) -> None:
        """Take note of how many requests it is working on."""
