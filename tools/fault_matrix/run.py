"""Runs a download with each fault, and records the outcome."""

import asyncio
import hashlib
import random
import re
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.base.errors import LauncherError
from launcher.base.progress import Phase, Progress
from launcher.fetch.partial_file import count_unfinished_bytes, free_bytes
from launcher.fetch.transfer import DownloadSource, TransferSettings, download_file
from tools.fault_matrix.cases import CASES, SIZE, Case
from tools.fault_matrix.server import FileServer, run_file_server

_NAME = "model.gguf"
SETTINGS = TransferSettings(stall_s=10.0, attempts=3, reserve_bytes=0, settle_s=0.1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A line of the table: the end of the download, the bytes that were sent in vain, and the message for the user."""

    description: str
    outcome: str
    lost: str
    message: str


def make_content() -> bytes:
    """Return the content of the file, the same in every run."""
    return random.Random(1).randbytes(SIZE)


def run_cases(folder: Path) -> Iterator[Outcome]:
    """Run all cases in an empty folder."""
    served = folder / "served"
    served.mkdir()
    (served / _NAME).write_bytes(make_content())
    with run_file_server(served) as server:
        for index, case in enumerate(CASES):
            place = folder / str(index)
            place.mkdir()
            yield asyncio.run(_run_case(case, server, str(index), place / _NAME))


async def _run_case(case: Case, server: FileServer, run: str, target: Path) -> Outcome:
    notes: list[str] = []

    def watch(progress: Progress) -> None:
        if progress.phase is Phase.WAITING:
            notes.append(progress.note)

    async def pause(_seconds: float) -> None:
        """Return without waiting; the note shows the time."""

    known = SIZE if case.with_size else None
    sha256 = hashlib.sha256(make_content()).hexdigest() if case.with_hash else None
    settings, limit, before = SETTINGS, None, 0
    if "stalls" in case.faults + case.earlier_faults:
        settings = replace(settings, stall_s=0.3)
    if case.disk_room == 0:  # twice as much, for other programs may free some meanwhile
        settings = replace(settings, reserve_bytes=2 * free_bytes(target.parent))
    elif case.disk_room is not None:
        limit = -case.disk_room
    if case.earlier_faults:
        source = DownloadSource(server.url(f"{run}-first", case.earlier_faults, _NAME), known, sha256)
        try:
            await download_file(source, target, settings=replace(settings, attempts=1), pause=pause)
        except LauncherError:
            before = count_unfinished_bytes(target) or 0
    message = ""
    try:
        with _limit_file_size(limit):
            source = DownloadSource(_find_address(case, server, run), known, sha256)
            fetched = await download_file(source, target, settings=settings, on_progress=watch, pause=pause)
        right = fetched.sha256 == hashlib.sha256(make_content()).hexdigest()
        outcome = "the right file" if right else "the file as the server has it now"
        needed, message = fetched.bytes, notes[0] if notes else ""
    except LauncherError as error:
        waiting = count_unfinished_bytes(target) or 0
        aside = target.with_name(f"{_NAME}.bad").exists()
        outcome = (
            "an error; kept aside as .bad" if aside else f"an error; {waiting:,} bytes wait" if waiting else "an error"
        )
        needed, message = waiting, str(error)
    sent = server.read_record(run).sent_bytes + before
    lost = sent - needed
    result = f"less than {case.most_lost:,}" if lost < case.most_lost else f"{lost:,}" if lost else "none"
    message = re.sub(r"\d+\.\d GB", "N GB", message.replace(str(target.parent), "FOLDER"))
    return Outcome(case.description, outcome, result, message)


def _find_address(case: Case, server: FileServer, run: str) -> str:
    url = server.url(run, case.faults, _NAME)
    if case.obstacle == "closed":
        with socket.create_server(("127.0.0.1", 0)) as listener:  # a port that nothing listens on once it is closed
            return f"http://127.0.0.1:{listener.getsockname()[1]}/{_NAME}"
    return url.replace("http:", "https:") if case.obstacle == "tls" else url


@contextmanager
def _limit_file_size(n_bytes: int | None) -> Iterator[None]:
    """Limit the size of files that this process writes, as a quota does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if n_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def format_table(rows: Iterator[Outcome]) -> str:
    """Return the outcomes as a markdown table."""
    lines = ["| fault | outcome | bytes sent for nothing | message |", "|---|---|---|---|"]
    lines += [f"| {row.description} | {row.outcome} | {row.lost} | {row.message} |" for row in rows]
    return "\n".join(lines)
