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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from benchmarks.measure import format_summary, paired_ratio
from benchmarks.reference import ratio_row
from benchmarks.report import Row
from benchmarks.workplace import ROOT, command
from launcher.app.serving.running_servers import restart_server
from launcher.engine.server import registry

_STREAM_COUNTS, _RATE = (1, 8, 32), 50
_ENDS_S = 20.0
_PROCESSOR_TIME = 2
"""CPUCLOCK_SCHED, the last bits of the clocks that Linux has for other processes: see clock_getcpuclockid(3)."""
_FIRST_LIMIT, _REQUEST_LIMIT, _MANY_LIMIT = 1.5, 1.5, 1.4
"""Multiples of a plain proxy: what the first token waits longer, and the processor time of a request and of a token."""
_MEMORY_LIMIT_MB, _START_LIMIT, _GAP_LIMIT = 45.0, 1.3, 2.2
_DIRECT, _PROXY, _GATEWAY = "direct", "a plain proxy", "gateway"
_TRIES = 5
_LEAST_MS, _LEAST_S = 0.001, 1e-6
"""What is counted where nothing is added that can be measured."""
_SETTLE_S = 2.0
"""Seconds after which a server that has become ready does nothing any more."""
_Ways = dict[str, tuple[str, int]]
_Clocks = dict[str, "_Clock"]


def run(*, quick: bool) -> Iterator[Row]:
    """Stream with and without the gateway, serve with and without it, and restart the demo's engine during a stream."""
    with tempfile.TemporaryDirectory(prefix="mtp-benchmark-") as folder:
        program = Path(folder, "llama-server")
        engine = shlex.join([sys.executable, str(ROOT / "benchmarks" / "steady_engine.py")])
        program.write_text(f'#!/bin/sh\nexec {engine} "$@"\n')
        program.chmod(0o755)
        options = ["serve", "demo", "--engine", str(program), "--slots", str(max(_STREAM_COUNTS))]
        with _run_server(*options) as server:
            yield from _stream_rows(server, quick=quick)
            through_mb = server.memory_mb()
        with _run_server(*options, "--direct") as server:
            _read_streams(server.address, server.api_key, max(_STREAM_COUNTS), 50)
            yield _memory_row(through_mb, server.memory_mb())
    yield _start_row(3 if quick else 20)
    yield _handover_row(3 if quick else 40)


class _Clock:
    """The processor time of some processes, to the nanosecond: psutil rounds to ticks of 10 ms."""

    def __init__(self, processes: Sequence[psutil.Process]) -> None:
        self._processes = processes
        self._idle_share = 0.0

    def read_s(self) -> float:
        """Return the seconds so far."""
        return sum(time.clock_gettime(~process.pid << 3 | _PROCESSOR_TIME) for process in self._processes)

    def watch_idle(self, seconds: float) -> None:
        """Measure what they take besides forwarding, as for the monitor's samples: it is taken off from now on."""
        before = self.read_s()
        time.sleep(seconds)
        self._idle_share = (self.read_s() - before) / seconds

    @contextmanager
    def measure(self) -> Iterator[list[float]]:
        """Measure a block; the list has the seconds afterwards."""
        spent: list[float] = []
        before, began_s = self.read_s(), time.monotonic()
        yield spent
        idle_s = self._idle_share * (time.monotonic() - began_s)
        spent.append(max(_LEAST_S, self.read_s() - before - idle_s))


@dataclass(slots=True)
class _Served:
    """A running server, as its ready line describes it, with the processes of the launcher except the engine."""

    url: str
    api_key: str
    engine_port: int
    processes: list[psutil.Process]

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
                entry.first.engine_port or entry.port,
                [each for each in family if each.pid not in engines],
            )
        finally:
            program.terminate()
            program.wait(_ENDS_S)


