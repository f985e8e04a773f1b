"""Streams replies by Anthropic's Python SDK. See openai_python.py.

python anthropic_python.py messages URL KEY
"""

import json
import sys

from anthropic import Anthropic

_client = Anthropic(base_url=sys.argv[2], api_key=sys.argv[3], max_retries=0)

for line in sys.stdin:
    request = json.loads(line)
    text = ""
    try:
        with _client.messages.create(
            model="demo",
            messages=[{"role": "user", "content": request["prompt"]}],
            max_tokens=request["most"],
            stream=True,
            extra_body={"temperature": 0},  # the SDK has no such parameter any more
        ) as events:
            for event in events:
                if event.type == "content_block_delta":
                    part = getattr(event.delta, "text", "") or getattr(event.delta, "thinking", "")
                    if part and not text:
                        print(json.dumps({"begun": True}), flush=True)
                    text += part
        print(json.dumps({"text": text}), flush=True)
    except Exception as error:  # noqa: BLE001 -- any error is the result
        print(json.dumps({"text": text, "error": repr(error)}), flush=True)
