"""Chat templates that refuse late system messages, and the corrected ones, by the real engine."""

import asyncio
from pathlib import Path

from launcher.agents.late_system import correct_template, takes_late_system
from launcher.app.serving.serving import serve
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import EngineClient
from tests.agents.scripted import scripted_server

GUARDED = """{%- for message in messages %}
    {%- set content = message.content | trim %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}
            {{- raise_exception('System message must be at the beginning.') }}
        {%- endif %}
        {{- '<|im_start|>system\\n' + content + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}
"""
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello."},
    {"role": "system", "content": "Answer in verse."},
]


async def ask_engine(model: Path, template: Path) -> tuple[bool | None, str]:
    """Return whether the engine accepts a late system message with this template, and the prompt that it then forms."""
    async with serve(ServeOptions(model, draft=0, context=512, chat_template_file=template)) as session:
        endpoint = session.supervisor.endpoint
        async with EngineClient(endpoint.url, endpoint.api_key) as client:
            if not await takes_late_system(client):
                return False, ""
            return True, (await client.request_json("/apply-template", {"messages": CONVERSATION}))["prompt"]


def test_a_template_that_refuses_late_system_messages_accepts_them_once_corrected(
    demo_model: Path, home: Path, tmp_path: Path
) -> None:
    corrected = correct_template(GUARDED)
    assert corrected is not None
    paths = [tmp_path / "guarded.jinja", tmp_path / "corrected.jinja"]
    for path, text in zip(paths, (GUARDED, corrected), strict=True):
        path.write_text(text)
    assert asyncio.run(ask_engine(demo_model, paths[0])) == (False, "")
    takes, prompt = asyncio.run(ask_engine(demo_model, paths[1]))
    assert takes
    assert prompt.endswith("<|im_start|>system\nAnswer in verse.<|im_end|>\n<|im_start|>assistant\n")


def test_templates_without_the_guard_or_with_other_turns_stay_as_they_are() -> None:
    assert correct_template(GUARDED.replace("raise_exception", "strftime_now")) is None
    assert correct_template(GUARDED.replace("<|im_start|>", "<start_of_turn>")) is None


def test_it_is_unknown_whether_a_server_without_apply_template_accepts_late_messages() -> None:
    async def ask(url: str) -> bool | None:
        async with EngineClient(url, None) as client:
            return await takes_late_system(client)

    with scripted_server("refuses=/apply-template") as url:
        assert asyncio.run(ask(url)) is None
    with scripted_server("refuses-late") as url:
        assert asyncio.run(ask(url)) is False
