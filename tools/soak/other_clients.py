"""Sends requests as other programs do, over plain HTTP: whole, streamed, broken off, and invalid ones."""

import http.client
import json
import random
import threading
from collections import Counter
from urllib.parse import urlsplit

_TIMEOUT_S = 60.0
_PATH = "/v1/chat/completions"
_UNAVAILABLE = 503
_LOADING = "others: while it loads, HTTP 503"
_INVALID = (
    ("not JSON", "POST", _PATH, b'{"messages": [', True),
    ("no messages", "POST", _PATH, b"{}", True),
    ("an invalid role", "POST", _PATH, b'{"messages": [{"role": 7, "content": []}]}', True),
    ("a value out of range", "POST", _PATH, b'{"messages": [{"role": "user", "content": "Hi"}], "n_probs": -3}', True),
    ("a prompt over the context", "POST", _PATH, b"LONG", True),
    ("no such path", "GET", "/v1/nothing", b"", True),
    ("a wrong key", "POST", _PATH, b'{"messages": [{"role": "user", "content": "Hi"}]}', False),
)


class OtherClients:
    """Threads that send requests without a pause until they are stopped."""

    def __init__(self, url: str, api_key: str, *, threads: int, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._place = urlsplit(url).netloc
        self._key = api_key
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._send_repeatedly, args=(random.Random(seed + 100 + i),), daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let each thread end its request, and wait until all have."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _send_repeatedly(self, chance: random.Random) -> None:
        kinds = (self._send_whole, self._send_streamed, self._break_off, self._send_invalid)
        while not self._stopped.is_set():
            try:
                what = chance.choices(kinds, weights=(30, 30, 25, 15))[0](chance)
            except (OSError, http.client.HTTPException) as error:
                what = f"others: {type(error).__name__}"
                self._stopped.wait(0.05)  # a restart
            with self._lock:
                self.counts[what] += 1

    def _send(self, method: str, path: str, body: bytes, *, with_key: bool = True) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._place, timeout=_TIMEOUT_S)
        key = self._key if with_key else "not-the-key"
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        connection.request(method, path, body or None, headers)
        return connection

    def _make_chat(self, chance: random.Random, *, stream: bool) -> bytes:
        question = " ".join(["What is MTP?"] * chance.choice((1, 1, 5, 40, 200)))
        messages = [{"role": "user", "content": question}]
        tokens = chance.choice((4, 32, 128, 512))
        return json.dumps({"messages": messages, "max_tokens": tokens, "stream": stream}).encode()

    def _send_whole(self, chance: random.Random) -> str:
        connection = self._send("POST", _PATH, self._make_chat(chance, stream=False))
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return _LOADING if answer.status == _UNAVAILABLE else f"others: whole, HTTP {answer.status}"

    def _send_streamed(self, chance: random.Random) -> str:
        connection = self._send("POST", _PATH, self._make_chat(chance, stream=True))
        answer = connection.getresponse()
        ended = b"[DONE]" in answer.read()
        connection.close()
        if answer.status == _UNAVAILABLE:
            return _LOADING
        return f"others: streamed, {'to its end' if ended else 'cut short'}"

    def _break_off(self, chance: random.Random) -> str:
        connection = self._send("POST", _PATH, self._make_chat(chance, stream=True))
        answer = connection.getresponse()
        answer.read(chance.choice((1, 400, 4_000)))
        connection.close()
        return _LOADING if answer.status == _UNAVAILABLE else "others: broken off"

    def _send_invalid(self, chance: random.Random) -> str:
        what, method, path, body, with_key = chance.choice(_INVALID)
        if body == b"LONG":
            body = json.dumps({"messages": [{"role": "user", "content": "word " * 20_000}]}).encode()
        connection = self._send(method, path, body, with_key=with_key)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return _LOADING if answer.status == _UNAVAILABLE else f"others: {what}, HTTP {answer.status}"
