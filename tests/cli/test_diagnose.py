"""`mtp-launcher diagnose`: a file, standard input, JSON, what is no log, and a log of 100 MB."""

import json
import subprocess
import sys
from pathlib import Path

from launcher.engine.diagnosis_log import HEAD_BYTES, TAIL_BYTES, read_log

PORT = (
    "0.00.000.700 I srv  llama_server: initializing ...\n"
    "0.00.005.116 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 9101\n"
    "0.00.005.180 E srv  llama_server: exiting due to HTTP server error\n"
)


def diagnose(*arguments: str, standard_input: bytes = b"") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launcher", "diagnose", *arguments]
    told = subprocess.run(command, input=standard_input, capture_output=True, timeout=60, check=False)
    return subprocess.CompletedProcess(command, told.returncode, told.stdout.decode(), told.stderr.decode())


def test_a_person_reads_what_happened_why_and_what_to_do(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(PORT)
    told = diagnose(str(log))
    assert told.returncode == 0
    assert told.stdout.startswith("Port 9101 is in use by another program.\n")
    assert "Why: " in told.stdout
    assert "--port" in told.stdout


def test_a_program_gets_code_title_cause_and_action() -> None:
    told = diagnose("-", "--json", standard_input=PORT.encode())
    answer = json.loads(told.stdout)
    assert answer["code"] == "port_busy"
    assert answer["title"] == "Port 9101 is in use by another program."
    assert answer["cause"]
    assert answer["action"] == {"kind": "other_port", "label": "Start on another port", "parameters": {"port": 9101}}
    assert answer["facts"] == {"host": "127.0.0.1", "port": 9101}


def test_the_exit_code_is_a_witness_too() -> None:
    assert json.loads(diagnose("-", "--json", "--exit-code", "137").stdout)["code"] == "killed"
    assert json.loads(diagnose("-", "--json", "--exit-code=-4").stdout)["code"] == "cpu_unsupported"


def test_a_log_without_a_known_cause_shows_its_first_error() -> None:
    told = diagnose("-", standard_input=b"0.00.000.100 E srv  load: the flux capacitor is dry\n")
    assert told.returncode == 1
    assert "no cause that is known" in told.stdout
    assert "the flux capacitor is dry" in told.stdout
    answer = json.loads(diagnose("-", "--json", standard_input=b"\n").stdout)
    assert (answer["code"], answer["line"], answer["cause"], answer["action"]) == (None, None, None, None)


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.log", tmp_path):
        told = diagnose(str(path))
        assert told.returncode == 1
        assert told.stderr.startswith(f"Error: {path} cannot be read: ")


def test_a_log_that_powershell_wrote(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(PORT.replace("\n", "\r\n").encode("utf-16"))
    assert json.loads(diagnose(str(log), "--json").stdout)["code"] == "port_busy"


def test_of_a_log_of_100_mb_only_the_ends_are_read(tmp_path: Path) -> None:
    log = tmp_path / "long.log"
    with log.open("wb") as file:
        file.write(PORT.split("\n")[0].encode() + b"\n")
        file.seek(100 * 2**20)
        file.write(b"\n" + PORT.split("\n", 1)[1].encode())
    assert len(read_log(log)) <= HEAD_BYTES + TAIL_BYTES
    assert json.loads(diagnose(str(log), "--json").stdout)["code"] == "port_busy"


def test_a_pipe_without_end_marks_is_kept_to_a_limit() -> None:
    flood = b"0.00.000.101 I srv  nothing to see\n" * 700_000
    told = diagnose("-", "--json", standard_input=flood + PORT.encode())
    assert json.loads(told.stdout)["code"] == "port_busy"
