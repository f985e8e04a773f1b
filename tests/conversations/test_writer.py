"""The thread that writes conversations."""

import queue
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.base.errors import LauncherError
from launcher.conversations.file import conversations_file
from launcher.conversations.records import Ending
from launcher.conversations.store import Conversations
from launcher.conversations.writer import Writer


@pytest.fixture
def failures() -> list[LauncherError]:
    return []


@pytest.fixture
def writer(failures: list[LauncherError]) -> Iterator[Writer]:
    writer = Writer(failures.append)
    yield writer
    assert writer.close()


def begin(writer: Writer) -> None:
    writer.do(lambda kept: kept.begin("Why?", id="c"))
    writer.do(lambda kept: kept.ask("c", None, "Why?", id="q"))
    writer.do(lambda kept: kept.begin_reply("c", "q", id="r"))


def answer(writer: Writer, work: Any) -> Any:  # noqa: ANN401 -- whatever the work returns
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    writer.do(work, told.put)
    return told.get(timeout=5)


def test_nothing_runs_before_there_is_work(failures: list[LauncherError]) -> None:
    assert Writer(failures.append).close()
    assert not conversations_file().exists()


def test_it_does_things_in_order_and_tells_what_they_return(writer: Writer) -> None:
    begin(writer)
    for piece in "abc":
        writer.add("r", piece, "")
    writer.do(lambda kept: kept.end("r", Ending.STOPPED))
    messages = answer(writer, lambda kept: kept.get("c").messages)
    assert [(each.text, each.ending) for each in messages] == [("Why?", Ending.WHOLE), ("abc", Ending.STOPPED)]


def test_pieces_are_safe_soon_and_written_together(writer: Writer) -> None:
    begin(writer)
    answer(writer, lambda kept: kept.all())
    began_s = time.monotonic()
    with Conversations() as other:
        for number in range(200):
            writer.add("r", f"{number} ", "")
        whole = "".join(f"{number} " for number in range(200))
        while other.get("c").messages[1].text != whole:
            assert time.monotonic() - began_s < 20
        assert other._rows("SELECT count(*) FROM pieces")[0][0] < 10


def test_a_kill_loses_at_most_a_second() -> None:
    code = (
        "import os, time\n"
        "from launcher.conversations.writer import Writer\n"
        "writer = Writer(print)\n"
        "writer.do(lambda kept: kept.begin('Why?', id='c'))\n"
        "writer.do(lambda kept: kept.ask('c', None, 'Why?', id='q'))\n"
        "writer.do(lambda kept: kept.begin_reply('c', 'q', id='r'))\n"
        "for number in range(10_000):\n"
        "    writer.add('r', f'{time.time()} ', '')\n"
        "    print(number, flush=True)\n"
        "    time.sleep(0.005)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            if line == "300\n":
                killed_s = time.time()
                process.kill()
                break
    with Conversations() as kept:
        kept.settle()
        last_s = float(kept.get("c").messages[1].text.split()[-1])
    assert killed_s - last_s < 1


def test_what_fails_is_told_and_the_rest_goes_on(writer: Writer, failures: list[LauncherError]) -> None:
    writer.do(lambda kept: kept.ask("no such one", None, "Why?"))
    begin(writer)
    assert len(answer(writer, lambda kept: kept.all())) == 1
    assert [error.code for error in failures] == ["conversation_missing"]


def test_what_nobody_foresaw_is_told_too(writer: Writer, failures: list[LauncherError]) -> None:
    writer.do(lambda kept: [][len(kept.all())])
    begin(writer)
    assert len(answer(writer, lambda kept: kept.all())) == 1
    assert "IndexError" in str(failures[0])


def test_a_file_that_cannot_be_opened_is_told_each_time_and_may_come_back(
    tmp_path: Path, failures: list[LauncherError]
) -> None:
    path = tmp_path / "file"
    path.mkdir()
    writer = Writer(failures.append, path)
    begin(writer)
    assert answer_after(writer, failures, 3) == {"conversations_unusable"}
    path.rmdir()
    begin(writer)
    assert len(answer(writer, lambda kept: kept.all())) == 1
    assert writer.close()


def answer_after(writer: Writer, failures: list[LauncherError], count: int) -> set[str]:
    deadline_s = time.monotonic() + 5
    while len(failures) < count:
        assert time.monotonic() < deadline_s
    return {error.code for error in failures}


def test_the_first_opening_puts_right_what_a_crash_left() -> None:
    with Conversations() as kept:
        kept.begin("Why?", id="c")
        kept.begin_reply("c", kept.ask("c", None, "Why?"), id="r")
    failures: list[LauncherError] = []
    writer = Writer(failures.append)
    assert answer(writer, lambda kept: kept.get("c").messages[1].ending) is Ending.CUT_OFF
    assert writer.close()


def test_in_memory_all_is_as_usual_but_nothing_is_written(home: Path, failures: list[LauncherError]) -> None:
    writer = Writer(failures.append, in_memory=True)
    begin(writer)
    writer.add("r", "Because.", "")
    writer.do(lambda kept: kept.end("r", Ending.WHOLE))
    assert [hit.conversation.id for hit in answer(writer, lambda kept: kept.search("because"))] == ["c"]
    assert writer.close()
    assert not failures
    assert not conversations_file().exists()
    assert not [path for path in home.rglob("*") if path.is_file()]
