"""Streams replies by OpenAI's Python SDK. See tools/prove_handovers: one request a line in, events out as JSON lines.

python openai_python.py API URL KEY       API: chat, completions or responses
"""

import json
import sys
from collections.abc import Iterator

from openai import OpenAI

_API, _URL, _KEY = sys.argv[1:4]
_client = OpenAI(base_url=f"{_URL}/v1", api_key=_KEY, max_retries=0)


def stream_text(prompt: str, most: int) -> Iterator[str]:
    """Yield the parts of a reply, thinking included."""
    if _API == "chat":
        for chunk in _client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": prompt}],
            temperature=0,
            max_tokens=most,
            stream=True,
            extra_body={"ignore_eos": True},
        ):
            for choice in chunk.choices:
                yield (getattr(choice.delta, "reasoning_content", None) or "") + (choice.delta.content or "")
    elif _API == "completions":
        for part in _client.completions.create(
            model="demo", prompt=prompt, temperature=0, max_tokens=most, stream=True, extra_body={"ignore_eos": True}
        ):
            yield part.choices[0].text if part.choices else ""
    else:
        for event in _client.responses.create(
            model="demo",
            input=prompt,
            temperature=0,
            max_output_tokens=most,
            stream=True,
            extra_body={"ignore_eos": True},
        ):
            yield event.delta if event.type.endswith("_text.delta") else ""


for line in sys.stdin:
    request = json.loads(line)
    text = ""
    try:
        for part in stream_text(request["prompt"], request["most"]):
            if part and not text:
                print(json.dumps({"begun": True}), flush=True)
            text += part
        print(json.dumps({"text": text}), flush=True)
    except Exception as error:  # noqa: BLE001 -- any error is the result
        print(json.dumps({"text": text, "error": repr(error)}), flush=True)
