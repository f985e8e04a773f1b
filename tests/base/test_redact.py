"""Secrets are removed from a bug report, and all other text is kept."""

from pathlib import Path

import pytest

from launcher.base.redact import HIDDEN, redact_text

HOME = Path("/home/ada")


def redact_for_ada(text: str, *secrets: str) -> str:
    return redact_text(text, secrets, home=HOME, user="ada")


@pytest.mark.parametrize(
    "secret",
    [
        "hf_AbCdEfGhIjKlMnOpQrSt",
        "sk-proj-abc123def456ghi",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    ],
)
def test_texts_that_look_like_keys_are_hidden(secret: str) -> None:
    assert redact_for_ada(f"got {secret}, then") == f"got {HIDDEN}, then"


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("llama-server --api-key abc,def --port 1", f"llama-server --api-key {HIDDEN},def --port 1"),
        ("--api-key=9f8e7d6c", f"--api-key={HIDDEN}"),
        ('{"api_key": "q1w2e3r4t5"}', f'{{"api_key": "{HIDDEN}"}}'),
        ("Authorization: Bearer aa.bb-cc_dd", f"Authorization: Bearer {HIDDEN}"),
        ("MY_TOKEN=abcdef123", f"MY_TOKEN={HIDDEN}"),
        ("password: hunter22", f"password: {HIDDEN}"),
        ("GET https://ada:pw@host.example/x", f"GET https://{HIDDEN}@host.example/x"),
        ("https://cdn.example/f?X-Amz-Signature=abc&y=1 done", f"https://cdn.example/f?{HIDDEN} done"),
        ("from 192.168.1.20 port 80", "from [address] port 80"),
        ("ada@example.org wrote", f"{HIDDEN} wrote"),
        ("/home/ada/models/m.gguf", "~/models/m.gguf"),
        ("C:\\Users\\ada\\m.gguf", "C:\\Users\\[user]\\m.gguf"),
    ],
)
def test_values_assigned_to_secret_names_are_hidden(line: str, left: str) -> None:
    assert redact_for_ada(line) == left


@pytest.mark.parametrize(
    "line",
    [
        "print_info: n_vocab = 151936, EOS token = 151645 '<|im_end|>'",
        "slot update_slots: new prompt, n_ctx_slot = 4096, n_prompt_tokens = 23",
        "load_tensors: CUDA0 model buffer size = 14210.23 MiB",
        "main: server is listening on http://127.0.0.1:8080",
        "generated token after token",
        "/home/adamant/x",
        "version 0.1.2.3 of it, b11669",
        "draft acceptance rate = 0.81",
    ],
)
def test_other_text_is_unchanged(line: str) -> None:
    assert redact_for_ada(line) == line


def test_known_secrets_are_hidden_everywhere() -> None:
    assert redact_for_ada("x=Zm9vYmFyYmF6;", "Zm9vYmFyYmF6") == f"x={HIDDEN};"
    assert redact_for_ada("the word", "the") == "the word"
