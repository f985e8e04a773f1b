"""Proofs of the Windows code, run by a Windows Python (see ../wine).

python.exe prove.py FAKE_ENGINE
"""
# ruff: noqa: S101

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from launcher.base.control import ControlAddress, ControlServer, send_request
from launcher.base.errors import EngineMissing, LauncherError
from launcher.base.identity import ProcessId
from launcher.base.paths import HOME_VARIABLE
from launcher.engine.demo import unpack_demo_model
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import prepare_launch
from launcher.engine.server.process import EngineCommand, ProcessExit, start_process
from launcher.engine.server.registry import ServedModel, list_entries, register_server

sys.path.insert(0, str(Path(__file__).parent))  # Python's embeddable build leaves it out
sys.path.append(str(Path(sys.argv[1]).resolve().parents[1] / "updates"))
from harness import launcher, proof, run, run_json
from signing import Maintainer

FAKE = Path(sys.argv[1]).resolve()
VERIFIER = FAKE.parents[2] / "installer" / "verify_signature.py"
TLS = Path(__file__).resolve().parents[1] / "tls.py"
NEST = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
print(child.pid, flush=True)
child.wait()
"""
"""A program that starts another; neither reads its standard input."""


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[tuple["subprocess.Popen[bytes]", dict[str, Any]]]:
    """Run `serve` and yield its process and its first line; end both processes, come what may."""
    process = subprocess.Popen(
        [sys.executable, "-m", "launcher", "serve", *arguments, "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    engine = None
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate(timeout=100)[1].decode("utf-8", "replace")
        ready = json.loads(line)
        assert "pid" in ready, ready
        engine = ProcessId.from_pid(ready["pid"])
        yield process, ready
    finally:
        process.kill()
        process.communicate(timeout=100)
        if engine is not None:
            gone_after_s(engine)


def gone_after_s(*processes: ProcessId, limit_s: float = 60.0) -> float:
    """Wait until the processes are gone and return how long it took."""
    began_s = time.monotonic()
    while any(process.is_running() for process in processes):
        assert time.monotonic() - began_s < limit_s, f"still running after {limit_s} s: {processes}"
        time.sleep(0.02)
    return time.monotonic() - began_s


def identity(pid: int) -> ProcessId:
    """Return the identity of a process that must be running."""
    process = ProcessId.from_pid(pid)
    assert process is not None, f"process {pid} does not run"
    assert process.is_running()
    return process


def command(*arguments: str) -> EngineCommand:
    """Return the command for a Python program."""
    return EngineCommand((sys.executable, *arguments), dict(os.environ), Path.cwd())


def fake_engine() -> str:
    """Return the fake llama-server as a batch file."""
    path = Path(os.environ[HOME_VARIABLE]).parent / "fake-llama-server.bat"
    path.write_text(f'@"{sys.executable}" "{FAKE}" %*\n', "oem")
    return str(path)


@proof("python -m launcher --version")
def _version() -> str:
    code, output = launcher("--version")
    assert code == 0
    assert output.startswith(b"mtp-launcher "), output
    return output.decode().strip()


@proof("doctor --json")
def _doctor() -> str:
    report = run_json("doctor")
    host, engine = report["host"], report["engines"][0]
    assert report["demo_can_run"], report
    assert host["system"].startswith("Windows"), host
    assert host["avx2"] and host["memory_bytes"] > 2**30 and host["wsl"] is None, host  # noqa: PT018
    return f"{host['system']}, {host['cpu']}; {engine['place']} engine {engine['version']}; {report['no_gpu_because']}"


@proof("a server over TLS, with a certificate of its own")
def _tls() -> str:
    ended = subprocess.run([sys.executable, str(TLS)], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@proof("install.ps1's verifier takes what the maintainer signed, and nothing else")
def _verifier() -> str:
    with tempfile.TemporaryDirectory() as folder:
        manifest, signature = (Path(folder) / name for name in ("manifest.json", "manifest.json.minisig"))
        manifest.write_bytes(b'{"version": "1.2.0"}\n')
        signed = Maintainer().sign(manifest.read_bytes())
        cases = {
            "signed": signed,
            "cut": signed[:-20],
            "another comment": signed.replace("a test", "another"),
            "another key": Maintainer(2).sign(manifest.read_bytes()),
            "another file": Maintainer().sign(b"another"),
            "nothing": "",
        }
        taken = []
        for case, text in cases.items():
            signature.write_text(text, "utf-8")
            words = [
                sys.executable,
                "-I",
                VERIFIER,
                Path(psutil.__file__).parents[1],
                Maintainer().public_key,
                manifest,
            ]
            if subprocess.run(words, stdin=subprocess.DEVNULL, timeout=300, check=False).returncode == 0:
                taken.append(case)
    assert taken == ["signed"], taken
    return f"{len(cases) - 1} refused"


@proof("demo --headless --json, on the real engine")
def _demo() -> str:
    report = run_json("demo", "--headless")
    assert report["draft_n_accepted"] > 0, report
    return (
        f"{report['predicted_n']} tokens at {report['tokens_per_second']} t/s, {report['draft_n_accepted']} of"
        f" {report['draft_n']} drafts accepted, ready after {report['ready_s']} s, {report['samples']} samples"
    )


@proof("serve, chat, status, stop")
def _verbs() -> str:
    with serving("--model", "demo") as (process, ready):
        engine = identity(ready["pid"])
        for _ in range(20):  # on a busy computer it may answer too late for one question
            [server] = run_json("status")
            if server["state"] == "ready":
                break
        assert (server["state"], server["pid"], server["launcher_pid"]) == ("ready", ready["pid"], process.pid), server
        reply = run_json("chat", "What is MTP?")
        assert reply["draft_n_accepted"] > 0, reply
        stopped = run_json("stop")
        assert stopped["stopped"] == ready["url"], stopped
        process.wait(300)
        after_s = gone_after_s(engine)
        assert run_json("status", code=1) == []
    with serving("--model", "demo") as (_, again):
        assert (again["url"], again["api_key"]) == (ready["url"], ready["api_key"])
    return f"a reply of {reply['predicted_n']} tokens, all gone {after_s:.2f} s after stop; port and key are kept"


@proof("the launcher is ended hard: its engine goes with it")
def _hard_end() -> str:
    with serving("--model", "demo") as (process, ready):
        engine = identity(ready["pid"])
        process.kill()
        after_s = gone_after_s(engine)
        assert run_json("status", code=1) == [], "a dead server is listed"
    return f"after {after_s:.2f} s"


ORPHAN = """
import asyncio, os, subprocess, sys
from pathlib import Path
from launcher.engine.server.process import EngineCommand
from launcher.engine.server.process import start_process
program, in_job = sys.argv[1], sys.argv[2] == "job"
async def main():
    said = asyncio.Queue()
    if in_job:
        process = await start_process(EngineCommand((sys.executable, "-c", program), dict(os.environ), Path.cwd()),
                                      lambda _, text: said.put_nowait(text))
        print(process.identity.pid, await said.get(), flush=True)
    else:
        process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        print(process.pid, process.stdout.readline().decode(), flush=True)
    os._exit(7)
