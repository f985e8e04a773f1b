"""Starts programs under wine as Windows would, and lists the files and registry keys of the wine prefix."""
# ruff: noqa: S101, S607

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 1200.0
"""Seconds after which a program is taken for one that hangs."""
_START = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1]))"
"""Starts one command line unchanged, with letters of any script: setup programs want /D=FOLDER last, without quotes."""
_DESKTOP = "import ctypes, sys; ctypes.windll.user32.GetDesktopWindow(); print('ready', flush=True); sys.stdin.read()"
"""Asks for the desktop, and uses it until its input ends: wine ends a desktop one second after its last user."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A program that has ended."""

    code: int
    output: str
    seconds: float


class Wine:
    """A wine prefix. A Windows Python from the setup program's build starts programs in it."""

    def __init__(self, prefix: Path, python: Path) -> None:
        self.drive = prefix / "drive_c"
        self._prefix, self._python = prefix, python
        self._error_log = prefix.with_name("programs.log")
        with self._error_log.open("wb") as log:
            drain = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=log)
        self._errors = drain.stdin  # a pipe, because Windows Python under wine fails with a file

    def error_tail(self, lines: int = 20) -> str:
        """Return the last lines that programs have written to standard error."""
        return "\n".join(self._error_log.read_text("utf-8", "replace").splitlines()[-lines:])

    @property
    def user(self) -> Path:
        """The profile folder of the prefix's only user."""
        [folder] = (each for each in (self.drive / "users").iterdir() if each.name != "Public")
        return folder

    def path(self, path: Path) -> str:
        """Return the Windows path of a file of this system."""
        if path.is_relative_to(self.drive):
            return "C:\\" + str(path.relative_to(self.drive)).replace("/", "\\")
        return "Z:" + str(path).replace("/", "\\")

    def run(self, line: str, timeout_s: float = LIMIT_S, **environment: str) -> Ended:
        """Run a command line to its end."""
        began_s = time.monotonic()
        process = self.start(line, **environment)
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            output += "\n(it did not end in time)"
        return Ended(process.returncode, output, time.monotonic() - began_s)

    def start(self, line: str, **environment: str) -> "subprocess.Popen[str]":
        """Start a command line; its output is a pipe, its errors go into programs.log."""
        return subprocess.Popen(
            ["wine", str(self._python), "-X", "utf8", "-c", _START, line],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            errors="replace",
            env={**os.environ, **environment},
        )

    def start_desktop(self) -> None:
        """Give the prefix a desktop, as Windows has one, until `end_programs`.

        Otherwise the first program that asks for a desktop starts it, and the desktop keeps the pipes of that program
        open. Whoever reads the output of that program to its end, such as that of a chart's painter, waits for ever.
        """
        self._desktop = subprocess.Popen(
            ["wine", str(self._python), "-c", _DESKTOP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        assert self._desktop.stdout is not None
        assert "ready" in self._desktop.stdout.readline()

    def end_programs(self) -> None:
        """End all that runs in the prefix, the desktop too; wine then writes the registry into its files."""
        subprocess.run(["wineserver", "-k"], check=False)
        subprocess.run(["wineserver", "-w"], check=False)

    def files(self) -> dict[str, int]:
        """Return all files and folders of the C: drive, with the files' sizes."""
        return {
            str(each.relative_to(self.drive)): each.lstat().st_size if each.is_file() else -1
            for each in self.drive.rglob("*")
        }

    def registry(self) -> set[str]:
        """Return the registry as lines "[key] value"; for that, all that runs in the prefix is ended."""
        self.end_programs()
        lines = set()
        for name in ("user.reg", "system.reg"):
            key = ""
            for line in (self._prefix / name).read_text("utf-8", "replace").splitlines():
                if line.startswith("["):
                    key = f"{name} {line.rpartition('] ')[0]}]"
                    lines.add(key)
                elif line and not line.startswith("#"):
                    lines.add(f"{key} {line}")
        self.start_desktop()
        return lines

    def value(self, key: str, name: str) -> str | None:
        """Return a value of the user's registry, or None."""
        script = f"import winreg as w; print(w.QueryValueEx(w.OpenKey(w.HKEY_CURRENT_USER, r'{key}'), '{name}')[0])"
        ended = self.run(f'"{self.path(self._python)}" -X utf8 -c "{script}"')
        return ended.output.strip() if ended.code == 0 else None
