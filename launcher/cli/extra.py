"""The user's own arguments for llama-server, behind `--`: those that change the memory are not part of a plan."""

from collections.abc import Iterator, Sequence

_OPTIONS = {
    "--ctx-size": "--ctx",
    "--cache-type-k": "--kv",
    "--cache-type-v": "--kv",
    "--ubatch-size": "--ubatch",
    "--batch-size": "",
    "--parallel": "--slots",
    "--n-cpu-moe": "--n-cpu-moe",
    "--cpu-moe": "--n-cpu-moe",
    "--gpu-layers": "",
    "--spec-type": "--no-mtp",
    "--spec-draft-n-max": "--draft",
    "--spec-draft-model": "",
    "--spec-draft-type-k": "",
    "--spec-draft-type-v": "",
    "--spec-draft-ngl": "",
    "--spec-draft-n-cpu-moe": "",
    "--spec-draft-cpu-moe": "",
    "--spec-draft-override-tensor": "",
    "--spec-draft-n-ubatch": "",
    "--mmproj": "--vision",
    "--override-tensor": "",
    "--flash-attn": "",
    "--device": "",
    "--split-mode": "",
    "--tensor-split": "",
    "--main-gpu": "",
    "--no-kv-offload": "",
    "--no-kv-unified": "",
    "--kv-unified": "",
    "--swa-full": "",
    "--ctx-checkpoints": "",
    "--cache-ram": "",
    "--lora": "",
    "--lora-scaled": "",
    "--fit": "",
    "--model": "--model",
}
"""llama-server's arguments that change what a model takes, and what stands for them among the plan's options."""
_SPELLINGS = {
    "-c": "--ctx-size",
    "-ctk": "--cache-type-k",
    "-ctv": "--cache-type-v",
    "-ub": "--ubatch-size",
    "-b": "--batch-size",
    "-np": "--parallel",
    "-ncmoe": "--n-cpu-moe",
    "-cmoe": "--cpu-moe",
    "-ngl": "--gpu-layers",
    "--n-gpu-layers": "--gpu-layers",
    "-md": "--spec-draft-model",
    "--model-draft": "--spec-draft-model",
    "-ctkd": "--spec-draft-type-k",
    "--cache-type-k-draft": "--spec-draft-type-k",
    "-ctvd": "--spec-draft-type-v",
    "--cache-type-v-draft": "--spec-draft-type-v",
    "-ngld": "--spec-draft-ngl",
    "--gpu-layers-draft": "--spec-draft-ngl",
    "--n-gpu-layers-draft": "--spec-draft-ngl",
    "-ncmoed": "--spec-draft-n-cpu-moe",
    "--n-cpu-moe-draft": "--spec-draft-n-cpu-moe",
    "--spec-draft-ncmoe": "--spec-draft-n-cpu-moe",
    "-cmoed": "--spec-draft-cpu-moe",
    "--cpu-moe-draft": "--spec-draft-cpu-moe",
    "-otd": "--spec-draft-override-tensor",
    "--override-tensor-draft": "--spec-draft-override-tensor",
    "-mm": "--mmproj",
    "-ot": "--override-tensor",
    "-fa": "--flash-attn",
    "-dev": "--device",
    "-sm": "--split-mode",
    "-ts": "--tensor-split",
    "-mg": "--main-gpu",
    "-nkvo": "--no-kv-offload",
    "-no-kvu": "--no-kv-unified",
    "-kvu": "--kv-unified",
    "-ctxcp": "--ctx-checkpoints",
    "--swa-checkpoints": "--ctx-checkpoints",
    "-cram": "--cache-ram",
    "-fit": "--fit",
    "-m": "--model",
}
"""Their other spellings (llama-server --help, b11669)."""


def uncounted(extra: Sequence[str]) -> list[str]:
    """Return a sentence about the arguments in `extra` that a plan's figures are without; none where there are none."""
    found = dict(_memory_flags(extra))
    if not found:
        return []
    ours = dict.fromkeys(filter(None, found.values()))
    remedy = f" {_listed(list(ours))} before the -- would be counted." if ours else ""
    be = "is" if len(found) == 1 else "are"
    return [f"Your own {_listed(list(found))} {be} not counted in these figures, and can change the memory.{remedy}"]


def _memory_flags(extra: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the flags that change the memory as they were written, each with the plan's own option for it."""
    for word in extra:
        flag = word.partition("=")[0]
        name = flag.replace("_", "-") if flag.startswith("--") else flag  # as llama.cpp reads them
        name = _SPELLINGS.get(name, name)
        if name in _OPTIONS:
            yield flag, _OPTIONS[name]


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