asyncio.run(main())
"""


@proof("the job alone does it: programs that read no input, and what they started")
def _job() -> str:
    def orphans(how: str) -> list[ProcessId]:
        ended = subprocess.Popen([sys.executable, "-c", ORPHAN, NEST, how], stdout=subprocess.PIPE)
        assert ended.stdout is not None
        pids = [int(word) for word in ended.stdout.readline().split()]
        processes = [ProcessId.from_pid(pid) or ProcessId(pid, 0.0) for pid in pids]
        assert ended.wait(100) == 7
        return processes

    after_s = gone_after_s(*orphans("job"))
    without = orphans("alone")
    time.sleep(1.0)
    survived = [process.pid for process in without if process.is_running()]
    for pid in survived:
        psutil.Process(pid).kill()
    assert len(survived) == 2, "the same programs ended without a job too: this proves nothing"
    return f"both gone after {after_s:.2f} s; without a job both live on"


@proof("stop by the exit line: the real engine")
def _exit_line() -> str:
    async def run() -> tuple[ProcessExit, float]:
        launch = await prepare_launch(ServeOptions(unpack_demo_model(), built_in=True), Endpoint(29_871, "k" * 32))
        loaded = asyncio.Event()
        process = await start_process(launch.command, lambda _, text: loaded.set() if "listening on" in text else None)
        await asyncio.wait_for(loaded.wait(), 300)
        began_s = time.monotonic()
        return await process.stop(), time.monotonic() - began_s

    ended, seconds = asyncio.run(run())
    assert ended == ProcessExit(0), ended
    return f"exit code 0 after {seconds:.2f} s"


@proof("a program that ignores the exit line is ended by the job after the patience")
def _patience() -> str:
    async def run() -> tuple[ProcessExit, float, ProcessId, ProcessId]:
        lines: asyncio.Queue[str] = asyncio.Queue()
        process = await start_process(command("-c", NEST), lambda _, text: lines.put_nowait(text))
        child = identity(int(await lines.get()))
        began_s = time.monotonic()
        return await process.stop((1.0, 1.0)), time.monotonic() - began_s, process.identity, child

    ended, seconds, process, child = asyncio.run(run())
    gone_after_s(process, child)
    assert ended == ProcessExit(1), ended
    assert seconds > 0.9, seconds
    return f"patience 1 s, ended after {seconds:.2f} s, and so is what it had started"


@proof("a program that ends at once is reported with its own exit code")
def _ends_at_once() -> str:
    async def run() -> tuple[ProcessExit, list[str]]:
        lines: list[str] = []
        process = await start_process(
            command("-c", "import os; print('last words', flush=True); os._exit(77)"),
            lambda _, text: lines.append(text),
        )
        return await process.exited, lines

    ended, lines = asyncio.run(run())
    assert (ended, lines) == (ProcessExit(77), ["last words"]), (ended, lines)
    return str(ended)


@proof("what cannot be started is an error with a next step")
def _cannot_start() -> str:
    no_program = Path(os.environ[HOME_VARIABLE]).parent / "not-a-program.exe"
    no_program.write_bytes(b"no program")
    titles = []
    for path in (no_program, no_program.with_name("absent.exe")):
        try:
            asyncio.run(start_process(EngineCommand((str(path),), dict(os.environ), Path.cwd()), lambda *_: None))
        except EngineMissing as error:
            titles.append(error.title)
    assert len(titles) == 2, titles
    error = run_json("serve", "--model", "demo", "--engine", str(no_program), code=1)["error"]
    assert error["code"] == "engine_missing", error
    return error["message"]  # type: ignore[no-any-return]


@proof("a batch file as the engine: all it started ends with the launcher")
def _batch() -> str:
    with serving("--model", "demo", "--engine", fake_engine()) as (process, ready):
        shell = psutil.Process(ready["pid"])
        family = [identity(one.pid) for one in (shell, *shell.children(recursive=True))]
        assert len(family) > 1, family
        assert run_json("chat", "Hello.")["text"].startswith("word")
        process.kill()
        after_s = gone_after_s(*family)
    return f"{len(family)} processes gone after {after_s:.2f} s"


@proof("an engine that dies while it loads is an error with a cause; one that dies while it serves is started again")
def _dies() -> str:
    loading = run_json("serve", "--model", "demo", "--engine", fake_engine(), code=1, FAKE_FAULTS="dies-loading")[
        "error"
    ]
    assert loading["code"] == "engine_failed", loading
    with serving("--model", "demo") as (_, ready):
        psutil.Process(ready["pid"]).kill()
        began_s = time.monotonic()
        while True:
            [server] = run_json("status")
            if server["state"] == "ready" and server["engine_pid"] != ready["pid"]:
                break
            assert time.monotonic() - began_s < 300, server
        assert run_json("chat", "What is MTP?")["draft_n_accepted"] > 0
    return f"{loading['message']} It was back after {time.monotonic() - began_s:.1f} s."


@proof("without Microsoft's OpenMP runtime: the error names what Windows needs")
def _no_runtime() -> str:
    library = Path(sys.executable).with_name("vcomp140.dll")
    hidden = library.rename(library.with_suffix(".hidden"))
    try:
        error = run_json("serve", "--model", "demo", code=1)["error"]
        report = run_json("doctor", code=1)
    finally:
        hidden.rename(library)
    assert error["code"] == "library_missing", error
    assert "Visual C++" in error["message"], error
    assert not report["demo_can_run"]
    assert "Visual C++" in report["findings"][0]["title"], report["findings"]
    return error["message"]  # type: ignore[no-any-return]


@proof("a port that is in use is refused")
def _port_busy() -> str:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        error = run_json("serve", "--model", "demo", "--port", str(other.getsockname()[1]), code=1)["error"]
    assert error["code"] == "port_busy", error
    return error["message"]  # type: ignore[no-any-return]


@proof("asyncio: Proactor loop, pipes with bytes that are no UTF-8 and a line of 200 kB")
def _pipes() -> str:
    async def run() -> tuple[str, list[str]]:
        lines: list[str] = []
        program = (
            "import sys; b = sys.stderr.buffer; b.write(b'\\xff\\xfe\\r\\n' + b'x' * 200_000 + b'\\r\\nend\\r\\n')"
        )
        process = await start_process(command("-c", program), lambda _, text: lines.append(text))
        await process.exited
        return type(asyncio.get_running_loop()).__name__, lines

    loop, lines = asyncio.run(run())
    assert loop == "ProactorEventLoop", loop
    assert [len(line) for line in lines] == [2, 16_384, 3], [len(line) for line in lines]
    return loop


INTERRUPTED = """
import runpy, signal, threading, time
from launcher.engine.server.registry import list_entries
def interrupt():
    while not any(server.first.state in ("ready", "busy") for server in list_entries()):
        time.sleep(0.1)
    time.sleep(3)  # the command prints the address meanwhile
    signal.raise_signal(signal.SIGINT)  # in a thread that is not Python's main one, as Windows does it
