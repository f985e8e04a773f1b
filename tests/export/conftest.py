"""Recipes with the names that break quoting."""

from dataclasses import replace

import pytest
from hypothesis import strategies as st

from launcher.export.recipe import ExportRecipe

KEY = "s3cret-key_0123456789abcdefghijklmnopqrstuvwxyz"
NASTY = "a b'c\"d$HOME${x}$(id)`id`%h%%é模型😀;#&|<>*?[]{}!~\\"
_words = st.text(
    st.sampled_from("ab Z09'\"$`\\%{}()[]<>|&;#*?!~=:,./-@^+_\t\né模😀\u2028\u202e\x07\x7f\u2019"),
    min_size=1,
    max_size=12,
)
words = _words.filter(lambda word: not word.startswith("-"))
"""Values of options: a word that begins with a dash would be a flag."""


def recipe_with(*values: str, api_key: str | None = None, program: tuple[str, ...] = ("llama-server",)) -> ExportRecipe:
    argv = [*program, "--model", f"/models/{values[0]}.gguf", "--host", "127.0.0.1", "--port", "20001"]
    argv += ["--alias", values[0], "--metrics"]
    for number, value in enumerate(values[1:]):
        argv += [f"--option-{number}", value]
    found = ExportRecipe.from_argv(argv, port=1, name="other", backend="cpu")
    return replace(found, api_key=api_key)


@pytest.fixture
def recipe() -> ExportRecipe:
    """An ordinary recipe."""
    argv = "llama-server --model /m/Qwen 3.gguf --host 127.0.0.1 --port 20001 --ctx-size 32768 --spec-type draft-mtp"
    words = argv.replace("Qwen 3", "Qwen\u00a03").split(" ")
    return replace(ExportRecipe.from_argv(words, port=1, name="qwen", backend="cuda"), api_key=None)
