"""The memory tables that llama-server prints while it fits a model: as JSON lines, or as text where there are none."""

import json
from dataclasses import dataclass, field

_TITLE = "memory breakdown [MiB]"
_END = "projected to use"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table, in whole MiB; a device's `name` is such as CUDA0, the host's kinds have other names."""

    name: str
    device: bool
    model: int
    context: int
    compute: int
    total: int | None = None
    free: int | None = None


Table = tuple[Row, ...]


@dataclass(slots=True)
class BreakdownReader:
    """Collects the tables from an engine's lines of output. `ended` once no more of the first trial will come."""

    tables: list[Table] = field(default_factory=list)
    ended: bool = False
    _rows: list[Row] | None = None
    _json: bool = False

    def feed(self, line: str) -> None:
        """Take one line."""
        if line.startswith("{"):
            self._feed_json(line)
        else:
            self._feed_text(line)

    def _feed_json(self, line: str) -> None:
        try:
            record = json.loads(line)
        except ValueError:
            return
        if not isinstance(record, dict):
            return
        if record.get("type") == "fit_memory_breakdown":
            data = record.get("data")
            rows = data.get("rows") if isinstance(data, dict) else None
            table = [_json_row(row) for row in rows] if isinstance(rows, list) else []
            whole = tuple(row for row in table if row is not None)
            if table and len(whole) == len(table):
                self._json = True
                self.tables.append(whole)
        elif isinstance(record.get("msg"), str):
            if self._json:
                self.ended |= _END in record["msg"]
            else:
                self._feed_text(record["msg"].rstrip("\n"))

    def _feed_text(self, line: str) -> None:
        self.ended |= _END in line
        if _TITLE in line:
            self._close()
            self._rows = []
        elif self._rows is not None:
            row = _text_row(line)
            if row is None:
                self._close()
            else:
                self._rows.append(row)

    def _close(self) -> None:
        if self._rows:
            self.tables.append(tuple(self._rows))
        self._rows = None


def _json_row(row: object) -> Row | None:
    """Read one row of a record; None when it is none, or lacks a figure."""
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        return None
    model, context, compute, total, free = (
        value if isinstance(value := row.get(key), int) and not isinstance(value, bool) else None
        for key in ("model", "context", "compute", "total", "free")
    )
    if model is None or context is None or compute is None:
        return None
    device = row.get("kind") == "device"
    return Row(row["name"], device, model, context, compute, total if device else None, free if device else None)


def _text_row(line: str) -> Row | None:
    """Read `| - NAME (ABOUT) | TOTAL = FREE + (SELF = MODEL + CONTEXT + COMPUTE) + REST |`, or a host's."""
    cells = line.split("|")
    if len(cells) < 4 or not cells[1].strip().startswith("- "):
        return None
    name = cells[1].strip().removeprefix("- ").split(" (")[0].strip()
    words = cells[-2].replace("(", " ").replace(")", " ").replace("=", " ").replace("+", " ").split()
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        return None
    if len(numbers) == 7:
        total, free, _, model, context, compute, _ = numbers
        return Row(name, True, model, context, compute, total, free)
    if len(numbers) == 4:
        _, model, context, compute = numbers
        return Row(name, False, model, context, compute)
    return None
