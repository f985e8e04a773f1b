"""`mtp-launcher chats`: list, show, search, export and delete the window's conversations."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from launcher.app.settings import forget_conversations
from launcher.base.codec import to_json
from launcher.base.text import one_line, visible_reply
from launcher.cli.actions import (
    confirm_deletion,
    deletes_all,
    write_new_file,
)
from launcher.cli.layout import format_path, format_table, format_time, wrap_text
from launcher.cli.output import Result
from launcher.conversations.export import as_json_object, as_markdown, find_writer
from launcher.conversations.store import Conversations

if TYPE_CHECKING:
    from launcher.conversations.records import ConversationSummary, SearchHit


async def run(options: argparse.Namespace) -> Result | int:
    """Run the action `options.action`. Exit code 1 if a search found nothing or the user declined."""
    if options.action == "delete" and not await confirm_deletion(options, "conversations"):
        return 1
    return await asyncio.to_thread(_run_action, options)


def _run_action(options: argparse.Namespace) -> Result:
    with Conversations(on_delete=forget_conversations) as conversations:
        if conversations.notice:
            print(f"Note: {conversations.notice}", file=sys.stderr)
        action = {
            "list": _list_conversations,
            "show": _show_conversation,
            "search": _search_conversations,
            "export": _export_conversation,
            "delete": _delete_conversations,
        }[options.action]
        return action(conversations, options)


def _list_conversations(conversations: Conversations, _options: argparse.Namespace) -> Result:
    summaries = conversations.list_all()
    head = ("ID", "CHANGED", "MESSAGES", "TITLE", "MODEL")
    table = format_table([head, *map(_format_row, summaries)], right={2}, indent="")
    if_empty = ["No conversation is kept here. The window keeps its own; `mtp-launcher chat` keeps none."]
    return Result({"conversations": summaries}, table if summaries else if_empty)


def _format_row(each: ConversationSummary) -> tuple[str, ...]:
    return each.id, format_time(each.changed_s), str(each.messages), each.title, each.model


def _show_conversation(conversations: Conversations, options: argparse.Namespace) -> Result:
    conversation = conversations.read_conversation(conversations.resolve_id(options.id))
    text = as_markdown(conversation).removesuffix("\n")
    return Result(as_json_object(conversation), [visible_reply(text) if sys.stdout.isatty() else text])


def _search_conversations(conversations: Conversations, options: argparse.Namespace) -> Result:
    hits = conversations.search(" ".join(options.words))
    data = [to_json(hit.conversation) | {"excerpt": hit.excerpt} for hit in hits]
    return Result({"hits": data}, _format_hits(hits), exit_code=0 if hits else 1)


def _format_hits(hits: Sequence[SearchHit]) -> Iterator[str]:
    if not hits:
        yield "No conversation contains all of these words."
    for hit in hits:
        yield f"{hit.conversation.id}  {one_line(hit.conversation.title)}"
        if hit.excerpt:
            yield wrap_text(one_line(hit.excerpt), " " * 14)


def _export_conversation(conversations: Conversations, options: argparse.Namespace) -> Result:
    write = find_writer(options.to)
    conversation = conversations.read_conversation(conversations.resolve_id(options.id))
    write_new_file(options.to, write(conversation))
    count = len(conversation.messages)
    line = f"Wrote {count} messages to {format_path(options.to)}."
    return Result({"id": conversation.id, "path": str(options.to), "messages": count}, [line])


def _delete_conversations(conversations: Conversations, options: argparse.Namespace) -> Result:
    ids = (
        [each.id for each in conversations.list_all()]
        if deletes_all(options)
        else [conversations.resolve_id(id_) for id_ in options.ids]
    )
    count = conversations.delete(list(dict.fromkeys(ids)))
    return Result({"deleted": count}, [f"Deleted {count} {'conversation' if count == 1 else 'conversations'}."])
