"""Programs that use the demo's server: several clients send requests through its address until they are stopped."""

import http.client
import json
import threading
from itertools import count

_PROMPTS = (
    "Write a function that adds two numbers.",
    "What is a draft?",
    "Explain the KV cache.",
    "When should MTP be switched off?",
)
_AGENTS = (("opencode/1.18.33", 2_000, 6.0), ("python-requests/2.32", 700, 15.0), ("Open WebUI", 1_200, 22.0))
"""User agent, tokens of each reply (never fewer), and seconds between two requests."""
_TIMEOUT_S = 60.0


class Clients:
    """Threads, one for each client."""

    def __init__(self, address: str, api_key: str) -> None:
        self._address, self._key = address, api_key
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask_often, args=each, daemon=True) for each in _AGENTS]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop sending requests, and wait for the last replies."""
        self._ended.set()
        for thread in self._threads:
            thread.join(_TIMEOUT_S)

    def _ask_often(self, agent: str, tokens: int, pause_s: float) -> None:
        for number in count():
            if self._ended.is_set():
                return
            self._ask(agent, _PROMPTS[number % len(_PROMPTS)], tokens)
            self._ended.wait(pause_s)

    def _ask(self, agent: str, prompt: str, tokens: int) -> None:
        messages = [{"role": "user", "content": prompt}]
        body = {"messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": True}
        headers = {"Content-Type": "application/json", "User-Agent": agent, "Authorization": f"Bearer {self._key}"}
        connection = http.client.HTTPConnection(self._address, timeout=_TIMEOUT_S)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):  # the server was stopped or is replaced
            return
        finally:
            connection.close()
