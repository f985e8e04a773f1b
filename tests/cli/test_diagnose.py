"""`mtp-launcher diagnose`: a file, standard input, JSON, input that is no log, and a log of 100 MB."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cli.diagnose import _check_health
from launcher.engine.diagnosis.log_reading import HEAD_BYTES, TAIL_BYTES, read_log
from tests import forked

PORT = (
    "0.00.000.700 I srv  llama_server: initializing ...\n"
    "0.00.005.116 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 9101\n"
    "0.00.005.180 E srv  llama_server: exiting due to HTTP server error\n"
)


def diagnose(*arguments: str, standard_input: bytes = b"") -> subprocess.CompletedProcess[str]:
    return forked.run("diagnose", *arguments, input=standard_input)


def test_the_text_says_what_happened_why_and_what_to_do(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(PORT)
    result = diagnose(str(log))
    assert result.returncode == 0
    assert result.stdout.startswith("Port 9101 is in use by another program.\n")
    assert "Why: " in result.stdout
    assert "--port" in result.stdout


async def test_a_server_that_has_ended_meanwhile_is_not_called_healthy() -> None:
    assert await _check_health("http://127.0.0.1:9", "engine.log") is None


def test_json_has_code_title_cause_and_action() -> None:
    result = diagnose("-", "--json", standard_input=PORT.encode())
    answer = json.loads(result.stdout)
    assert answer["code"] == "port_busy"
    assert answer["title"] == "Port 9101 is in use by another program."
    assert answer["cause"]
    assert answer["action"] == {"kind": "other_port", "label": "Start on another port", "parameters": {"port": 9101}}
    assert answer["facts"] == {"host": "127.0.0.1", "port": 9101}


def test_the_exit_code_counts_as_evidence() -> None:
    assert json.loads(diagnose("-", "--json", "--exit-code", "137").stdout)["code"] == "killed"
    assert json.loads(diagnose("-", "--json", "--exit-code=-4").stdout)["code"] == "cpu_unsupported"
    crashed = diagnose("-", "--exit-code", "-11", standard_input=b"0.00.000.100 I srv  slot: going on\n")
    assert crashed.stdout.startswith("The engine crashed.\n")
    assert "slot: going on" in crashed.stdout


@pytest.mark.parametrize(
    "code", ["-1073740791", "3221226505", "0xC0000409", "18446744072635810825", "18446744072635812000"]
)
def test_an_exit_code_of_windows_counts_in_each_way_of_writing(code: str) -> None:
    """lmstudio #1950: some programs widen it to 64 bits, and round it."""
    assert json.loads(diagnose("-", "--json", f"--exit-code={code}").stdout)["code"] == "crashed"
    log = f"[ERROR] The model has crashed without additional information. (Exit code: {code})\n"
    assert json.loads(diagnose("-", "--json", standard_input=log.encode()).stdout)["code"] == "crashed"


@pytest.mark.parametrize(
    ("code", "cause"),
    [("18446744072635810101", "library_of_windows_missing"), ("-1073741795", "cpu_unsupported"), ("-9", "killed")],
)
def test_exact_exit_codes_are_told_apart(code: str, cause: str) -> None:
    assert json.loads(diagnose("-", "--json", f"--exit-code={code}").stdout)["code"] == cause


@pytest.mark.parametrize("code", ["99999999999", "ten"])
def test_an_invalid_exit_code_is_refused(code: str) -> None:
    result = diagnose("-", "--exit-code", code)
    assert result.returncode == 2
    assert f"{code} is not an exit code" in result.stderr


def test_a_log_without_a_known_cause_shows_its_first_error() -> None:
    result = diagnose("-", standard_input=b"0.00.000.100 E srv  load: the flux capacitor is dry\n")
    assert result.returncode == 1
    assert "shows no known cause" in result.stdout
    assert "the flux capacitor is dry" in result.stdout
    answer = json.loads(diagnose("-", "--json", standard_input=b"\n").stdout)
    assert (answer["code"], answer["line"], answer["cause"], answer["action"]) == (None, None, None, None)


def test_an_unreadable_log_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.log", tmp_path):
        result = diagnose(str(path))
        assert result.returncode == 1
        assert result.stderr.startswith(f"Error: {path} cannot be read: ")


def test_a_pipe_and_a_device_do_not_block(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        result = diagnose(str(path))
        assert result.returncode == 1
        assert result.stderr.startswith(f"Error: {path} cannot be read: it is not an ordinary file")
        assert "- to read standard input" in result.stderr


def test_sigterm_ends_diagnose_while_it_waits_for_standard_input() -> None:
    command = [sys.executable, "-m", "launcher", "diagnose", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        while not _catches_signal(process.pid, signal.SIGTERM):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 143


def _catches_signal(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def test_a_log_written_by_powershell_is_read(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(PORT.replace("\n", "\r\n").encode("utf-16"))
    assert json.loads(diagnose(str(log), "--json").stdout)["code"] == "port_busy"


def test_only_the_ends_of_a_log_of_100_mb_are_read(tmp_path: Path) -> None:
    log = tmp_path / "long.log"
    with log.open("wb") as file:
        file.write(PORT.split("\n")[0].encode() + b"\n")
        file.seek(100 * 2**20)
        file.write(b"\n" + PORT.split("\n", 1)[1].encode())
    assert len(read_log(log)) <= HEAD_BYTES + TAIL_BYTES
    assert json.loads(diagnose(str(log), "--json").stdout)["code"] == "port_busy"


def test_input_without_line_ends_is_read_up_to_a_limit() -> None:
    flood = b"0.00.000.101 I srv  nothing to see\n" * 700_000
    result = diagnose("-", "--json", standard_input=flood + PORT.encode())
    assert json.loads(result.stdout)["code"] == "port_busy"


def test_binary_data_is_not_printed() -> None:
    result = diagnose("-", "--json", standard_input=random.Random(1).randbytes(2**20))
    answer = json.loads(result.stdout)
    assert (answer["code"], answer["line"]) == (None, None)
    assert answer["title"] == "This is not a log: it is not a text file."


def test_only_the_beginning_of_a_long_line_is_read(tmp_path: Path) -> None:
    log = tmp_path / "line.log"
    log.write_bytes(b"x" * 30 * 2**20 + b"\n" + PORT.encode())
    assert len(read_log(log)) < 2**16
    assert json.loads(diagnose(str(log), "--json").stdout)["code"] == "port_busy"
