"""Measures the time that the gateway adds to requests and starts, and the gap of handovers. Each is measured in pairs:
with direct access to the same engine, or with a start of the engine alone.
"""

import asyncio
import http.client
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from benchmarks.measure import format_summary
from benchmarks.report import Row
from benchmarks.workplace import ROOT, command
from launcher.app.running_servers import restart_server
from launcher.engine.server import registry

_STREAMS, _RATE = 8, 100
_ENDS_S = 20.0
_PROCESSOR_TIME = 2
"""CPUCLOCK_SCHED, the last bits of the clocks that Linux has for other processes: see clock_getcpuclockid(3)."""
_FIRST_LIMIT_MS, _TOKEN_LIMIT_MS = 1.5, 0.3
_ONE_LIMIT, _MANY_LIMIT = 3.5, 1.5
_MEMORY_LIMIT_MB, _START_LIMIT_S, _GAP_LIMIT_S = 45.0, 0.15, 0.25
_DIRECT = "direct"
_TRIES = 5


def run(*, quick: bool) -> Iterator[Row]:
    """Stream with and without the gateway, serve with and without it, and restart the demo's engine during a stream."""
    with tempfile.TemporaryDirectory(prefix="mtp-benchmark-") as folder:
        program = Path(folder, "llama-server")
        engine = shlex.join([sys.executable, str(ROOT / "benchmarks" / "steady_engine.py")])
        program.write_text(f'#!/bin/sh\nexec {engine} "$@"\n')
        program.chmod(0o755)
        options = ["serve", "demo", "--engine", str(program), "--slots", str(_STREAMS)]
        with _run_server(*options) as server:
            yield from _stream_rows(server, quick=quick)
            through_mb = server.memory_mb()
        with _run_server(*options, "--direct") as server:
            _read_streams(server.address, server.api_key, _STREAMS, 50)
            yield _memory_row(through_mb, server.memory_mb())
    yield _start_row(1 if quick else 20)
    yield _handover_row(3 if quick else 40)


@dataclass(slots=True)
class _Served:
    """A running server, as its ready line describes it, with the processes of the launcher except the engine."""

    url: str
    api_key: str
    engine_port: int
    processes: list[psutil.Process]

    def processor_s(self) -> float:
        """Return the processor time that the launcher has taken so far, to the nanosecond: psutil rounds to ticks of 10
        ms.
        """
        return sum(time.clock_gettime(~process.pid << 3 | _PROCESSOR_TIME) for process in self.processes)

    def memory_mb(self) -> float:
        """Return the bytes of resident memory that only the launcher uses."""
        return sum(process.memory_full_info().uss for process in self.processes) / 1e6

    @property
    def address(self) -> tuple[str, int]:
        """The host and port of the gateway."""
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 0)


@contextmanager
def _run_server(*words: str) -> Iterator[_Served]:
    """Run a command that serves for as long as the block lasts."""
    with subprocess.Popen([*command(), *words, "--json"], stdout=subprocess.PIPE, cwd=ROOT) as program:
        try:
            assert program.stdout is not None
            ready = json.loads(program.stdout.readline())
            if ready.get("state") != "ready":
                raise RuntimeError(f"serve did not become ready: {ready}")
            launcher = psutil.Process(ready["launcher_pid"])
            engine = psutil.Process(ready["pid"])
            engines = {engine.pid, *(child.pid for child in engine.children(recursive=True))}
            family = [launcher, *launcher.children(recursive=True)]
            entry = registry.find_server(ready["url"])
            yield _Served(
                ready["url"],
                ready["api_key"],
                entry.engine_port or entry.port,
                [each for each in family if each.pid not in engines],
            )
        finally:
            program.terminate()
            program.wait(_ENDS_S)


