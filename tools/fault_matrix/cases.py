"""The faults: the behaviour of the server, the settings of the download, and the files that exist before."""

from dataclasses import dataclass

SIZE = 1_000_000


@dataclass(frozen=True, slots=True)
class Case:
    """A fault: its description, the fake server's behaviour, and the known facts of the file.

    `earlier_faults` are the faults of an earlier run that is resumed. `most_lost` limits the bytes that are lost, if
    their number depends on when a connection is cut. With `disk_room` 0 the disk is full when the download begins;
    with -N, N bytes may be written before a quota is used up. `obstacle` is `closed` if nothing listens, `tls`
    if https is used with a server that has no TLS.
    """

    description: str
    faults: str
    earlier_faults: str = ""
    with_hash: bool = True
    with_size: bool = True
    most_lost: int = 0
    disk_room: int | None = None
    obstacle: str = ""


CASES = (
    Case("none", "none"),
    Case("a redirect to another server", "redirect"),
    Case("the connection drops in the middle, three times", "drops=300000*3"),
    Case("the connection drops at every attempt, each time later in the file", "drops=150000"),
    Case("the server goes silent in the middle", "stalls=300000*1"),
    Case("every connection goes silent before a byte", "stalls=0"),
    Case("nothing listens at the address", "none", obstacle="closed"),
    Case("https at a server without TLS", "none", obstacle="tls"),
    Case("a redirect in circles", "circle"),
    Case("HTTP 401", "401"),
    Case("HTTP 403", "403"),
    Case("HTTP 404", "404"),
    Case("HTTP 410", "410"),
    Case("HTTP 416 for the whole file", "416"),
    Case("HTTP 429 with Retry-After in seconds, once", "429*1,retry=7"),
    Case("HTTP 503 with Retry-After as a date (tomorrow), once", "503*1,retry=date"),
    Case("HTTP 500, always", "500"),
    Case("HTTP 503 in the middle of the file, always", "503,after=1,drops=300000"),
    Case("a signed link that expires; a new one is given", "redirect,expires=1,drops=300000*2"),
    Case("signed links that never work", "redirect,expires=0"),
    Case("a web page with 200 (a login page of a network)", "page"),
    Case("the same, of a file of unknown size and hash", "page", with_hash=False, with_size=False),
    Case("the same, in chunks without a length", "page,chunked"),
    Case("the same, when a broken download is to be resumed", "page=2,chunked,drops=300000*1"),
    Case("the same, after the program was ended", "page,chunked", earlier_faults="stalls=300000"),
    Case("a proxy's error as text with 200, in chunks, in the middle", "error=2,chunked,drops=300000*1"),
    Case("the same at the beginning", "error=1,chunked"),
    Case("other bytes of the same size", "wrong"),
    Case("another file, of half the size", "short", most_lost=SIZE),
    Case("another file, of half the size, its size unknown to us", "short", with_size=False),
    Case("more bytes than announced", "long", most_lost=SIZE // 100),
    Case("no length, in chunks", "chunked,ignores-range"),
    Case("no length, in chunks, and of unknown size", "chunked,ignores-range", with_size=False, most_lost=SIZE),
    Case("a stream without an end", "endless,ignores-range", most_lost=SIZE),
    Case(
        "a stream without an end, of a file of unknown hash",
        "endless,ignores-range",
        with_hash=False,
        most_lost=2 * SIZE,
    ),
    Case("a compressed answer", "compressed", most_lost=SIZE),
    Case("a header without an end", "header", most_lost=SIZE),
    Case("ranges are ignored, and the connection drops", "ignores-range,drops=300000*1", most_lost=SIZE),
    Case("the same, and it drops twice", "ignores-range,drops=300000*2", most_lost=SIZE),
    Case("the same in chunks without a length", "ignores-range,chunked,drops=300000*1", most_lost=SIZE),
    Case("another range than asked for, and the connection drops", "wrong-range,drops=300000*1", most_lost=SIZE),
    Case("an ETag that changes with each request, after a drop", "etag=new,drops=300000*1", most_lost=SIZE),
    Case("the same, of a file of unknown hash", "etag=new,drops=300000*1", with_hash=False, most_lost=SIZE),
    Case(
        "the file is replaced by one of the same size, after a drop",
        "changes=1,drops=300000*1",
        with_hash=False,
        most_lost=SIZE,
    ),
    Case("the same, where the hash reveals it", "changes=1,drops=300000*1", most_lost=3 * SIZE),
    Case(
        "the file is replaced by a longer one, after a drop",
        "grows=1,drops=300000*1",
        with_hash=False,
        with_size=False,
        most_lost=SIZE,
    ),
    Case(
        "no ETag, after a drop, of a file of unknown hash", "etag=none,drops=300000*1", with_hash=False, most_lost=SIZE
    ),
    Case("the program was ended; the next one resumes", "none", earlier_faults="stalls=300000"),
    Case("the same at another address that has the same file", "redirect", earlier_faults="stalls=300000"),
    Case("the disk is full before it begins", "none", disk_room=0),
    Case("a quota is used up in the middle", "none", disk_room=-500_000, most_lost=SIZE),
)
