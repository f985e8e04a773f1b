"""Uses an installed copy as users do, the same on every system: use.py FOLDER first|upgraded COMMAND ...

COMMAND starts mtp-launcher as its user, who may write into FOLDER. "first" opens the window and the cockpit with its
plots, chats with the demo, tunes it, runs an endurance test, prints how an agent is started, changes a setting, and
writes into FOLDER/kept.json what an upgrade must not change. "upgraded" compares with that file. Prints "ok   ..." or
"FAIL ..." for each step; the exit code is 1 after a failure. STOP_AT_FIRST in the environment ends it at the first one.
.ci/windows-setup imports it for programs under wine.
"""
# ruff: noqa: S101, T201

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # an interpreter with a ._pth file does not
from plots import draws_curves

LIMIT_S = 1200
"""Time after which a command counts as hanging."""


@dataclass(frozen=True)
class Copy:
    """An installed copy: how its command is started, a folder that its user may write into, and how it names a path."""

    start: Callable[..., "subprocess.Popen[str]"]
    folder: Path
    name_path: Callable[[Path], str] = str

    def ask(self, *words: str, code: int = 0) -> str:
        """Run a command to its end and return what it printed."""
        process = self.start(*words)
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert process.returncode == code, f"{' '.join(words)}: exit code {process.returncode}: {output[-500:]}"
        return output

    def ask_json(self, *words: str) -> dict[str, object]:
        """Run a command with --json and return its last object."""
        value: dict[str, object] = json.loads(self.ask(*words, "--json").splitlines()[-1])
        return value

    def take_picture(self, name: str, *words: str) -> str:
        """Save a picture of the window in the folder, and return what the command printed."""
        picture = self.folder / name
        picture.unlink(missing_ok=True)
        output = self.ask("gui", *words, "--screenshot", self.name_path(picture))
        assert picture.stat().st_size > 20_000, f"the picture is empty: {picture.stat().st_size} bytes"
        return output


def show_window(copy: Copy) -> str:
    """Open the window twice: the first time, and as on all other days."""
    copy.take_picture("window.png")
    painted = re.search(r'"painted_s": ([\d.]+)', copy.take_picture("window.png"))
    assert painted, "it does not say when it was painted"
    return f"painted {painted[1]} s after the process began"


def show_plots(copy: Copy) -> str:
    """Open the cockpit with the demo running; its plots hold curves."""
    output = copy.take_picture("cockpit.png", "--demo", "--page", "cockpit", "--size", "1440x900")
    full, text = draws_curves(json.loads(output.splitlines()[-1]))
    assert full, text
    return text


def run_demo(copy: Copy) -> str:
    """Run the demo in the terminal."""
    report = copy.ask_json("demo", "--headless")
    assert int(str(report["draft_n_accepted"])) > 0, report
    return f"{report['predicted_n']} tokens, {report['draft_n_accepted']} of {report['draft_n']} drafts accepted"


def chat_with_demo(copy: Copy) -> str:
    """Serve the demo, ask it something, and stop it."""
    server = copy.start("serve", "--model", "demo", "--json")
    try:
        assert server.stdout is not None
        assert "url" in json.loads(server.stdout.readline())
        reply = copy.ask("chat", "What is MTP?", "--max-tokens", "40")
        copy.ask("stop")
        server.communicate(timeout=LIMIT_S)
    finally:
        server.kill()
        server.wait()
    assert reply.strip(), "there is no reply"
    return reply.strip().splitlines()[0][:80]


def tune_demo(copy: Copy) -> str:
    """Tune the demo in a minute, or in the least time that this computer allows."""
    refused = json.loads(copy.start("tune", "demo", "--budget", "0.01", "--json").communicate()[0].splitlines()[0])
    minutes = max(1, math.ceil(refused["least_s"] / 60))
    verdict = copy.ask_json("tune", "demo", "--budget", str(minutes))["verdict"]
    assert isinstance(verdict, dict), verdict
    return f"{minutes} minutes: {verdict['sentence']}"


def endure_demo(copy: Copy) -> str:
    """Load the demo for a minute, and draw a chart of it."""
    chart = copy.folder / "endurance.svg"
    chart.unlink(missing_ok=True)
    report = copy.ask_json("endure", "demo", "--minutes", "1", "--chart", copy.name_path(chart))
    assert "<svg" in chart.read_text("utf-8"), "the chart is no SVG"
    return f"{report['replies']} replies, {report['answer']}; a chart of {chart.stat().st_size} bytes"


def print_agent(copy: Copy) -> str:
    """Print the command that starts a coding agent; the agent itself is not installed."""
    printed = copy.ask("code", "opencode", "--print", "--model", "demo")
    assert '"model": "mtp/demo"' in printed, printed
    return printed.strip().splitlines()[-1]


def keep_state(copy: Copy) -> str:
    """Change a setting, and write down what the user has."""
    copy.ask("settings", "set", "language", "zh_CN")
    state = read_state(copy)
    assert state["measurements"], "the history is empty"
    (copy.folder / "kept.json").write_text(json.dumps(state), "utf-8")
    return f"{len(state['measurements'])} measurements, {len(state['conversations'])} conversations, language zh_CN"


def compare_state(copy: Copy) -> str:
    """Compare what the user has with what was written down."""
    kept, state = json.loads((copy.folder / "kept.json").read_text("utf-8")), read_state(copy)
    assert state == kept, (kept, state)
    copy.ask("settings", "reset", "language")
    return f"{len(state['measurements'])} measurements, {len(state['conversations'])} conversations, the setting"


def read_state(copy: Copy) -> dict[str, list[object]]:
    """Return what an upgrade has to keep."""
    history = json.loads(copy.ask("history", "list", "--json"))["measurements"]
    chats = json.loads(copy.ask("chats", "list", "--json"))["conversations"]
    return {
        "measurements": [each["id"] for each in history],
        "conversations": [each["id"] for each in chats],
        "language": [copy.ask("settings", "get", "language").strip()],
    }


FIRST = {
    "the window, twice": show_window,
    "the cockpit's plots, with the demo running": show_plots,
    "the demo in the terminal": run_demo,
    "serve the demo, chat with it, stop it": chat_with_demo,
    "tune demo": tune_demo,
    "endure demo, a minute of load, with a chart": endure_demo,
    "code opencode --print": print_agent,
    "a setting is changed": keep_state,
}
UPGRADED = {
    "after the upgrade, settings and history are those from before": compare_state,
    "and the demo runs": run_demo,
}


def main(folder: Path, part: str, command: list[str]) -> int:
    """Run all steps of one part, also after a failure; return 1 if a step failed."""

    def start(*words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*command, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    copy = Copy(start, folder)
    failed = 0
    for name, function in (FIRST if part == "first" else UPGRADED).items():
        began_s = time.monotonic()
        try:
            line = f"ok   {name}: {function(copy)}"
        except Exception as error:  # noqa: BLE001 -- whatever it was, the others are tried too
            failed += 1
            line = f"FAIL {name}: {type(error).__name__}: {error}"
        print(f"{line} ({time.monotonic() - began_s:.1f} s)", flush=True)
        if failed and os.environ.get("STOP_AT_FIRST"):
            break
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
