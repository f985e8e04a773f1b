"""A program of an earlier version that serves models: its registry entry and its control socket, but no engine.

It imports nothing of this version. Arguments: the file of the entry, the path of the socket, and the entry as JSON, to
which it adds who it is and where it listens. It prints a line once it listens, and ends when it is asked to stop.
"""

import json
import os
import socket
import sys
from pathlib import Path

_TOKEN = "a token of an earlier version"


def answer(request: dict[str, object], entry: dict[str, object]) -> list[object]:
    """Return the lines of the answer to a request."""
    if request["token"] != _TOKEN:
        return []
    if request["do"] == "status":
        note = {name: entry[name] for name in ("model", "engine", "draft", "engine_pid", "settings")}
        state = {"state": "loading", "percent": 40.0, "error": None, "pid": entry["engine_pid"]}
        return [
            {**state, "note": {**note, **{name: entry[name] for name in ("models",) if name in entry}}},
            {"end": True},
        ]
    if request["do"] == "stop":
        return [{"state": "stopping", "percent": None}, {"stopped": True}, {"end": True}]
    error = {"code": "bad_option", "message": f"{request['do']} is not supported.", "hint": "", "facts": {"verb": 1}}
    return [{"error": error}]


def main(file: Path, path: str, entry: dict[str, object]) -> None:
    """Listen until a stop is asked for."""
    ticks = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
    created_s = ticks / os.sysconf("SC_CLK_TCK")
    entry |= {"pid": os.getpid(), "created_s": created_s, "control": path, "control_token": _TOKEN}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        file.write_text(json.dumps(entry))
        file.chmod(0o600)
        print("listens", flush=True)
        stops = False
        while not stops:
            connection, _ = listener.accept()
            with connection, connection.makefile("rwb") as stream:
                request = json.loads(stream.readline() or "{}")
                lines = answer(request, entry) if request else []
                stops = {"stopped": True} in lines
                if stops:
                    file.unlink()
                stream.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    Path(path).unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
