"""From settings to llama-server's arguments: in its own spelling, and only what the build has."""

from collections.abc import Collection

from launcher.base.errors import EngineUnsuitable
from launcher.models.memory import Setting

USUAL_KV, USUAL_BATCH, USUAL_UBATCH = "f16", 2_048, 512
"""llama-server's own defaults (common/common.h); a ubatch may not exceed the batch."""

LLAMA_SERVER_FLAGS = frozenset(
    {
        "--ctx-size",
        "--parallel",
        "--gpu-layers",
        "--cache-type-k",
        "--cache-type-v",
        "--flash-attn",
        "--ubatch-size",
        "--batch-size",
        "--n-cpu-moe",
        "--spec-type",
        "--spec-draft-n-max",
        "--spec-draft-model",
        "--mmproj",
        "--device",
    }
)
"""What llama-server itself has of these (b11434 to b11669), for a plan while no build is installed."""


def memory_arguments(
    setting: Setting,
    flags: Collection[str],
    *,
    spec_type: str = "draft-mtp",
    draft_file: str | None = None,
    mmproj_file: str | None = None,
) -> list[str]:
    """Return the arguments that `setting` amounts to, for a build that knows `flags`.

    `spec_type` is how drafts are made, `draft_file` the draft that lies in a file of its own, `mmproj_file` the vision
    projector. What the build does by itself is not spelled out. Raises EngineUnsuitable when the build lacks one of
    them.
    """
    wanted: dict[str, str | None] = {"--ctx-size": str(setting.context), "--parallel": str(setting.slots)}
    if setting.backend != "cpu":
        wanted["--gpu-layers"] = "99"
    elif "--device" in flags:  # a build for GPUs would use them unasked
        wanted["--device"] = "none"
    if setting.kv != USUAL_KV:
        wanted |= {"--cache-type-k": setting.kv, "--cache-type-v": setting.kv}
    wanted["--flash-attn"] = "on"
    if setting.ubatch != USUAL_UBATCH:
        wanted["--ubatch-size"] = str(setting.ubatch)
    if setting.ubatch > USUAL_BATCH:
        wanted["--batch-size"] = str(setting.ubatch)
    if setting.n_cpu_moe:
        wanted["--n-cpu-moe"] = str(setting.n_cpu_moe)
    if setting.draft:
        wanted["--spec-type"] = spec_type
        if not spec_type.startswith("ngram"):  # repeats have lengths of their own
            wanted["--spec-draft-n-max"] = str(setting.draft)
        if draft_file:
            wanted["--spec-draft-model"] = draft_file
    if mmproj_file:
        wanted["--mmproj"] = mmproj_file
    missing = [flag for flag in wanted if flag not in flags]
    if missing:
        raise EngineUnsuitable(
            f"The engine does not know {', '.join(missing)}.", "Use a newer llama.cpp build.", missing=missing
        )
    return [word for flag, value in wanted.items() for word in ((flag,) if value is None else (flag, value))]
