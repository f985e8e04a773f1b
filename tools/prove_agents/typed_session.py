"""An agent in a terminal of its own: questions are typed, and answers are read from the screen."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tools.prove_agents.workplace import Workplace

_ROWS, _COLUMNS = 50, 110
_CONTROL = re.compile(
    r"\x1b(?:\[([0-9;?]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[P_][^\x1b]*\x1b\\|[ -/]*[0-~])|[\r\n\b]"
)
_RULE = "────"
"""Character that begins the frame of the input line, below the conversation."""
_TERMINAL_QUERY, _TERMINAL_REPLY = b"\x1b[c", b"\x1b[?62;c"
_QUIET_S, _SHOWING_S = 1.0, 5.0
"""Seconds without a change after which a screen counts as drawn, and the longest wait for a screen that keeps changing.
"""
_LIMIT_S = 300.0
_TRIES = 3
_ENTER, _CTRL_C = b"\r", b"\x03"


class TypedSession:
    """An agent that `mtp-launcher code` has started in a terminal."""

    def __init__(self, leader: int, process: subprocess.Popen[bytes]) -> None:
        self._leader, self._process = leader, process
        self._output = b""

    def ask_question(self, question: str, has_ended: Callable[[], bool]) -> list[str]:
        """Type a question; return the lines of the screen with the answer once it has ended. Raises TimeoutError.

        An agent may show something else first, such as an advertisement, that goes away with the first key.
        """
        for _ in range(_TRIES):
            self._press(question.encode())
            if any(question in line for line in self.draw_screen()):
                break
        self._press(_ENTER)
        began_s = time.monotonic()
        while not has_ended():
            self._read_screen()
            if time.monotonic() - began_s > _LIMIT_S:
                raise TimeoutError("\n".join(self.draw_screen()))
        self._read_screen()
        lines = self.draw_screen()
        begin = max((at for at, line in enumerate(lines) if question in line), default=0)
        end = next((at for at, line in enumerate(lines) if at > begin and line.startswith(_RULE)), len(lines))
        return lines[begin + 1 : end]

    def draw_screen(self) -> list[str]:
        """Return the lines of the screen."""
        return draw_screen(self.output)

    def wait_until_drawn(self) -> None:
        """Wait until the agent has drawn something, and no longer draws."""
        while self._process.poll() is None and not any(self.draw_screen()[1:]):
            self._read_screen()
        self._read_screen()

    def end_session(self) -> int:
        """Press Ctrl-C until the agent ends; return the exit code."""
        while self._process.poll() is None:
            self._press(_CTRL_C)
        return self._process.returncode

    @property
    def output(self) -> str:
        """All output of the agent, with control characters."""
        return self._output.decode(errors="replace")

    def _press(self, keys: bytes) -> None:
        os.write(self._leader, keys)
        self._read_screen()

    def _read_screen(self) -> None:
        """Read what the agent prints until the screen is drawn, or it has ended."""
        began_s = time.monotonic()
        while time.monotonic() - began_s < _SHOWING_S and select.select([self._leader], [], [], _QUIET_S)[0]:
            try:
                data = os.read(self._leader, 65_536)
            except OSError:  # the agent's end of the terminal is closed
                return
            self._output += data
            if _TERMINAL_QUERY in data:
                os.write(self._leader, _TERMINAL_REPLY)


@contextmanager
def typed_session(place: Workplace, *words: str) -> Iterator[TypedSession]:
    """Run a command of `mtp-launcher` in a terminal within the block."""
    leader, follower = pty.openpty()
    fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "launcher", *words],
        env={**place.environment, "TERM": "xterm-256color"},
        cwd=place.project,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    try:
        yield TypedSession(leader, process)
    finally:
        if process.poll() is None:
            process.terminate()  # the command ends its agent, too
            process.wait()
        os.close(leader)


def draw_screen(output: str) -> list[str]:
    """Return the lines of a screen on which a program has drawn by moving the cursor."""
    cells = [[" "] * _COLUMNS for _ in range(_ROWS)]
    row = column = at = 0
    for control in _CONTROL.finditer(output):
        for sign in output[at : control.start()]:
            if row < _ROWS and column < _COLUMNS:
                cells[row][column] = sign
            column += 1
        at = control.end()
        numbers = [int(number) if number.isdecimal() else 0 for number in (control[1] or "").split(";")]
        if control[2] == "H":
            row, column = max(1, numbers[0]) - 1, max(1, numbers[-1] if len(numbers) > 1 else 1) - 1
        elif control[2] == "J":
            cells = [[" "] * _COLUMNS for _ in range(_ROWS)]
        elif control[2] == "K":
            cells[row][column:] = [" "] * (_COLUMNS - column)
        elif control[2] == "C":
            column += max(1, numbers[0])
        elif control[2] == "G":
            column = max(1, numbers[0]) - 1
        elif control[0] == "\r":
            column = 0
        elif control[0] == "\n":
            row += 1
        elif control[0] == "\b":
            column -= 1
    return ["".join(line).rstrip() for line in cells]
