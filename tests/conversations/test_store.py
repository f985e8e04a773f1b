"""The file of conversations: contents, search, deletion, damage."""

import logging
import os
import random
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from launcher.base.errors import ConversationMissing, ConversationsUnusable, WrittenByNewer
from launcher.conversations.records import MessageEnding, Role, make_title
from launcher.conversations.store import Conversations, conversations_path


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        self.now_s += 1
        return self.now_s


@pytest.fixture(params=[True, False], ids=["index", "no-index"])
def conversations(request: pytest.FixtureRequest) -> Iterator[Conversations]:
    """The file, with its full-text index and without."""
    with Conversations(index=request.param, clock=Clock()) as conversations:
        assert conversations.indexed == request.param
        yield conversations


def add_exchange(
    conversations: Conversations, question: str, reply: str, *, thinking: str = ""
) -> tuple[str, str, str]:
    conversation = conversations.create_conversation(question, system="Be brief.", model="A model")
    question_id = conversations.add_question(conversation, None, question)
    message = conversations.begin_reply(conversation, question_id, settings={"temperature": 0.6})
    conversations.append_pieces([(message, reply, thinking)])
    conversations.end_reply(message, footer="9 t/s", figures={"predicted_n": 3})
    return conversation, question_id, message


def files_hold(secret: str) -> list[str]:
    folder = conversations_path().parent
    return [path.name for path in folder.iterdir() if path.is_file() and secret.encode() in path.read_bytes()]


def test_messages_are_read_back(conversations: Conversations) -> None:
    conversation, question_id, message = add_exchange(
        conversations, "# Why?\nTell me.", "Be\0cause \u202e🙂", thinking="Hm."
    )
    found = conversations.read_conversation(conversation)
    assert (found.title, found.system, found.model) == ("Why?", "Be brief.", "A model")
    question, reply = found.messages
    assert (question.id, question.role, question.text) == (question_id, Role.USER, "# Why?\nTell me.")
    assert (reply.id, reply.parent, reply.text, reply.thinking) == (message, question_id, "Be\0cause \u202e🙂", "Hm.")
    assert (reply.ending, reply.footer, reply.figures) == (MessageEnding.WHOLE, "9 t/s", {"predicted_n": 3})
    assert reply.settings == {"temperature": 0.6}
    (summary,) = conversations.list_all()
    assert (summary.id, summary.messages) == (conversation, 2)


def test_half_a_surrogate_pair_is_stored_as_a_question_mark(conversations: Conversations) -> None:
    conversation = conversations.create_conversation("\ud83d")
    conversations.add_question(conversation, None, "a\ud83db")
    assert conversations.read_conversation(conversation).messages[0].text == "a?b"


def test_a_reply_is_readable_while_it_is_written(conversations: Conversations) -> None:
    conversation = conversations.create_conversation("Why?")
    message = conversations.begin_reply(
        conversation, conversations.add_question(conversation, None, "Why?"), model="Another"
    )
    for piece in ("a", "b", "c"):
        conversations.append_pieces([(message, piece, piece.upper())])
    with Conversations() as other:
        assert (
            other.read_conversation(conversation).messages[1].text,
            other.read_conversation(conversation).messages[1].thinking,
        ) == (
            "abc",
            "ABC",
        )
        assert other.read_conversation(conversation).messages[1].ending is MessageEnding.WRITING
        assert other.read_conversation(conversation).model == "Another"


def test_a_crash_loses_nothing_that_was_added() -> None:
    crash = (
        "import os\n"
        "from launcher.conversations.store import Conversations\n"
        "kept = Conversations()\n"
        "id = kept.create_conversation('Why?')\n"
        "message = kept.begin_reply(id, kept.add_question(id, None, 'Why?'))\n"
        "kept.append_pieces([(message, 'as far as it', 'thought')])\n"
        "kept.append_pieces([(message, ' came', '')])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", crash], check=False).returncode == -9
    with Conversations() as conversations:
        conversations.clean_up()
        (summary,) = conversations.list_all()
        reply = conversations.read_conversation(summary.id).messages[1]
        assert (reply.text, reply.thinking, reply.ending) == ("as far as it came", "thought", MessageEnding.CUT_OFF)
        assert "ended before this reply was complete" in reply.footer
        assert [hit.conversation.id for hit in conversations.search("far came")] == [summary.id]


def test_editing_a_question_keeps_the_earlier_branch(conversations: Conversations) -> None:
    conversation, first, reply = add_exchange(conversations, "Why?", "Because.")
    second = conversations.add_question(conversation, None, "How?")
    again = conversations.begin_reply(conversation, second)
    conversations.end_reply(again)
    found = conversations.read_conversation(conversation)
    assert [each.id for each in found.messages] == [second, again]
    assert found.messages[0].versions == (first, second)
    conversations.open_version(first)
    assert [each.id for each in conversations.read_conversation(conversation).messages] == [first, reply]
    assert conversations.list_all()[0].messages == 4


