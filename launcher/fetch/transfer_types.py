"""What a transfer takes and gives."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Source:
    """Where a file is, and what is known of it. `token` goes to the server of `url` only; `name` is for messages."""

    url: str
    bytes: int | None = None
    sha256: str | None = None
    token: str | None = None
    name: str = ""


class Phase(Enum):
    """What a transfer does."""

    CONNECTING = "connecting"
    RECEIVING = "receiving"
    WAITING = "waiting"
    """Before another try; the note says why."""
    VERIFYING = "verifying"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a transfer is. What is not known is None.

    `done_bytes` are those of the file that are there, resumed ones included; while it is verified, those that are
    verified.
    """

    phase: Phase
    done_bytes: int
    bytes: int | None
    resumed_bytes: int
    bytes_per_second: float | None = None
    seconds_left: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A finished file. `received_bytes` came over the network in this run, `resumed_bytes` were there from before."""

    path: Path
    bytes: int
    sha256: str
    seconds: float
    resumed_bytes: int
    received_bytes: int


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """How to transfer.

    `connections` is the most at once (one, unless more are faster and `least_parallel_bytes` are missing),
    `bytes_per_second` a limit on the rate, `stall_s` how long a server may be silent, `attempts` how many tries in a
    row may bring nothing, `backoff_s` the first pause between them and `longest_pause_s` the longest, but where a
    server asks for more, up to `longest_asked_pause_s`. `reserve_bytes` stay free on the disk. `settle_s` is how long a
    number of connections is watched before more are tried, `sync_s` how often what arrived is brought to the disk: a
    power cut loses no more.
    """

    connections: int = 8
    bytes_per_second: int | None = None
    stall_s: float = 30.0
    attempts: int = 10
    backoff_s: float = 1.0
    longest_pause_s: float = 60.0
    longest_asked_pause_s: float = 600.0
    reserve_bytes: int = 2**28
    settle_s: float = 0.5
    sync_s: float = 1.0
    least_parallel_bytes: int = 2**26
