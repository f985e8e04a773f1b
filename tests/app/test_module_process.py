"""Modules in short processes of their own: what they print, how they fail, and what outlives them."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.app.module_process import ModuleFailed, run_module

STARTS_ANOTHER = """
import subprocess, sys
port = sys.stdin.read()
program = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(1)"
subprocess.Popen([sys.executable, "-c", program, port])
print("printed", flush=True)
"""
"""This module starts a program that keeps the module's pipes open until the test has closed the connection."""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder whose modules can be run."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Listen on a port of this computer's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


async def test_a_module_reads_its_order_and_its_output_is_returned(modules: Path) -> None:
    (modules / "turned.py").write_text("import sys; print(sys.stdin.read()[::-1], end='')", "utf-8")
    order = b"abc" * 100_000
    assert await run_module("turned", order, limit_s=60) == order[::-1]


async def test_a_failed_module_is_reported_by_its_last_line(modules: Path) -> None:
    (modules / "fails.py").write_text("import sys; sys.exit('first\\nno such page')", "utf-8")
    with pytest.raises(ModuleFailed, match=r"^no such page$"):
        await run_module("fails", limit_s=60)


async def test_the_wait_for_a_module_ends_with_it_even_if_a_process_that_it_started_runs(
    modules: Path, listener: socket.socket
) -> None:
    (modules / "starts_another.py").write_text(STARTS_ANOTHER, "utf-8")
    printed = await run_module("starts_another", str(listener.getsockname()[1]).encode(), limit_s=60)
    assert printed.strip() == b"printed"
    listener.accept()[0].close()  # the grandchild still runs; closing the connection ends it


async def test_a_module_that_takes_too_long_is_ended_even_if_a_process_that_it_started_runs(
    modules: Path, listener: socket.socket
) -> None:
    (modules / "starts_another.py").write_text(STARTS_ANOTHER + "\nimport threading; threading.Event().wait()", "utf-8")
    with pytest.raises(TimeoutError):
        await run_module("starts_another", str(listener.getsockname()[1]).encode(), limit_s=3)