def test_a_regenerated_reply_is_a_version(conversations: Conversations) -> None:
    conversation, question_id, first = add_exchange(conversations, "Why?", "Because.")
    second = conversations.begin_reply(conversation, question_id)
    conversations.end_reply(second)
    assert conversations.read_conversation(conversation).messages[1].versions == (first, second)


def test_a_withdrawn_question_leaves_nothing(conversations: Conversations) -> None:
    conversation, _, reply = add_exchange(conversations, "Why?", "Because.")
    question = conversations.add_question(conversation, reply, "zanzibar?")
    conversations.begin_reply(conversation, question)
    conversations.delete_message(question)
    assert conversations.read_conversation(conversation).messages[-1].id == reply
    assert not conversations.search("zanzibar")
    alone = conversations.create_conversation("quagga?")
    conversations.delete_message(conversations.add_question(alone, None, "quagga?"))
    assert [each.id for each in conversations.list_all()] == [conversation]
    assert not files_hold("quagga")
    conversations.delete_message("no such message")


def test_the_newest_conversation_comes_first_and_can_be_renamed(conversations: Conversations) -> None:
    first, second = add_exchange(conversations, "One", "1")[0], add_exchange(conversations, "Two", "2")[0]
    assert [each.id for each in conversations.list_all()] == [second, first]
    conversations.add_question(first, None, "more")
    conversations.rename(second, "Another\nname")
    conversations.set_system(second, "New.")
    assert [each.title for each in conversations.list_all()] == ["One", "Another"]
    assert conversations.read_conversation(second).system == "New."


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("needle", 1),
        ("NEEDLE", 1),
        ("eedl", 1),
        ("ne", 1),
        ("needle hay", 1),
        ("needle straw", 0),
        ("hay", 2),
        ("", 0),
        ("ÄRGER", 1),
        ("中文", 1),
        ("测试中文", 1),
        ('"quoted', 1),
        ("Title", 1),
        ("100%", 1),
        ("*", 0),
    ],
)
def test_words_are_found_in_all_messages(conversations: Conversations, words: str, count: int) -> None:
    add_exchange(conversations, "Title one", 'A needle in hay, ärger, 这是测试中文文本, "quoted" 100% OR')
    add_exchange(conversations, "Second", "Only hay")
    assert len(conversations.search(words)) == count


def test_a_hit_has_an_excerpt(conversations: Conversations) -> None:
    add_exchange(conversations, "Question", "x " * 300 + "the needle\nis here " + "y " * 300)
    (hit,) = conversations.search("needle")
    assert "the needle is here" in hit.excerpt
    assert hit.excerpt.startswith("…")
    assert hit.excerpt.endswith("…")
    assert len(hit.excerpt) < 160


def test_deleted_text_is_in_no_file(conversations: Conversations) -> None:
    secret, other = "xylophone-secret", "harmless"
    ours = [
        add_exchange(conversations, f"{secret} {number}", f"{secret} " * 500, thinking=secret)[0] for number in range(5)
    ]
    add_exchange(conversations, other, other)
    assert files_hold(secret)
    assert conversations.delete([*ours, "no such one"]) == 5
    assert files_hold(secret) == []
    assert files_hold("xyl") == [], "nor its trigrams in the index"
    assert [each.title for each in conversations.list_all()] == [other]
    assert len(conversations.search("harm")) == 1


def test_rewritten_pages_leave_no_text(conversations: Conversations) -> None:
    """SQLite's secure_delete alone left text in one of five such files."""
    chance = random.Random(3)
    for round_ in range(12):
        secrets = {}
        for number in range(5):
            secret = f"s{chance.getrandbits(32):08x}"
            secrets[secret], _, parent = add_exchange(
                conversations, f"{secret} {number}", f"{secret} " * chance.choice([1, 50, 700])
            )
            for _ in range(chance.randrange(4)):
                conversations.add_question(secrets[secret], parent, f"{secret} " * chance.choice([3, 200]))
        gone = chance.sample(sorted(secrets), 4)
        conversations.delete([secrets[secret] for secret in gone])
        assert not [secret for secret in gone if files_hold(secret)], round_


def test_a_hidden_conversation_can_be_restored_until_the_next_start(conversations: Conversations) -> None:
    conversation, *_ = add_exchange(conversations, "Why?", "Because.")
    conversations.hide(conversation)
    assert conversations.list_all() == conversations.search("because") == ()
    conversations.hide(conversation, hidden=False)
    assert len(conversations.list_all()) == 1
    conversations.hide(conversation)
    conversations.clean_up()
    with pytest.raises(ConversationMissing):
        conversations.read_conversation(conversation)


