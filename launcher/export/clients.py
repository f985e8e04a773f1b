"""Client code for a server: requests with curl, Python and TypeScript that report errors.

A model that generates text streams its reply, an embedding model returns the vector of a text, and a reranker the ranks
of two documents.
"""

import json
import re

from launcher.export import quoting
from launcher.export.recipe import ExportRecipe
from launcher.export.shell import KEY_VARIABLE

_PROMPT = "What is speculative decoding?"
_DOCUMENTS = ["A small model proposes tokens, and the large one verifies them.", "A boat."]
_SILENCE_S = 75
"""Client timeout: over two pings, which the server sends every 30 s while it computes (sse_ping_interval in
tools/server/README.md).
"""

_PYTHON_REPLY = """\
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt}],
        stream=True,
    )
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            print(chunk.choices[0].delta.content, end="", flush=True)
    print()"""
_PYTHON_VECTOR = """\
    reply = client.embeddings.create(model=MODEL, input=prompt)
    print(reply.data[0].embedding)"""
_PYTHON_RANKS = """\
    body = {"model": MODEL, "query": prompt, "documents": DOCUMENTS}
    print(client.post("/rerank", cast_to=object, body=body))"""
_TYPESCRIPT_REPLY = """\
  const stream = await client.chat.completions.create({
    model: MODEL,
    messages: [{ role: "user", content: prompt }],
    stream: true,
  });
  for await (const chunk of stream) {
    process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
  }
  process.stdout.write("\\n");"""
_TYPESCRIPT_VECTOR = """\
  const reply = await client.embeddings.create({
    model: MODEL,
    input: prompt,
  });
  console.log(JSON.stringify(reply.data[0]?.embedding));"""
_TYPESCRIPT_RANKS = """\
  const reply = await client.post("/rerank", {
    body: { model: MODEL, query: prompt, documents: DOCUMENTS },
  });
  console.log(JSON.stringify(reply));"""
"""The requests in these programs. MODEL is replaced by the model's name in the API, DOCUMENTS by _DOCUMENTS."""


def curl_request(recipe: ExportRecipe) -> str:
    """Return a request for bash. The key is passed through standard input, so that no process list shows it."""
    body: dict[str, object] = {"model": recipe.name}
    if recipe.ranks:
        path = "rerank"
        body |= {"query": _PROMPT, "documents": _DOCUMENTS}
    elif recipe.embeds:
        path = "embeddings"
        body |= {"input": _PROMPT}
    else:
        path = "chat/completions"
        body |= {"stream": True, "messages": [{"role": "user", "content": _PROMPT}]}
    key = f"${{{KEY_VARIABLE}:?Set {KEY_VARIABLE} to the API key}}"
    if recipe.api_key:
        key = re.sub(r"[\\$`]", r"\\\g<0>", recipe.api_key)  # characters with a meaning in a here-document
    return f"""\
curl --silent --show-error --fail-with-body --no-buffer --connect-timeout 5 \\
  --header 'Content-Type: application/json' --header @- \\
  --data {quoting.quote_bash(json.dumps(body))} \\
  {quoting.quote_bash(f"{recipe.url}/{path}")} <<EOF
Authorization: Bearer {key}
EOF
"""


def _select_request(recipe: ExportRecipe, ranks: str, vector: str, reply: str) -> str:
    """Return the request that the server answers, with the model's name."""
    request = reply
    if recipe.ranks:
        request = ranks.replace("DOCUMENTS", json.dumps(_DOCUMENTS))
    elif recipe.embeds:
        request = vector
    return request.replace("MODEL", quoting.quote_source(recipe.name))


def python_program(recipe: ExportRecipe) -> str:
    """Return a Python program that uses the package `openai`."""
    key = quoting.quote_source(recipe.api_key) if recipe.api_key else f'os.environ["{KEY_VARIABLE}"]'
    imports = "import sys\n" if recipe.api_key else "import os\nimport sys\n"
    request = _select_request(recipe, _PYTHON_RANKS, _PYTHON_VECTOR, _PYTHON_REPLY)
    return f'''\
# pip install openai
{imports}
import openai

client = openai.OpenAI(
    base_url={quoting.quote_source(recipe.url)},
    api_key={key},
    timeout=openai.Timeout({_SILENCE_S}, connect=5),  # seconds of silence, not of the whole reply
    max_retries=2,
)
prompt = " ".join(sys.argv[1:]) or "{_PROMPT}"
try:
{request}
except openai.APITimeoutError:
    sys.exit("The server was silent for too long.")
except openai.APIConnectionError as error:
    sys.exit(f"The server cannot be reached: {{error.__cause__ or error}}")
except openai.AuthenticationError:
    sys.exit("The API key is wrong.")
except openai.APIStatusError as error:
    sys.exit(f"The server refused the request ({{error.status_code}}): {{error.message}}")
except openai.APIError as error:  # in the middle of a reply
    sys.exit(f"The reply broke off: {{error.message}}")
'''


def typescript_program(recipe: ExportRecipe) -> str:
    """Return a TypeScript program that uses the package `openai`."""
    missing = f'process.env.{KEY_VARIABLE} ?? fail("Set {KEY_VARIABLE} to the API key.")'
    key = quoting.quote_source(recipe.api_key) if recipe.api_key else missing
    request = _select_request(recipe, _TYPESCRIPT_RANKS, _TYPESCRIPT_VECTOR, _TYPESCRIPT_REPLY)
    return f"""\
// npm install openai
import OpenAI from "openai";

function fail(why: string): never {{
  console.error(why);
  process.exit(1);
}}

const client = new OpenAI({{
  baseURL: {quoting.quote_source(recipe.url)},
  apiKey: {key},
  timeout: {_SILENCE_S}_000, // ms until the reply begins
  maxRetries: 2,
}});
const prompt = process.argv.slice(2).join(" ") || "{_PROMPT}";

async function main(): Promise<void> {{
{request}
}}

main().catch((error: unknown) => {{
  if (error instanceof OpenAI.APIConnectionTimeoutError) fail("The server did not answer in time.");
  if (error instanceof OpenAI.APIConnectionError) fail(`The server cannot be reached: ${{error.message}}`);
  if (error instanceof OpenAI.AuthenticationError) fail("The API key is wrong.");
  if (error instanceof OpenAI.APIError) fail(`The server refused the request (${{error.status}}): ${{error.message}}`);
  fail(`The reply broke off: ${{error}}`);
}});
"""
