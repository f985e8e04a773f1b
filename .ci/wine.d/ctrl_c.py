"""Starts the launcher in a terminal of its own, types Ctrl-C (byte 3) as a user does, and lists the processes that are
left.

python3 ctrl_c.py PROGRAM ARGUMENT ...      the Windows Python; Linux side, standard library only
"""
# ruff: noqa: S606, T201

import os
import pty
import select
import subprocess
import sys
import time

_PATIENCE_S = 300.0


def _type_ctrl_c(command: list[str], cue: bytes) -> tuple[int | None, float, str]:
    """Start `command` in a terminal, type Ctrl-C after `cue`; return exit code, seconds to the end, all output."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(command[0], command)
    output, typed_s, deadline_s = b"", 0.0, time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                data = os.read(terminal, 65_536)
            except OSError:  # the program has ended, and its end of the terminal is closed
                break
            if not data:
                break
            output += data
        if not typed_s and cue in output:
            time.sleep(0.5)
            os.write(terminal, b"\x03")
            typed_s = time.monotonic()
    text = output.decode("utf-8", "replace")
    while time.monotonic() < deadline_s:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), time.monotonic() - typed_s, text
        time.sleep(0.05)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return None, _PATIENCE_S, text


def _list_python_pids(command: list[str]) -> str:
    """Return the IDs of the Windows processes that still run Python, except the one that lists them."""
    listing = "import os, psutil; print(*(p for p in psutil.pids() if p != os.getpid() and _python(p)), sep=',')"
    definitions = "import ctypes\n"
    definitions += "def _python(pid):\n k = ctypes.WinDLL('kernel32'); h = k.OpenProcess(0x1000, 0, pid)\n"
    definitions += " b = ctypes.create_unicode_buffer(500); n = ctypes.c_ulong(500)\n"
    definitions += " return bool(k.QueryFullProcessImageNameW(h, 0, b, ctypes.byref(n))) and 'python' in b.value\n"
    answer = subprocess.run(
        [*command, "-c", definitions + listing], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return answer.stdout.decode().strip()


def main(command: list[str]) -> None:
    """Type Ctrl-C at a server that is ready, and at a demo that is answering."""
    proofs = (
        (["serve", "--model", "demo", "--json"], b'"pid"', 0, "serve ends with exit code 0"),
        (["demo", "--headless", "--seconds", "30"], b"first token", 130, "demo ends with exit code 130"),
    )
    for arguments, cue, wanted, name in proofs:
        code, seconds, text = _type_ctrl_c([*command, "-m", "launcher", *arguments], cue)
        left = _list_python_pids(command)
        if code == wanted and not left and "Traceback" not in text:
            print(f"ok   Ctrl-C in a terminal: {name} after {seconds:.1f} s, no process is left")
        else:
            print(f"FAIL Ctrl-C in a terminal: {name}: exit code {code}, processes left: {left or 'none'}; {text!r}")
    print("done ctrl_c", flush=True)


main(sys.argv[1:])
