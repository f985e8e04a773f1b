"""One connection of a transfer: a thread that asks for a range, judges the answer and writes what comes."""

import threading
from dataclasses import dataclass

from launcher.base.errors import DownloadBroken, LauncherError, Unreachable, Untrusted
from launcher.base.http_stream import RangeStream
from launcher.base.threads import in_thread
from launcher.fetch.part import UNKNOWN, Part, Segment
from launcher.fetch.transfer_answer import Accepted, Next, Trouble, judge
from launcher.fetch.transfer_pace import Bucket

_BUFFER = 2**20
_SMALL_BUFFER = 2**14
"""For a limited rate, so that it is even."""


@dataclass(frozen=True, slots=True)
class Ask:
    """How to ask for a range: with which address and token, with `Range` and `If-Range` or without."""

    url: str
    token: str | None
    name: str
    host: str
    silence_s: float
    with_range: bool
    with_condition: bool


class Worker:
    """A connection that fills a segment. `ended` gets its Trouble, or None when the segment is complete.

    What went wrong with the disk, an OSError, is the future's exception.
    """

    def __init__(self, part: Part, segment: Segment, ask: Ask, bucket: Bucket | None) -> None:
        self.segment = segment
        self.accepted: Accepted | None = None
        self.received_bytes = 0
        self.mixed = False
        self._part = part
        self._ask = ask
        self._bucket = bucket
        self._stopped = threading.Event()
        self._stream = RangeStream(ask.url, token=ask.token, silence_s=ask.silence_s)
        self.ended = in_thread(self._run, "receive")

    def abort(self) -> None:
        """End the connection; nothing of it is written any more. Does not wait for it."""
        self._stopped.set()
        self._part.release(self.segment)
        self._stream.abort()

    def _run(self) -> Trouble | None:
        try:
            self._receive()
        except Trouble as trouble:
            return trouble
        except LauncherError as error:
            passing = isinstance(error, Unreachable) and not isinstance(error, Untrusted)
            return Trouble(error, Next.AGAIN if passing else Next.NEVER)
        finally:
            self._stream.close()
            self._part.release(self.segment)
        return None

    def _receive(self) -> None:
        part, segment, ask = self._part, self.segment, self._ask
        begin, known = segment.position, part.identity
        etag = known.etag if begin and ask.with_condition and (known.etag or "").startswith('"') else None
        end = segment.end if segment.end < UNKNOWN and known.bytes is not None else None
        answer = self._stream.open(begin if ask.with_range else None, end, if_range=etag)
        told = judge(answer, begin, known, host=self._stream.host, asked_host=ask.host, name=ask.name)
        self.mixed = begin > 0 and told.etag != known.etag
        part.identify(size=told.size, etag=told.etag)
        self.accepted = told
        view = memoryview(bytearray(_BUFFER if self._bucket is None else _SMALL_BUFFER))
        wanted = segment.position < segment.end
        while wanted:
            n_bytes = self._stream.readinto(view)
            if not n_bytes:
                raise Trouble(
                    Unreachable(
                        f"{self._stream.host} broke off after {part.done_bytes:,} of {told.size:,} bytes.",
                        "Try again: what has arrived is kept.",
                    )
                )
            wanted = part.write(segment, view[:n_bytes])
            self.received_bytes += n_bytes
            if self._bucket is not None:
                self._stopped.wait(self._bucket.take(n_bytes))
        if known.sha256 is None and segment.position == told.size and self._stream.readinto(view[:1]):
            raise Trouble(
                DownloadBroken(f"{self._stream.host} sends more than the {told.size:,} bytes of {ask.name}."),
                Next.WRONG,
            )
