"""Calls of tools in replies, as text: an engine that has parsed them sends them apart from the text of the reply."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from launcher.gui.chat.markdown import TOOL_CALL_MARKS

if TYPE_CHECKING:
    from launcher.engine.server.client import Delta, ToolCallPart


class ToolCallWriter:
    """Puts the tool calls of one reply into its text, as a model writes tool calls if its request offers no tools.

    So the calls are shown, kept, searched and exported with the reply, and sent back with it.
    """

    def __init__(self) -> None:
        self._index: int | None = None
        """The number of the call that is being written."""
        self._has_arguments = False

    def write_calls(self, deltas: "Sequence[Delta]") -> "list[Delta]":
        """Return deltas with their tool calls in the content."""
        return [replace(each, content=self._write_delta(each)) if self._concerns(each) else each for each in deltas]

    def end_call(self) -> str:
        """Return the text that ends the call that is being written, or nothing."""
        if self._index is None:
            return ""
        self._index = None
        return f"{'' if self._has_arguments else '{}'}}}\n{TOOL_CALL_MARKS[1]}\n"

    def _concerns(self, delta: "Delta") -> bool:
        return bool(delta.tool_calls) or (self._index is not None and bool(delta.content))

    def _write_delta(self, delta: "Delta") -> str:
        text = self.end_call() + delta.content if delta.content else ""
        return text + "".join(part for call in delta.tool_calls for part in self._write_part(call))

    def _write_part(self, part: "ToolCallPart") -> Iterator[str]:
        if part.index != self._index:
            yield self.end_call()
            self._index, self._has_arguments = part.index, False
            yield f'\n{TOOL_CALL_MARKS[0]}\n{{"name": {json.dumps(part.name, ensure_ascii=False)}, "arguments": '
        self._has_arguments |= bool(part.arguments)
        yield part.arguments
