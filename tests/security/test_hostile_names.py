"""File names, model names and metadata with control characters, wherever the program prints them."""

import json
import os
import shlex
import shutil
import struct
from pathlib import Path

import pytest

from launcher.base.errors import BadOption
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import api_model_name, prepare_launch
from launcher.fetch.file_names import local_path
from launcher.models.gguf import read_header
from tests.security.conftest import CONTROL_CHARACTERS, in_terminal

HOSTILE_NAME = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj.exe\u200b\rFORGED\nFORGED line"
SHELL = "$(touch owned) `touch owned`; touch owned & | > owned 'x' \"y\" %PATH% ${HOME}"


def text(words: bytes) -> bytes:
    return struct.pack("<Q", len(words)) + words


def rename(model: Path, words: bytes) -> bytes:
    """Return the demo model's bytes with another general.name, and the padding before the data adjusted to it."""
    data = model.read_bytes()
    header = read_header(model)
    key = text(b"general.name") + struct.pack("<I", 8)
    at = data.index(key) + len(key)
    (length,) = struct.unpack_from("<Q", data, at)
    tail = data[at + 8 + length : header.data_offset].rstrip(b"\0")
    # The last tensor's offset is 8 bytes, which may end in zeros.
    begin = data[:at] + text(words)
    for zeros in range(9):
        head = begin + tail + b"\0" * zeros
        if len(data[: header.data_offset].rstrip(b"\0")) + zeros == _header_end(data, header.data_offset):
            break
    return head + b"\0" * (-len(head) % 32) + data[header.data_offset :]


def _header_end(data: bytes, offset: int) -> int:
    """The end of the table of tensors, read by the rules of the format."""
    position = 8
    n_tensors, n_keys = struct.unpack_from("<QQ", data, position)
    position += 16
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def skip_text(at: int) -> int:
        return at + 8 + int(struct.unpack_from("<Q", data, at)[0])

    def skip_value(kind: int, at: int) -> int:
        if kind == 8:
            return skip_text(at)
        if kind == 9:
            inner, count = struct.unpack_from("<IQ", data, at)
            at += 12
            for _ in range(count):
                at = skip_value(inner, at)
            return at
        return at + sizes[kind]

    for _ in range(n_keys):
        position = skip_text(position)
        (kind,) = struct.unpack_from("<I", data, position)
        position = skip_value(kind, position + 4)
    for _ in range(n_tensors):
        position = skip_text(position)
        (count,) = struct.unpack_from("<I", data, position)
        position += 4 + 8 * count + 4 + 8
    assert position <= offset
    return position


@pytest.fixture
def hostile(tmp_path: Path, demo_model: Path) -> Path:
    """A complete model with control characters in its name and file name."""
    path = tmp_path / f"{HOSTILE_NAME.replace('/', '')}.gguf"
    path.write_bytes(rename(demo_model, HOSTILE_NAME.encode()))
    return path


def check_harmless(printed: str) -> None:
    assert printed.strip()
    assert not CONTROL_CHARACTERS.search(printed.replace("\r\n", "\n")), printed
    assert not [line for line in printed.splitlines() if line.startswith("FORGED")], printed
    assert "Traceback" not in printed


VERBS = {
    "estimate": ["estimate"],
    "serve, of a file that cannot be served": ["serve", "--ctx", "64", "--draft", "99"],
    "estimate of a file that is not there": ["estimate", "not-"],
}


@pytest.mark.parametrize("command", VERBS.values(), ids=VERBS)
def test_names_have_no_effect_on_a_terminal(hostile: Path, tmp_path: Path, command: list[str]) -> None:
    *verb, last = command if command[-1] == "not-" else [*command, ""]
    path = hostile.with_name(last + hostile.name)
    _, result = in_terminal(verb[0], str(path), *verb[1:], home=tmp_path / "home")
    check_harmless(result)


def test_lists_of_models_print_no_control_characters(hostile: Path, home: Path) -> None:
    folder = home / "data" / "models" / "hub" / "evil"
    folder.mkdir(parents=True)
    shutil.copy(hostile, folder / hostile.name)
    for command in (["models", "list"], ["models", "verify"]):
        _, result = in_terminal(*command, home=home)
        check_harmless(result)


def test_serving_a_hostile_name_prints_no_control_characters(hostile: Path, tmp_path: Path) -> None:
    """The whole way: plan, start, what the engine logs of it, what serve and logs print."""
    serve = ("serve", str(hostile), "--ctx", "512", "--threads", "1")
    code, result = in_terminal(*serve, home=tmp_path / "home", interrupt_after=b"Ctrl-C stops it.")
    assert code == 0, result
    assert "API key" in result
    check_harmless(result)
    code, result = in_terminal("logs", home=tmp_path / "home")
    check_harmless(result)


@pytest.mark.parametrize(
    "words", [HOSTILE_NAME, "n" * 2**20, SHELL, "\0\0", "\ud800".encode("utf-8", "replace").decode()]
)
def test_json_preserves_the_name_without_control_characters(demo_model: Path, tmp_path: Path, words: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(rename(demo_model, words.encode()))
    code, result = in_terminal("estimate", str(path), "--json", home=tmp_path / "home")
    assert code == 0
    assert not CONTROL_CHARACTERS.search(result.replace("\r\n", "\n"))
    assert len(json.loads(result)["model"]) < 200 if "model" in json.loads(result) else result


@pytest.mark.parametrize("name", [SHELL, "-rf", "--api-key=x", "a b", "*", "~root"])
async def test_a_name_is_one_argument_of_a_shell(
    demo_model: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"{name.replace('/', '')}.gguf"
    shutil.copy(demo_model, path)
    options = ServeOptions(model=path, built_in=True)
    launch = await prepare_launch(options, Endpoint(20_001, "k" * 43))
    arguments = list(launch.command.arguments)
    assert arguments[arguments.index("--model") + 1] == str(path)
    alias = arguments[arguments.index("--alias") + 1]
    assert alias == api_model_name(launch.options)
    assert not alias.startswith("-")
    assert "," not in alias
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    "name",
    ["../../.ssh/authorized_keys", "/etc/passwd", "a/../../b", "..", ".", "", "C:\\Windows\\x", "\\\\host\\share\\x",
     "con.gguf", "a\nb.gguf", "a\x1b[31m.gguf", "a\u202efugg.exe", "x:stream", "~/x", "$(id).gguf", "a;b", "-rf"],
)  # fmt: skip
def test_a_name_from_the_net_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "models"
    try:
        path = local_path(folder, name)
    except BadOption:
        return
    resolved = Path(os.path.normpath(path))
    assert resolved.is_relative_to(folder)
    assert resolved != folder
    assert not CONTROL_CHARACTERS.search(str(path))
    assert shlex.split(shlex.quote(str(path))) == [str(path)]