def _stream_rows(server: _Served, *, quick: bool) -> Iterator[Row]:
    requests, rounds, seconds = (40, 1, 1.0) if quick else (500, 2, 6.0)
    direct = ("127.0.0.1", server.engine_port)
    ways = {_DIRECT: direct, "gateway": server.address}
    firsts: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(requests):
        for way, address in ways.items():  # in turn, so that what disturbs one disturbs the other
            firsts[way].append(_read_stream(address, server.api_key, 1, 0).first_ms)
    yield _added_row("first token of a request, median", firsts, _FIRST_LIMIT_MS)
    # The delays of each way; the streams of both run at the same time, and no others use the engine.
    idle_s = _measure_idle_share(server, 0.5 if quick else 4.0)
    for streams, limit in ((1, _ONE_LIMIT), (_STREAMS, _MANY_LIMIT)):
        tokens = round(seconds * _RATE)
        delays, shares = _measure_streams(ways, server, streams, tokens, rounds, idle_s)
        what = "one stream" if streams == 1 else f"{streams} streams at once"
        if streams == 1:
            yield _added_row(f"a token of {what} at {_RATE} tokens/s, median", delays, _TOKEN_LIMIT_MS)
        yield Row(
            f"processor time of the gateway per {_RATE} tokens/s, {what}",
            format_summary(shares, "% of a core", 2),
            f"idle: {100 * idle_s:.2f} %, taken off",
            "-",
            f"< {limit:g} %",
            statistics.median(shares) < limit,
        )


def _added_row(what: str, delays_ms: dict[str, list[float]], limit_ms: float) -> Row:
    direct, through = delays_ms[_DIRECT], delays_ms["gateway"]
    added = statistics.median(through) - statistics.median(direct)
    return Row(
        f"{what}: added by the gateway",
        f"{added:.2f} ms (99th percentile: {_quantile(through, 0.99) - _quantile(direct, 0.99):.2f} ms more)",
        f"direct: {statistics.median(direct):.2f} ms",
        f"{statistics.median(through) / statistics.median(direct):.1f} times",
        f"< {limit_ms:g} ms more",
        added < limit_ms,
    )


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


@dataclass(slots=True)
class _Stream:
    """Delays of one stream's tokens, from the engine's sending to our receiving, and the time to the first."""

    first_ms: float = 0.0
    delays_ms: list[float] = field(default_factory=list)


def _read_stream(address: tuple[str, int], api_key: str, tokens: int, rate: float) -> _Stream:
    """Send a request and read its whole reply."""
    body = {"model": "demo", "stream": True, "max_tokens": tokens, "rate": rate, "messages": []}
    data = json.dumps(body | {"messages": [{"role": "user", "content": "Count."}]}).encode()
    stream = _Stream()
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {api_key}"}
    began_ns = time.monotonic_ns()
    connection.request("POST", "/v1/chat/completions", data, headers)
    reply = connection.getresponse()
    if reply.status != 200:
        raise RuntimeError(f"The engine answered with {reply.status}.")
    for line in reply:
        now_ns = time.monotonic_ns()
        begin = line.find(b'"content": " ')
        if begin < 0:
            continue
        sent_ns = int(line[begin + 13 : line.index(b'"', begin + 13)])
        if not stream.delays_ms:
            stream.first_ms = (now_ns - began_ns) / 1e6
        stream.delays_ms.append((now_ns - sent_ns) / 1e6)
    connection.close()
    if len(stream.delays_ms) != tokens:
        raise RuntimeError(f"{len(stream.delays_ms)} of {tokens} tokens arrived.")
    return stream


def _measure_idle_share(server: _Served, seconds: float) -> float:
    """Return the launcher's share of a core in percent without requests, including the monitor's sampling."""
    before = server.processor_s()
    time.sleep(seconds)
    return (server.processor_s() - before) / seconds


def _measure_streams(
    ways: dict[str, tuple[str, int]], server: _Served, streams: int, tokens: int, rounds: int, idle_s: float
) -> tuple[dict[str, list[float]], list[float]]:
    """Run streams through each way in turn; return the tokens' delays by way, and the gateway's shares of a core.

    In each round a stream has `tokens` tokens.
    """
    delays: dict[str, list[float]] = {way: [] for way in ways}
    shares: list[float] = []
    for _ in range(rounds):
        for way, address in ways.items():
            before, began_s = server.processor_s(), time.monotonic()
            for stream in _read_streams(address, server.api_key, streams, tokens):
                delays[way] += stream.delays_ms
            if way != _DIRECT:
                seconds = time.monotonic() - began_s
                spent_s = server.processor_s() - before - idle_s * seconds
                shares.append(100 * spent_s / (streams * tokens / _RATE))
    return delays, shares


