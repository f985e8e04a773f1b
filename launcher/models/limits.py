"""What a setting may be, whether it is only planned or served."""

import re
from collections.abc import Collection
from difflib import get_close_matches

from launcher.base.errors import BadOption
from launcher.models.memory import KV_TYPES

_NOT_OFFERED = frozenset({"iq4_nl"})
"""KV cache types that llama.cpp takes, and refuses later: ggml-cuda/fattn.cu has no kernel for them."""

_RPC = re.compile(r"(?P<host>[A-Za-z0-9_.-]{1,253}):(?P<port>\d{1,5})", re.ASCII)
"""A worker as llama.cpp reads it: the host ends at the first colon, so there are no IPv6 addresses (ggml-rpc.cpp)."""


def check_rpc(workers: Collection[str]) -> None:
    """Raise BadOption unless all `workers` are HOST:PORT."""
    for worker in workers:
        found = _RPC.fullmatch(worker)
        if found is None or found["host"].startswith("-") or not 1 <= int(found["port"]) <= 65_535:
            raise BadOption(
                f'"{worker}" is no RPC worker.', "Write --rpc HOST:PORT, several with commas between.", option="--rpc"
            )


def check_limits(
    *,
    context: int | None = None,
    draft: int | None = None,
    ubatch: int | None = None,
    n_cpu_moe: int | None = None,
    slots: int | None = None,
) -> None:
    """Raise BadOption for a value that no engine could use. Context and ubatch are in tokens, None is not asked for."""
    check_range("--ctx", context, 256, 2**24, "tokens")
    check_range("--draft", draft, 0, 16, "tokens, 0 is MTP off")
    check_range("--ubatch", ubatch, 1, 2**16, "tokens")
    check_range("--n-cpu-moe", n_cpu_moe, 0, 1_024, "layers")
    check_range("--slots", slots, 1, 64, "slots")


def check_range(name: str, value: int | None, least: int, most: int, unit: str) -> None:
    """Raise BadOption unless the value of the option `name` is None or from `least` to `most`."""
    if value is not None and not least <= value <= most:
        raise BadOption(f"{name} {value} is out of range.", f"It goes from {least} to {most} {unit}.", option=name)


def check_kv(kv: str, offered: Collection[str] = tuple(KV_TYPES), *, owner: str = "There is") -> None:
    """Raise BadOption unless `kv` is one of the KV cache types that are `offered`.

    `owner` begins the sentence on a type that is missing, such as "The engine has".
    """
    usable = [each for each in offered if each not in _NOT_OFFERED]
    if kv in usable:
        return
    choose = f"Choose one of {', '.join(usable)}."
    if kv in _NOT_OFFERED:
        refused = f"The KV cache type {kv} cannot be used: flash attention on CUDA refuses it."
        raise BadOption(refused, f"q4_0 takes as much memory. {choose}", option="--kv")
    near = get_close_matches(kv.lower(), usable, n=1)
    meant = f"Did you mean {near[0]}? " if near else ""
    raise BadOption(f'{owner} no KV cache type "{kv}".', f"{meant}{choose}", option="--kv")


def beyond_training(trained: int | None, context: int) -> str:
    """Return what to know of a context, in tokens, that is longer than the model was `trained` for, else nothing."""
    if not trained or context <= trained:
        return ""
    return (
        f"The model was trained for {trained:,} tokens. More need RoPE scaling"
        " (-- --rope-scaling yarn), and its answers get worse."
    )
