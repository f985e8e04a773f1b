"""Progress of long work: downloads, installations, verification."""

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """The present phase of long work."""

    CONNECTING = "connecting"
    RECEIVING = "receiving"
    WAITING = "waiting"
    """Waiting before a retry; `note` gives the reason."""
    VERIFYING = "verifying"
    WORKING = "working"
    """A step without bytes to count, such as unpacking. `item` names it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of long work; unknown values are None.

    `bytes` is the size when complete. `done_bytes` are the bytes received, including `resumed_bytes` from earlier
    attempts; in the verifying phase, the bytes verified. `item` names the current file or step, the `item_number`th of
    `item_count`. `note` is the reason for a wait.
    """

    done_bytes: int = 0
    bytes: int | None = None
    bytes_per_second: float | None = None
    seconds_left: float | None = None
    note: str = ""
    phase: Phase = Phase.RECEIVING
    resumed_bytes: int = 0
    item: str = ""
    item_number: int = 1
    item_count: int = 1

    @property
    def counts_bytes(self) -> bool:
        """Whether there are bytes to count: a size is known, or something has arrived."""
        return self.bytes is not None or self.done_bytes > 0

    @property
    def counted_bytes(self) -> int | None:
        """The bytes that are done, None if there are none to count."""
        return self.done_bytes if self.counts_bytes else None


NO_PROGRESS = Progress()