def test_text_written_without_an_index_is_found_after_indexing() -> None:
    with Conversations() as conversations:
        add_exchange(conversations, "One", "needle in one")
    with Conversations(index=False) as conversations:
        add_exchange(conversations, "Two", "needle in two")
        gone, *_ = add_exchange(conversations, "Gone", "xylophone")
        conversations.delete([gone, conversations.search("in one")[0].conversation.id])
        assert not files_hold("xyl")
        assert not files_hold("in one")
    with Conversations() as conversations:
        assert [hit.conversation.title for hit in conversations.search("needle")] == ["Two"]
        add_exchange(conversations, "Three", "needle in three")
        assert conversations.delete([each.id for each in conversations.list_all()]) == 2
        assert not files_hold("needle")


def test_an_id_may_be_abbreviated(conversations: Conversations) -> None:
    first = conversations.create_conversation("One", id="abc111222333")
    conversations.create_conversation("Two", id="abd111222333")
    assert conversations.resolve_id("ABC") == first
    for wrong in ("ab", "x", ""):
        with pytest.raises(ConversationMissing):
            conversations.resolve_id(wrong)


def test_nothing_is_added_to_a_deleted_conversation(conversations: Conversations) -> None:
    conversation, question_id, reply = add_exchange(conversations, "Why?", "Because.")
    conversations.delete([conversation])
    for change in (
        lambda: conversations.add_question(conversation, reply, "More?"),
        lambda: conversations.begin_reply(conversation, question_id),
        lambda: conversations.rename(conversation, "x"),
    ):
        with pytest.raises(ConversationMissing):
            change()
    conversations.append_pieces([(reply, "late", "")])
    conversations.end_reply(reply)
    assert not files_hold("late")


def test_the_file_is_readable_by_its_owner_only(conversations: Conversations) -> None:
    add_exchange(conversations, "Why?", "Because.")
    files = [path for path in conversations_path().parent.iterdir() if path.name.startswith("conversations.db")]
    assert len(files) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


@pytest.mark.parametrize("content", [b"This is no database." * 99, b"SQLite format 3\0" + b"\xff" * 4_000])
def test_a_damaged_file_is_kept_and_a_new_one_is_created(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = conversations_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING), Conversations() as conversations:
        assert "the old one is kept as conversations.db.bad" in conversations.notice
        add_exchange(conversations, "Why?", "Because.")
    assert path.with_name("conversations.db.bad").read_bytes() == content
    assert "was damaged" in caplog.text
    with Conversations() as conversations:
        assert len(conversations.list_all()) == 1
        assert not conversations.notice


def test_an_overwritten_page_counts_as_damage() -> None:
    with Conversations() as conversations:
        for number in range(40):
            add_exchange(conversations, f"Question {number}", "word " * 400)
    path = conversations_path()
    data = bytearray(path.read_bytes())
    data[8_192:12_288] = os.urandom(4_096)
    path.write_bytes(data)
    with Conversations() as conversations:
        assert conversations.notice
        assert conversations.list_all() == ()


def test_a_file_of_a_newer_version_is_left_alone() -> None:
    Conversations().close()
    with sqlite3.connect(conversations_path()) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(WrittenByNewer):
        Conversations()
    assert not list(conversations_path().parent.glob("*.bad"))


def test_system_errors_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "conversations.db"
    folder.mkdir()
    with pytest.raises(ConversationsUnusable) as caught:
        Conversations(folder)
    assert str(folder) in caught.value.title


def test_a_failed_change_is_rolled_back(conversations: Conversations) -> None:
    conversation, _, reply = add_exchange(conversations, "Why?", "Because.")
    refuse = "CREATE TRIGGER refuse BEFORE UPDATE OF leaf ON conversations BEGIN SELECT RAISE(ABORT, 'no'); END"
    with closing(sqlite3.connect(conversations_path())) as db, db:
        db.execute(refuse)  # the message is already in the table by then
    with pytest.raises(ConversationsUnusable):
        conversations.add_question(conversation, reply, "More?")
    with closing(sqlite3.connect(conversations_path())) as db, db:
        db.execute("DROP TRIGGER refuse")
    conversations.add_question(conversation, reply, "More?")
    assert [each.text for each in conversations.read_conversation(conversation).messages] == [
        "Why?",
        "Because.",
        "More?",
    ]


@pytest.mark.parametrize(
    ("text", "title"),
    [("\n\n  ## Hello *there*\nmore", "Hello *there"), ("", "Untitled"), ("x" * 99, "x" * 59 + "…"), ("a\x1bb", "a␛b")],
)
def test_a_title_is_the_first_line(text: str, title: str) -> None:
    assert make_title(text) == title