@contextmanager
def _run_proxy(engine_port: int) -> Iterator[tuple[tuple[str, int], _Clock]]:
    """Run a plain proxy in front of the engine; its address and processor time."""
    words = [sys.executable, "-m", "benchmarks.plain_proxy", str(engine_port)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as program:
        try:
            assert program.stdout is not None
            yield ("127.0.0.1", int(program.stdout.readline())), _Clock([psutil.Process(program.pid)])
        finally:
            program.terminate()


def _stream_rows(server: _Served, *, quick: bool) -> Iterator[Row]:
    """Compare the gateway with a plain proxy: the time that each adds, and the processor time that each takes."""
    with _run_proxy(server.engine_port) as (proxy, proxy_clock):
        ways = {_DIRECT: ("127.0.0.1", server.engine_port), _PROXY: proxy, _GATEWAY: server.address}
        clocks = {_PROXY: proxy_clock, _GATEWAY: _Clock(server.processes)}
        time.sleep(_SETTLE_S)
        seconds = 2 if quick else 4
        proxy_clock.watch_idle(seconds)
        slow = threading.Thread(target=_read_stream, args=(server.address, server.api_key, 2 + seconds, 1.0))
        slow.start()  # the monitor samples ten times a second while a reply is open, however many requests come
        clocks[_GATEWAY].watch_idle(seconds)
        slow.join()
        yield from _request_rows(server, ways, clocks, *((120, 6) if quick else (300, 6)))
        for streams in _STREAM_COUNTS:
            yield from _token_rows(server, ways, clocks, streams, *((60, 3) if quick else (200, 5)))


def _request_rows(server: _Served, ways: _Ways, clocks: _Clocks, requests: int, rounds: int) -> Iterator[Row]:
    firsts: dict[str, list[float]] = {way: [] for way in ways}
    spent_ms: dict[str, list[float]] = {way: [] for way in clocks}
    for _ in range(requests):
        for way, address in ways.items():  # in turn, so that what disturbs one disturbs the others
            firsts[way].append(_read_stream(address, server.api_key, 1, 0).first_ms)
    for _ in range(rounds):  # in blocks, in which the time that the monitor takes is the same
        for way, clock in clocks.items():
            with clock.measure() as spent:
                for _ in range(requests // rounds):
                    _read_stream(ways[way], server.api_key, 1, 0)
            spent_ms[way].append(1_000 * spent[0] / (requests // rounds))
    yield _added_row("first token of a request of one token, median", firsts, rounds, _FIRST_LIMIT)
    what = "processor time of a request of one token"
    yield ratio_row(what, spent_ms[_GATEWAY], "ms", 2, _PROXY, spent_ms[_PROXY], _REQUEST_LIMIT)


def _token_rows(server: _Served, ways: _Ways, clocks: _Clocks, streams: int, tokens: int, rounds: int) -> Iterator[Row]:
    delays: dict[str, list[float]] = {way: [] for way in ways}
    spent_us: dict[str, list[float]] = {way: [] for way in clocks}
    for _ in range(rounds):
        for way, address in ways.items():
            with clocks.get(way, clocks[_PROXY]).measure() as spent:
                for stream in _read_streams(address, server.api_key, streams, tokens):
                    delays[way] += stream.delays_ms
            if way in clocks:
                spent_us[way].append(1e6 * spent[0] / (streams * tokens))
    what = f"{streams} stream{'s' if streams > 1 else ''} of {_RATE} tokens/s"
    yield _added_row(f"a token of {what}, median", delays, rounds, None)
    what = f"processor time of a token, {what}"
    row = ratio_row(what, spent_us[_GATEWAY], "µs", 0, _PROXY, spent_us[_PROXY], _MANY_LIMIT)
    yield row if streams == max(_STREAM_COUNTS) else replace(row, limit="-", kept=None, unclear=False)


def _added_row(what: str, delays_ms: dict[str, list[float]], rounds: int, limit: float | None) -> Row:
    """Return a row for what the gateway adds to a delay, as a multiple of what the plain proxy adds, each as the median
    of every round. See `Row.judged_by` for its verdict.
    """
    direct, proxy, through = (statistics.median(delays_ms[way]) for way in (_DIRECT, _PROXY, _GATEWAY))
    proxies, gateways = (
        [max(_LEAST_MS, here - alone) for here, alone in zip(*_round_medians(delays_ms, way, rounds), strict=True)]
        for way in (_PROXY, _GATEWAY)
    )
    ratio = paired_ratio(gateways, proxies)
    row = Row(
        f"{what}: added by the gateway",
        f"{through - direct:.2f} ms (99th percentile: {_quantile(delays_ms[_GATEWAY], 0.99) - direct:.2f} ms)",
        f"direct: {direct:.2f} ms; a plain proxy adds {proxy - direct:.2f} ms",
        f"{ratio.estimate:.2g} times (95 %: {ratio.lower:.2g} to {ratio.upper:.2g})",
        "-" if limit is None else f"< {limit:g} times",
    )
    return row if limit is None else row.judged_by(ratio, limit)


def _round_medians(delays_ms: dict[str, list[float]], way: str, rounds: int) -> tuple[list[float], list[float]]:
    """Return the median delay of each round, this way and directly."""
    size = len(delays_ms[way]) // rounds
    found = [
        [statistics.median(values[begin : begin + size]) for begin in range(0, size * rounds, size)]
        for values in (delays_ms[way], delays_ms[_DIRECT])
    ]
    return found[0], found[1]


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
    return ratio_row("0 to ready, demo model", seconds[""], "s", 2, "--direct", seconds["--direct"], _START_LIMIT)


def _handover_row(times: int) -> Row:
    """Restart the demo's engine under a stream, each time after a start of such an engine alone."""
    gaps, starts = [], []
    with _run_server("serve", "demo", "--ctx", "16K") as server:
        words = psutil.Process(registry.find_server(server.url).first.engine_pid or 0).cmdline()
        for number in range(times):
            starts.append(_measure_engine_start_s(words))
            tries = (_measure_gap_s(server, 1 + (number + attempt) % 3) for attempt in range(_TRIES))
            gaps.append(next(gap for gap in tries if gap is not None))
    most = _quantile([gap / start for gap, start in zip(gaps, starts, strict=True)], 0.95)
    return Row(
        "gap of a handover of the demo under a stream",
        format_summary(gaps, "s", 2),
        f"start of the engine: {statistics.median(starts):.2f} s",
        f"{most:.2g} times (95th percentile)",
        f"< {_GAP_LIMIT:g} times",
        most < _GAP_LIMIT,
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