threading.Thread(target=interrupt, daemon=True).start()
runpy.run_module("launcher", run_name="__main__", alter_sys=True)
"""


# Of two threads that send on one socket at the same moment, wine refuses one, though there is room. If that is the one
# of the signal, Python prints this. It is harmless, because the other thread's byte wakes the loop as well.
REFUSED_BY_WINE = re.compile(
    rb"Exception ignored when trying to send to the signal wakeup fd:\r\n"
    rb"Traceback \(most recent call last\):\r\n(?:  .*\r\n)*BlockingIOError: \[WinError 10035\].*\r\n"
)


@proof("SIGINT while asyncio waits: serve ends with 0, demo with 130")
def _interrupt() -> str:
    took = []
    for arguments, wanted in (("serve --model demo", 0), ("demo --headless --seconds 30", 130)):
        began_s = time.monotonic()
        ended = subprocess.run(
            [sys.executable, "-c", INTERRUPTED, *arguments.split()],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == wanted, (ended.returncode, ended.stderr)
        assert b"Traceback" not in REFUSED_BY_WINE.sub(b"", ended.stderr), ended.stderr
        took.append(f"{time.monotonic() - began_s:.1f} s")
        assert list_entries() == ()
    return ", ".join(took)


@proof("a folder and a model with spaces and letters beyond ASCII")
def _names() -> str:
    model = Path(os.environ[HOME_VARIABLE]).parent / "modèle démo.gguf"
    model.write_bytes(unpack_demo_model().read_bytes())
    with serving("--model", str(model)) as (_, ready):
        assert list_entries()[0].first.model == "modèle démo"
        assert run_json("chat", "What is MTP?")["draft_n_accepted"] > 0
    log = Path(os.environ[HOME_VARIABLE]) / "state" / "logs" / f"engine-{ready['url'].rpartition(':')[2]}.log"
    assert "modèle démo.gguf" in log.read_text("utf-8"), log
    return str(model)


@proof("the private line: a named pipe answers who has the token, and nobody else")
def _line() -> str:
    verbs = []

    async def answer(verb: str, fields: Mapping[str, Any]) -> AsyncIterator[Any]:
        verbs.append(verb)
        yield {"heard": fields["say"]}

    async def receive_values(address: ControlAddress) -> list[Any]:
        return [value async for value in send_request(address, "tell", say="é")]

    async def main() -> tuple[list[Any], str, str]:
        server = ControlServer(answer)
        address = await server.listen(Path(os.environ[HOME_VARIABLE]), "line")
        right, refusals = await receive_values(address), []
        try:
            await receive_values(ControlAddress(address.path, "x" * len(address.token)))
        except LauncherError as error:
            refusals.append(error.code)
        await server.close()
        try:
            await receive_values(address)
        except LauncherError as error:
            refusals.append(error.code)
        return right, *refusals

    assert asyncio.run(main()) == ([{"heard": "é"}], "control_refused", "unreachable")
    assert verbs == ["tell"], "the wrong token was heard"
    return "answered, refused, closed"


@proof("restart with other settings from another program, over that line")
def _restart() -> str:
    with serving("--model", "demo") as (_, ready):
        code, output = launcher("restart", "--set", "draft=1", "--json")
        assert code == 0, output
        [server] = run_json("status")
        assert server["settings"]["draft"] == 1, server
        assert server["engine_pid"] != ready["pid"], server
    return f"draft {server['settings']['draft']}, at the same address"


@proof("what programs read from a pipe is UTF-8")
def _utf8() -> str:
    code, output = launcher("demo", "--headless")
    assert code == 0
    assert "·" in output.decode("utf-8"), output
    model = Path(os.environ[HOME_VARIABLE]).parent / "modèle 模型.gguf"
    model.write_bytes(unpack_demo_model().read_bytes())
    with serving("--model", str(model)):
        [server] = run_json("status")
    assert server["model"] == model.stem, server
    return server["model"]  # type: ignore[no-any-return]


@proof("readers and writers of the registry do not disturb each other")
def _registry() -> str:
    _, registration = register_server(None, ServedModel(model="none", engine="none", draft=0))
    missing = rounds = 0
    lost = []
    ended = threading.Event()

    def write() -> None:
        nonlocal rounds
        while not ended.is_set():
            rounds += 1
            registration.update_first(engine_pid=rounds)
            settled = registration.wait_written(30.0)
            listed = [each.first.engine_pid for each in list_entries()]
            if not settled or listed != [rounds]:
                lost.append((rounds, settled, listed))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        deadline_s = time.monotonic() + 4.0
        while time.monotonic() < deadline_s:
            missing += not list_entries()
            time.sleep(0.002)
    finally:
        ended.set()
        writer.join()
        registration.remove()
    assert not missing, f"a running server was not listed {missing} times; {lost} of {rounds} updates were lost"
    assert not lost, f"{lost} of {rounds} updates were lost"
    return f"{rounds} updates"


run()
