"""Output for models with a draft model in another file, and for models without recurrent states."""

import os
import sys
from pathlib import Path

import pytest

from tests import forked
from tools.sparse_models.models import model
from tools.sparse_models.write import write


def run_text(*arguments: str | Path) -> str:
    done = forked.run(*arguments, env=os.environ | {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def test_the_kv_cache_of_an_attention_only_model_is_shown_beside_that_of_the_engine(tmp_path: Path, home: Path) -> None:
    path = tmp_path / "llama.gguf"
    write(path, "llama", model("llama-8b-q4_k"))
    table = run_text("estimate", path, "--backend", "cpu", "--ctx", "4096", "--ask-engine")
    # 32 layers of 8 heads of 128 elements, keys and values in f16: 128 KiB a token.
    assert "KV cache 512.0 MiB engine 512 " in table


@pytest.mark.parametrize("speculation", ["draft-model", "draft-file", "ngram-mod"])
def test_an_engine_estimates_only_the_model_if_the_draft_is_in_another_file(
    speculation: str, tmp_path: Path, home: Path
) -> None:
    path, folder = tmp_path / "llama.gguf", home / "config" / "models"
    write(path, "llama", model("llama-8b-q4_k"))
    folder.mkdir(parents=True)
    (folder / "own.toml").write_text(
        f"[[models]]\nid = 'own'\nname = 'Own'\nspeculation = '{speculation}'\n"
        f"draft = {{ repo = 'someone/small', file = 'small.gguf', size_bytes = 1_000_000 }}\n"
        f"files = [{{ quant = 'Q4_K', file = '{path}' }}]\n"
        "[[models.presets]]\nquant = 'Q4_K'\nctx = 4_096\ndraft = 2\n"
    )
    plan = run_text("plan", "--model", "own", "--gpu-memory", "24", "--ask-engine")
    assert "the formula for cpu says" in plan
    assert "That is the model alone, without its drafts." in plan


def test_ngram_drafts_have_no_draft_length(home: Path) -> None:
    plan = run_text("plan", "--model", "qwen3.6-35b-a3b", "--gpu-memory", "16", "--ctx", "32768", "--draft", "3")
    assert "drafts from repeats, ubatch" in plan
    assert "--spec-type ngram-mod" in plan
    assert "draft 3" not in plan.partition(" why ")[0]
    assert "--spec-draft-n-max" not in plan
