"""The thread that writes conversations."""

import queue
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from launcher.base.errors import LauncherError
from launcher.conversations.records import MessageEnding
from launcher.conversations.store import Conversations, conversations_path
from launcher.conversations.writer import ConversationWriter


@pytest.fixture
def failures() -> list[LauncherError]:
    return []


@pytest.fixture
def writer(failures: list[LauncherError]) -> Iterator[ConversationWriter]:
    writer = ConversationWriter(failures.append)
    yield writer
    assert writer.close()


def begin(writer: ConversationWriter) -> None:
    writer.run_work(lambda kept: kept.create_conversation("Why?", id="c"))
    writer.run_work(lambda kept: kept.add_question("c", None, "Why?", id="q"))
    writer.run_work(lambda kept: kept.begin_reply("c", "q", id="r"))


def answer(writer: ConversationWriter, work: Any) -> Any:  # noqa: ANN401 -- whatever the work returns
    result: queue.SimpleQueue[Any] = queue.SimpleQueue()
    writer.run_work(work, result.put)
    return result.get(timeout=120)


def test_no_thread_runs_before_the_first_task(failures: list[LauncherError]) -> None:
    assert ConversationWriter(failures.append).close()
    assert not conversations_path().exists()


def test_tasks_run_in_order_and_return_their_results(writer: ConversationWriter) -> None:
    begin(writer)
    for piece in "abc":
        writer.append_piece("r", piece, "")
    writer.run_work(lambda kept: kept.end_reply("r", MessageEnding.STOPPED))
    messages = answer(writer, lambda kept: kept.read_conversation("c").messages)
    assert [(each.text, each.ending) for each in messages] == [
        ("Why?", MessageEnding.WHOLE),
        ("abc", MessageEnding.STOPPED),
    ]


def test_pieces_of_text_are_written_soon_and_together(writer: ConversationWriter) -> None:
    begin(writer)
    answer(writer, lambda kept: kept.list_all())
    began_s = time.monotonic()
    with Conversations() as other:
        for number in range(200):
            writer.append_piece("r", f"{number} ", "")
        whole = "".join(f"{number} " for number in range(200))
        while other.read_conversation("c").messages[1].text != whole:
            assert time.monotonic() - began_s < 120
    with closing(sqlite3.connect(conversations_path())) as file:
        assert file.execute("SELECT count(*) FROM pieces").fetchone()[0] < 10


def test_a_kill_loses_no_committed_text() -> None:
    code = (
        "import time\n"
        "from launcher.conversations.writer import ConversationWriter\n"
        "writer = ConversationWriter(print)\n"
        "writer.run_work(lambda kept: kept.create_conversation('Why?', id='c'))\n"
        "writer.run_work(lambda kept: kept.add_question('c', None, 'Why?', id='q'))\n"
        "writer.run_work(lambda kept: kept.begin_reply('c', 'q', id='r'))\n"
        "for number in range(10_000):\n"
        "    writer.append_piece('r', f'{number} ', '')\n"
        "    if number == 2:\n"
        "        print(flush=True)\n"
        "    time.sleep(0.005)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        process.stdout.readline()
        with Conversations() as other:
            seen = ""
            while not seen:  # the writer's thread may not have begun the reply yet
                assert process.poll() is None
                if other.list_all() and len(messages := other.read_conversation("c").messages) > 1:
                    seen = messages[1].text
        process.kill()
    with Conversations() as kept:
        kept.clean_up()
        assert kept.read_conversation("c").messages[1].text.startswith(seen)


def test_a_failed_task_is_reported_and_the_others_run(
    writer: ConversationWriter, failures: list[LauncherError]
) -> None:
    writer.run_work(lambda kept: kept.add_question("no such one", None, "Why?"))
    begin(writer)
    assert len(answer(writer, lambda kept: kept.list_all())) == 1
    assert [error.code for error in failures] == ["conversation_missing"]


def test_an_unexpected_exception_is_reported(writer: ConversationWriter, failures: list[LauncherError]) -> None:
    writer.run_work(lambda kept: [][len(kept.list_all())])
    begin(writer)
    assert len(answer(writer, lambda kept: kept.list_all())) == 1
    assert "IndexError" in str(failures[0])


def test_a_file_that_cannot_be_opened_is_reported_each_time_and_retried(
    tmp_path: Path, failures: list[LauncherError]
) -> None:
    path = tmp_path / "file"
    path.mkdir()
    writer = ConversationWriter(failures.append, path)
    begin(writer)
    assert answer_after(writer, failures, 3) == {"conversations_unusable"}
    path.rmdir()
    begin(writer)
    assert len(answer(writer, lambda kept: kept.list_all())) == 1
    assert writer.close()


def answer_after(writer: ConversationWriter, failures: list[LauncherError], count: int) -> set[str]:
    deadline_s = time.monotonic() + 120
    while len(failures) < count:
        assert time.monotonic() < deadline_s
    return {error.code for error in failures}


def test_opening_repairs_what_a_crash_left() -> None:
    with Conversations() as kept:
        kept.create_conversation("Why?", id="c")
        kept.begin_reply("c", kept.add_question("c", None, "Why?"), id="r")
    failures: list[LauncherError] = []
    writer = ConversationWriter(failures.append)
    assert answer(writer, lambda kept: kept.read_conversation("c").messages[1].ending) is MessageEnding.CUT_OFF
    assert writer.close()


def test_in_memory_everything_works_but_nothing_is_written(home: Path, failures: list[LauncherError]) -> None:
    writer = ConversationWriter(failures.append, in_memory=True)
    begin(writer)
    writer.append_piece("r", "Because.", "")
    writer.run_work(lambda kept: kept.end_reply("r", MessageEnding.WHOLE))
    assert [hit.conversation.id for hit in answer(writer, lambda kept: kept.search("because"))] == ["c"]
    assert writer.close()
    assert not failures
    assert not conversations_path().exists()
    assert not [path for path in home.rglob("*") if path.is_file()]