def _read_streams(address: tuple[str, int], api_key: str, streams: int, tokens: int) -> list[_Stream]:
    found: list[_Stream] = []
    threads = [
        threading.Thread(target=lambda: found.append(_read_stream(address, api_key, tokens, _RATE)))
        for _ in range(streams)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(found) != streams:
        raise RuntimeError("A stream broke.")
    return found


def _memory_row(through_mb: float, direct_mb: float) -> Row:
    added = through_mb - direct_mb
    return Row(
        "memory of `serve` and its keeper without the engine, after these streams: more than with --direct",
        f"{added:.0f} MB ({through_mb:.0f} MB in all)",
        f"--direct: {direct_mb:.0f} MB",
        "-",
        f"< {_MEMORY_LIMIT_MB:.0f} MB more",
        added < _MEMORY_LIMIT_MB,
    )


def _start_row(pairs: int) -> Row:
    seconds: dict[str, list[float]] = {"": [], "--direct": []}
    with _run_server("serve", "demo"):  # the first start of a home unpacks and probes
        pass
    for _ in range(pairs):
        for way, taken in seconds.items():
            began_s = time.perf_counter()
            with _run_server("serve", "demo", *filter(None, (way,))):
                taken.append(time.perf_counter() - began_s)
    more = [usual - direct for usual, direct in zip(seconds[""], seconds["--direct"], strict=True)]
    middle = statistics.median(more)
    return Row(
        "0 to ready, demo model: with the gateway more than with --direct",
        format_summary(more, "s", 3),
        f"--direct: {statistics.median(seconds['--direct']):.2f} s",
        "-",
        f"< {_START_LIMIT_S:g} s more",
        middle < _START_LIMIT_S,
    )


def _handover_row(times: int) -> Row:
    """Restart the demo's engine under a stream, each time after a start of such an engine alone."""
    gaps, starts = [], []
    with _run_server("serve", "demo", "--ctx", "16K") as server:
        words = psutil.Process(registry.find_server(server.url).engine_pid or 0).cmdline()
        for number in range(times):
            starts.append(_measure_engine_start_s(words))
            tries = (_measure_gap_s(server, 1 + (number + attempt) % 3) for attempt in range(_TRIES))
            gaps.append(next(gap for gap in tries if gap is not None))
    more = [gap - start for gap, start in zip(gaps, starts, strict=True)]
    most = _quantile(more, 0.95)
    return Row(
        "handover of the demo under a stream: gap longer than a start of the engine, 95th percentile",
        f"{most:.2f} s (gap: {format_summary(gaps, 's', 2)})",
        f"start of the engine: {statistics.median(starts):.2f} s",
        "-",
        f"< {_GAP_LIMIT_S:g} s more",
        most < _GAP_LIMIT_S,
    )


def _measure_engine_start_s(words: list[str]) -> float:
    """Return the seconds from the start of an engine to the reply to its first request, as a server waits for it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = [*words]
    words[words.index("--port") + 1] = str(port)
    environment = os.environ | {"LLAMA_API_KEY": "benchmark"}
    began_s = time.perf_counter()
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet) as process:
        try:
            while not _is_answering(port):
                if process.poll() is not None or time.perf_counter() - began_s > _ENDS_S:
                    raise RuntimeError("The engine did not start by itself.")
                time.sleep(0.01)
            return time.perf_counter() - began_s
        finally:
            process.kill()


def _is_answering(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        body = json.dumps({"max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]})
        headers = {"Content-Type": "application/json", "Authorization": "Bearer benchmark"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _measure_gap_s(server: _Served, draft: int) -> float | None:
    """Return the gap that a restart with another draft length makes in a stream; None if the stream ended before.

    Above temperature 0 no stream waits for its end because the same words could also be other tokens.
    """
    body = {"stream": True, "temperature": 0.8, "max_tokens": 4_000, "ignore_eos": True}
    data = json.dumps(body | {"messages": [{"role": "user", "content": "What is MTP?"}]})
    connection = http.client.HTTPConnection(*server.address, timeout=60)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {server.api_key}"}
    connection.request("POST", "/v1/chat/completions", data, headers)
    reply = connection.getresponse()
    reply.readline()  # the reply has begun
    received: list[bytes] = []

    def read() -> None:
        with suppress(OSError, http.client.HTTPException):  # we close the connection ourselves
            received.extend(iter(reply.readline, b""))

    reader = threading.Thread(target=read)
    reader.start()
    report: Any = asyncio.run(restart_server(server.url, {"draft": str(draft)}, drain_s=30.0))
    connection.sock.shutdown(socket.SHUT_RDWR)  # the gap is over
    reader.join()
    connection.close()
    if any(b'"error"' in line for line in received):
        raise RuntimeError(f"A stream broke: {report['handover']}.")
    gap_s: float | None = report["gap_s"]
    return gap_s
