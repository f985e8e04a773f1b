"""`mtp-launcher chats` as a user types it."""

import json
import os
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from launcher.app.settings import open_vault
from launcher.conversations.store import Conversations
from tests import forked
from tests.gateway.test_vault import keep, make_state


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    result = forked.run("chats", *arguments)
    assert "Traceback" not in result.stderr
    return result


def answer(*arguments: str) -> Any:  # noqa: ANN401 -- any JSON value
    return json.loads(run(*arguments, "--json").stdout)


@pytest.fixture
def two_conversations(home: Path) -> tuple[str, str]:
    """Two conversations, the second one the newer."""
    with Conversations() as kept:
        for id_, text in (("aaa111", "Why is the sky blue?"), ("bbb222", "Name a fish.")):
            kept.create_conversation(text, id=id_, model="A model")
            reply = kept.begin_reply(id_, kept.add_question(id_, None, text))
            kept.append_pieces([(reply, f"The reply to {text}\x1b[31m", "")])
            kept.end_reply(reply, footer="9 t/s")
    return "aaa111", "bbb222"


def test_an_empty_list_says_what_stores_conversations() -> None:
    assert "`mtp-launcher chat` keeps none" in run().stdout
    assert answer() == {"conversations": []}


def test_conversations_are_listed_newest_first(two_conversations: tuple[str, str]) -> None:
    assert [each["id"] for each in answer("list")["conversations"]] == [two_conversations[1], two_conversations[0]]
    first = run().stdout.splitlines()[1]
    assert first.startswith("bbb222")
    assert "Name a fish." in first


def test_one_conversation_is_shown(two_conversations: tuple[str, str]) -> None:
    assert "## You\n\nWhy is the sky blue?" in run("show", "aaa").stdout
    assert answer("show", "AAA")["messages"][1]["footer"] == "9 t/s"


def test_conversations_are_searched_by_words(two_conversations: tuple[str, str]) -> None:
    result = run("search", "sky", "REPLY")
    assert result.returncode == 0
    assert result.stdout.startswith("aaa111  Why is the sky blue?\n              The reply to Why is")
    assert "\x1b" not in result.stdout
    assert run("search", "sky", "fish").returncode == 1
    assert [hit["id"] for hit in answer("search", "reply to")["hits"]] == ["bbb222", "aaa111"]


@pytest.mark.parametrize("ending", ["md", "json", "txt"])
def test_one_conversation_is_exported(two_conversations: tuple[str, str], tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"talk.{ending}"
    assert run("export", "aaa", "--to", str(file)).returncode == 0
    assert "Why is the sky blue?" in file.read_text("utf-8")
    again = run("export", "aaa", "--to", str(file))
    assert again.returncode == 1
    assert "already exists" in again.stderr
    assert run("export", "aaa", "--to", str(tmp_path / "talk.pdf")).returncode == 1


def test_conversations_are_deleted(two_conversations: tuple[str, str]) -> None:
    assert answer("delete", "aaa")["deleted"] == 1
    assert [each["id"] for each in answer()["conversations"]] == ["bbb222"]
    unasked = run("delete", "all")
    assert unasked.returncode == 1
    assert "This deletes all conversations.\n       Confirm with --yes." in unasked.stderr
    assert answer("delete", "all")["error"]["code"] == "bad_option"
    assert len(answer("list")["conversations"]) == 1
    assert run("delete", "all", "--yes").stdout == "Deleted 1 conversation.\n"
    assert answer("list")["conversations"] == []


@pytest.mark.parametrize(("typed", "left"), [("\n", 2), ("n\n", 2), ("Y\n", 0)])
def test_deleting_all_asks_for_confirmation_on_a_terminal(
    two_conversations: tuple[str, str], typed: str, left: int
) -> None:
    controlling, terminal = os.openpty()
    command = [*forked.COMMAND, "chats", "delete", "all"]
    with subprocess.Popen(command, stdin=terminal, stderr=terminal, stdout=subprocess.PIPE) as program:
        os.close(terminal)
        result = b""
        while not result.endswith(b"[y/N] "):
            result += os.read(controlling, 1_000)
        os.write(controlling, typed.encode())
        program.communicate(timeout=60)
    os.close(controlling)
    assert result == b"Delete all conversations? [y/N] "
    assert program.returncode == (1 if left else 0)
    assert len(answer("list")["conversations"]) == left


def test_an_unknown_conversation_is_reported(two_conversations: tuple[str, str]) -> None:
    result = answer("show", "zzz")
    assert result["error"]["code"] == "conversation_missing"
    assert run("delete", "aaa", "zzz").returncode == 1
    assert len(answer()["conversations"]) == 2


def test_deleting_all_conversations_deletes_what_models_have_read_of_them(
    two_conversations: tuple[str, str], tmp_path: Path
) -> None:
    with closing(open_vault()) as vault:
        for name in (*two_conversations, ""):
            keep(vault, tmp_path, make_state(f"state{name}", name.encode() + b"x" * 20_000, conversation=name))
    run("delete", "all", "--yes")
    with closing(open_vault()) as vault:
        assert [each.conversation for each in vault.list_states()] == [""]
