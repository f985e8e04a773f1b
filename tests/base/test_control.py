"""Control sockets between programs: who gets an answer, and who does not."""

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.base.control import ControlAddress, ControlServer, send_request
from launcher.base.errors import BadOption, LauncherError, Unreachable

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="named pipes are tried by .ci/wine")
NOBODY = 65_534


class Program:
    """A program with a control socket, which records the requests and answers them."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Mapping[str, Any]]] = []
        self.left = asyncio.Event()

    async def answer(self, verb: str, fields: Mapping[str, Any]) -> AsyncIterator[Any]:
        self.requests.append((verb, fields))
        if verb == "refuse":
            raise BadOption("That is no option.", "Take another.", option="x")
        if verb == "fail":
            raise ZeroDivisionError("by nought")
        try:
            yield {"heard": fields.get("say")}
            if verb == "wait":
                await asyncio.Event().wait()
        finally:
            self.left.set()
        yield ["and", "more"]


@asynccontextmanager
async def listen_in_folder(folder: Path) -> AsyncIterator[tuple[Program, ControlAddress, ControlServer]]:
    program = Program()
    server = ControlServer(program.answer)
    try:
        yield program, await server.listen(folder, "line"), server
    finally:
        await server.close()


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user of this computer may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


async def answers(address: ControlAddress, verb: str, **fields: object) -> list[Any]:
    return [value async for value in send_request(address, verb, **fields)]


async def test_a_request_is_answered(tmp_path: Path) -> None:
    async with listen_in_folder(tmp_path) as (program, address, _):
        assert await answers(address, "tell", say="grüß dich") == [{"heard": "grüß dich"}, ["and", "more"]]
        assert program.requests == [("tell", {"say": "grüß dich"})]


async def test_an_error_keeps_its_class(tmp_path: Path) -> None:
    async with listen_in_folder(tmp_path) as (_, address, _server):
        with pytest.raises(LauncherError, match="That is no option") as raised:
            await answers(address, "refuse")
        assert (raised.value.code, raised.value.hint, raised.value.facts) == (
            "bad_option",
            "Take another.",
            {"option": "x"},
        )


async def test_a_bug_in_the_handler_is_reported_and_the_program_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with listen_in_folder(tmp_path) as (_, address, _server):
        with pytest.raises(LauncherError, match="ZeroDivisionError"):
            await answers(address, "fail")
        assert await answers(address, "tell")
    assert "A control request failed" in caplog.text


async def test_a_wrong_token_is_refused(tmp_path: Path) -> None:
    async with listen_in_folder(tmp_path) as (program, address, _):
        for token in ("", "x", address.token[:-1], address.token + "x", "ü"):
            with pytest.raises(LauncherError, match="token is wrong") as raised:
                await answers(replace(address, token=token), "tell")
            assert raised.value.code == "control_refused"
        assert program.requests == []


@pytest.mark.parametrize(
    "sent",
    [b"\n", b"{}\n", b"[]\n", b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\n", b"{" * 5_000 + b"\n", b"[" * 2_000_000],
)
async def test_an_invalid_request_gets_no_answer(tmp_path: Path, sent: bytes) -> None:
    async with listen_in_folder(tmp_path) as (program, address, _):
        reader, writer = await asyncio.open_unix_connection(address.path)
        writer.write(sent)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        assert program.requests == []
        assert await answers(address, "tell")


async def test_an_answer_ends_when_the_client_has_left(tmp_path: Path) -> None:
    async with listen_in_folder(tmp_path) as (program, address, _):
        async for _value in send_request(address, "wait"):
            break
        await asyncio.wait_for(program.left.wait(), 120)


async def test_a_client_is_notified_when_the_program_ends(tmp_path: Path) -> None:
    async with listen_in_folder(tmp_path) as (_, address, server):
        waiting = send_request(address, "wait")
        assert await anext(waiting) == {"heard": None}
        await server.close()
        with pytest.raises(Unreachable):
            await anext(waiting)
    with pytest.raises(Unreachable):
        await answers(address, "tell")


async def test_the_socket_is_deleted_at_the_end(tmp_path: Path) -> None:
    async with listen_in_folder(tmp_path) as (_, address, _server):
        assert Path(address.path).exists()
    assert list(tmp_path.iterdir()) == []


async def test_a_socket_left_by_a_killed_program_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "line"))
    async with listen_in_folder(tmp_path) as (_, address, _server):
        assert await answers(address, "tell")


async def test_a_path_longer_than_a_socket_address_works(tmp_path: Path) -> None:
    async with listen_in_folder(tmp_path / ("x" * 120) / ("y" * 120)) as (_, address, _server):
        assert len(address.path) > 240
        assert await answers(address, "tell")


async def test_socket_and_folder_are_readable_by_their_owner_only(public_folder: Path) -> None:
    before = os.umask(0)
    try:
        async with listen_in_folder(public_folder / "run") as (_, address, _server):
            assert stat.S_IMODE((public_folder / "run").stat().st_mode) == 0o700
            assert stat.S_IMODE(Path(address.path).stat().st_mode) == 0o600
    finally:
        os.umask(before)


@pytest.mark.parametrize("opened", ["nothing", "folder", "folder and socket"])
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be another user")
async def test_another_user_is_refused_even_with_the_token(public_folder: Path, opened: str) -> None:
    """The folder and the socket are open to all here, but the kernel reports which user connects."""
    request = json.dumps({"do": "tell", "token": "TOKEN"})
    stranger = (
        f"import os, socket, sys; os.setgid({NOBODY}); os.setuid({NOBODY}); line = socket.socket(socket.AF_UNIX)\n"
        "try:\n line.connect(sys.argv[1])\nexcept PermissionError:\n print('no way in'); sys.exit()\n"
        "try:\n line.sendall(sys.argv[2].encode() + b'\\n')\n print(line.recv(1000))\n"
        "except ConnectionError:\n print(b'')"
    )
    async with listen_in_folder(public_folder / "run") as (program, address, _):
        if "folder" in opened:
            (public_folder / "run").chmod(0o755)
        if "socket" in opened:
            Path(address.path).chmod(0o666)
        request = request.replace("TOKEN", address.token)
        process = await asyncio.create_subprocess_exec(
            "/usr/bin/env", "-i", sys.executable, "-I", "-S", "-c", stranger, address.path, request,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        result, _ = await process.communicate()
        assert result.decode().strip() == ("b''" if "socket" in opened else "no way in")
        assert program.requests == []


async def test_many_simultaneous_requests_are_answered_or_refused(tmp_path: Path) -> None:
    async with listen_in_folder(tmp_path) as (_, address, _server):
        ends = await asyncio.gather(*(answers(address, "tell") for _ in range(60)), return_exceptions=True)
        assert all(isinstance(end, Unreachable) or end[0] == {"heard": None} for end in ends)
        assert await answers(address, "tell")


async def test_idle_connections_block_no_other(tmp_path: Path) -> None:
    async with listen_in_folder(tmp_path) as (_, address, _server):
        silent = [await asyncio.open_unix_connection(address.path) for _ in range(40)]
        silent[-1][1].write(b'{"do": "te')  # an incomplete request
        try:
            assert await answers(address, "tell") == [{"heard": None}, ["and", "more"]]
            assert await answers(address, "tell", say="again") == [{"heard": "again"}, ["and", "more"]]
        finally:
            for _reader, writer in silent:
                writer.close()


async def test_long_answers_block_no_other(tmp_path: Path) -> None:
    async with listen_in_folder(tmp_path) as (_, address, server):
        waiting = [send_request(address, "wait") for _ in range(40)]
        for each in waiting:
            assert await anext(each) == {"heard": None}
        assert await answers(address, "tell")
        await server.close()
        for each in waiting:
            with pytest.raises(Unreachable):
                await anext(each)
