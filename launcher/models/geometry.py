"""A model's geometry: layers, widths and counts, from which its memory is estimated."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from launcher.base.errors import GeometryUnknown
from launcher.base.messages import command_name, message
from launcher.models.gguf import GgufHeader, GgufModel
from launcher.models.preset import Count, Positive


@dataclass(frozen=True, slots=True)
class Geometry:
    """Layers, widths and counts as a GGUF's metadata states them; lengths in elements, contexts in tokens.

    `layers` counts the trunk's layers, `mtp_layers` the MTP heads after them. The trunk's layers are of three kinds:

    - `attention_layers` with a KV cache. Of these, `window_layers` see only the last `window` tokens, and have KV
      heads of their own number and lengths (`window_kv_heads` and so on); `kv_heads`, `key_length` and
      `value_length` are those of the others.
    - `cacheless_layers`, which keep nothing: they read another layer's cache, or have no attention.
    - The rest are gated delta nets or Mamba-2 layers with a recurrent state, whose sizes are `conv_kernel` to
      `group_count`; these are 0 in a model without such layers.

    `experts` is 0 in a dense model. In others the first `leading_dense` layers have no experts. With
    `latent_attention` (MLA) only keys are cached, because the values are a part of them. `indexer_layers` cache
    another key of `indexer_length` for each token. `per_layer_input` is the width of the embeddings that each layer
    adds. `cache_known` is whether the caches of this architecture are known; else they are taken to be plain.
    `target_layers` are, of a draft, the layers of its model whose inputs it reads, and `own_outputs` the rows of its
    own output matrix; 0 if it takes its model's.
    """

    architecture: str
    layers: Positive
    mtp_layers: Count
    hidden: Positive
    heads: Positive
    kv_heads: Count
    key_length: Count
    value_length: Count
    attention_layers: Count
    conv_kernel: Count
    inner_size: Count
    state_size: Count
    time_step_rank: Count
    group_count: Count
    experts: Count
    experts_used: Count
    expert_ffn: Count
    ffn: Count
    vocabulary: Count
    trained_context: Count
    shared_expert_ffn: Count = 0
    window: Count = 0
    window_layers: Count = 0
    window_kv_heads: Count = 0
    window_key_length: Count = 0
    window_value_length: Count = 0
    cacheless_layers: Count = 0
    leading_dense: Count = 0
    latent_attention: bool = False
    indexer_layers: Count = 0
    indexer_length: Count = 0
    per_layer_input: Count = 0
    cache_known: bool = True
    target_layers: tuple[int, ...] = ()
    own_outputs: Count = 0

    @property
    def recurrent_layers(self) -> int:
        """Trunk layers with a recurrent state in place of a KV cache."""
        return self.layers - self.attention_layers - self.cacheless_layers

    @property
    def expert_layers(self) -> int:
        """Trunk layers with routed experts; in Nemotron-H these are the feed-forward layers."""
        if not self.experts:
            return 0
        return self.cacheless_layers if self.architecture in _MAMBA_2 else self.layers - self.leading_dense

    @property
    def expert_parameters(self) -> int:
        """Parameters of the routed experts of one layer; those of Nemotron-H have no gate matrix."""
        matrices = 2 if self.architecture in _MAMBA_2 else 3
        return self.experts * matrices * self.hidden * (self.expert_ffn or self.ffn)

    @property
    def conv_channels(self) -> int:
        """Channels of a gated delta net's convolution: the values, plus the keys and queries of each group."""
        return self.inner_size + 2 * self.group_count * self.state_size

    @property
    def conv_state(self) -> int:
        """Elements of one layer's convolution state (llama.cpp: n_embd_r)."""
        return max(self.conv_kernel - 1, 0) * self.conv_channels

    @property
    def delta_state(self) -> int:
        """Elements of one layer's delta-net state (llama.cpp: n_embd_s)."""
        return self.state_size * self.inner_size

    def contradictions(self) -> Iterator[tuple[str, str]]:
        """Yield the fields with impossible values, or with 0 where the memory estimate needs a number, and why."""
        if self.attention_layers + self.cacheless_layers > self.layers:
            yield "attention_layers", f"should be at most the {self.layers:,} layers"
        if self.leading_dense > self.layers:
            yield "leading_dense", f"should be at most the {self.layers:,} layers"
        if self.window_layers > self.attention_layers:
            yield "window_layers", f"should be at most the {self.attention_layers:,} layers of attention"
        needed = ["kv_heads", "key_length", "value_length"] if self.attention_layers > self.window_layers else []
        if self.window_layers:
            needed += ["window", "window_kv_heads", "window_key_length", "window_value_length"]
        if self.architecture in _RECURRENT or not self.attention_layers:
            needed += ["conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count"]
        needed += ["indexer_length"] if self.indexer_layers else []
        needed += ["experts_used"] if self.experts else ["ffn"]
        for name in needed:
            if not getattr(self, name):
                yield name, "should be above 0 in this model"
        if self.experts and self.experts_used > min(self.experts, _MOST_EXPERTS_USED):
            yield "experts_used", f"should be at most {min(self.experts, _MOST_EXPERTS_USED):,}"


_ASSISTANT = "gemma4-assistant"
"""Architecture of a draft model that consists of MTP layers only; here they count as trunk layers."""


class _Windows(NamedTuple):
    """The sliding windows of an architecture (src/models: n_swa and load_swa_pattern).

    Of `period` layers the last has none, or the first if `dense_first`; the header's `sliding_window_pattern` overrides
    it, and with 0 there must be one. `default` is the window without a header key, `fixed` one that replaces any other
    than 0. `only_layers`: only models of so many layers have windows. `own_layers`: so many first layers have caches
    of their own, in place of those that the header counts.
    """

    period: int
    dense_first: bool = False
    default: int = 0
    fixed: int = 0
    only_layers: int = 0
    own_layers: int = 0


_WINDOWED: Mapping[str, _Windows] = MappingProxyType(
    {
        _ASSISTANT: _Windows(6),
        "afmoe": _Windows(4),
        "cohere2": _Windows(4),
        "cohere2moe": _Windows(4, dense_first=True),
        "dflash": _Windows(0),
        "exaone-moe": _Windows(4, default=128),
        "exaone4": _Windows(4, default=4_096, only_layers=64),
        "gemma2": _Windows(2, default=4_096),
        "gemma3": _Windows(6),
        "gemma3n": _Windows(5, own_layers=20),
        "gemma4": _Windows(6),
        "gpt-oss": _Windows(2),
        "granite_swa": _Windows(0),
        "laguna": _Windows(4, dense_first=True),
        "llama4": _Windows(4, default=8_192, fixed=8_192),  # attention in chunks, whose cache is a window's
        "maple": _Windows(0),
        "mellum": _Windows(4),
        "mimo2": _Windows(0),
        "muse-glimmer": _Windows(4),
        "olmo2": _Windows(4),
        "plamo3": _Windows(8),
        "smallthinker": _Windows(4, dense_first=True, fixed=4_096),
        "spark2_5": _Windows(0),
        "step35": _Windows(0),
    }
)
_PLAIN_NAMES = """
apertus arcee arctic baichuan bailingmoe bailingmoe2 bitnet bloom chameleon chatglm codeshell cogvlm command-r dbrx deci
deepseek dots1 eagle3 ernie4_5 ernie4_5-moe exaone falcon gemma glm4 glm4moe gpt2 gptj gptneox granite granitemoe grok
grovemoe hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2 jais jais2 llama maincoder minicpm minimax-m2 mistral3 mpt
nemotron olmo olmoe openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo qwen qwen2 qwen2moe qwen2vl qwen3
qwen3moe qwen3vl qwen3vlmoe refact seed_oss smollm3 stablelm starcoder starcoder2 xverse
"""
_PLAIN = frozenset(_PLAIN_NAMES.split())
"""Architectures whose layers all have a plain KV cache, whatever their header says of windows (src/models)."""
_DELTA_NETS = frozenset({"qwen35", "qwen35moe", "qwen3next"})
"""Architectures whose recurrent layers are gated delta nets; by default every fourth layer is an attention layer."""
_MAMBA_2 = frozenset({"nemotron_h", "nemotron_h_moe"})
"""Architectures of Mamba-2, attention and feed-forward layers (src/models/nemotron-h.cpp): a layer has KV heads, or a
feed-forward length, or else a recurrent state of the same two parts as a gated delta net's."""
_RECURRENT = _DELTA_NETS | _MAMBA_2
_LATENT = frozenset({"deepseek2", "deepseek32", "glm-dsa"})
"""Architectures whose MLA cache holds keys alone (src/llama-kv-cache.cpp: has_v = !is_mla)."""
_OTHER_CACHES = (
    "attention.kv_lora_rank",
    "attention.indexer.head_count",
    "attention.compress_ratios",
    "attention.kv_lora_rank_swa",
    "kda.head_dim",
    "num_loops",
    "ple.conv_kernel",
    "shortconv.l_cache",
    "wkv.head_size",
    "wkv_head_size",
)
"""Header keys of models with another kind of cache (MLA, indexer, compression, KDA, repeated layers, short
convolutions, RWKV; src/llama-arch.cpp)."""
_LATENT_KEYS = {"attention.kv_lora_rank", "attention.indexer.head_count"}
"""Those of them for which there is a formula, with latent attention."""
_OTHER_MEMORIES = frozenset({"minimax-01", "qwen4exp", "bailingmoe3", "t5", "hrm_text"})
"""Architectures with another kind of memory that no header key tells (src/llama-model.cpp: create_memory)."""
_CACHE_WORDS = re.compile(r"attention\.|ssm\.|cache|kv|window|chunk|recurrent|state|memory")
"""What keys contain that may be about caches."""
_CACHE_KEY_NAMES = """
attention.causal attention.clamp_kqv attention.gate_lora_rank attention.group_norm_epsilon attention.group_norm_groups
attention.head_count attention.head_count_kv attention.indexer.head_count attention.indexer.key_length
attention.indexer.top_k attention.indexer.types attention.key_length attention.key_length_mla attention.key_length_swa
attention.kv_lora_rank attention.layer_norm_epsilon attention.layer_norm_rms_epsilon attention.max_alibi_bias
attention.output_group_count attention.output_lora_rank attention.output_scale attention.q_lora_rank
attention.recurrent_layers attention.relative_buckets_count attention.rope_pattern attention.scale
attention.shared_kv_layers attention.sliding_window attention.sliding_window_pattern attention.temperature_length
attention.temperature_scale attention.value_length attention.value_length_mla attention.value_length_swa
attention.value_scale attention.value_expert_count attention.value_expert_used_count expert_chunk_feed_forward_length
ssm.conv_kernel ssm.dt_b_c_rms ssm.group_count ssm.inner_size ssm.state_size ssm.time_step_rank
"""
_CACHE_KEYS = frozenset(_CACHE_KEY_NAMES.split())
"""Those of them that are read here, or do not change the size of a cache (src/llama-arch.cpp: LLM_KV_NAMES)."""
_SHARED_INDEXERS_FROM = 1_048_576
"""Trained context from which GLM's DSA models share indexers: the first two layers and then every fourth have one
(src/models/glm-dsa.cpp, GLM_5_2_DEFAULT_INDEXER_TYPES)."""
_MOST_EXPERTS_USED = 1_024
"""Upper bound of experts per token: llama.cpp allows 512 experts per layer in all (LLAMA_MAX_EXPERTS)."""
_KEYS = {
    "attention_layers": "full_attention_interval",
    "kv_heads": "attention.head_count_kv",
    "key_length": "attention.key_length",
    "value_length": "attention.value_length",
    "window": "attention.sliding_window",
    "window_layers": "attention.sliding_window_pattern",
    "window_kv_heads": "attention.head_count_kv",
    "window_key_length": "attention.key_length_swa",
    "window_value_length": "attention.value_length_swa",
    "conv_kernel": "ssm.conv_kernel",
    "inner_size": "ssm.inner_size",
    "state_size": "ssm.state_size",
    "time_step_rank": "ssm.time_step_rank",
    "group_count": "ssm.group_count",
    "experts_used": "expert_used_count",
    "ffn": "feed_forward_length",
    "leading_dense": "leading_dense_block_count",
    "indexer_length": "attention.indexer.key_length",
}
"""Header key (without the architecture) that each field of Geometry is read from."""
_ASK_ENGINE_HINT = message("Let an engine compute it[: {command} with --ask-engine].", command=command_name("estimate"))


def read_geometry(model: GgufModel | GgufHeader) -> Geometry:
    """Read the geometry from a GGUF header.

    Raises GeometryUnknown if a number that the memory estimate needs is missing or impossible, or if the model has a
    kind of cache without a formula here.
    """
    arch = model.architecture
    latent = arch in _LATENT and bool(model.read_count("attention.key_length_mla"))
    others = {key for key in _OTHER_CACHES if model.metadata.get(f"{arch}.{key}")}
    others -= _LATENT_KEYS if latent else set()
    if others or arch in _OTHER_MEMORIES or (model.read_count("ssm.inner_size") and arch not in _RECURRENT):
        raise _unknown_cache_error(model)

    def read_number(key: str, default: int | None = None) -> int:
        found = model.metadata.get(f"{arch}.{key}")
        value = max(found, default=0) if isinstance(found, Sequence) and not isinstance(found, str) else found
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
            raise GeometryUnknown(
                message("The header of {name} has no usable {arch}.{key}.", name=model.name, arch=arch, key=key),
                _ASK_ENGINE_HINT,
            )
        return value

    heads, hidden = read_number("attention.head_count"), read_number("embedding_length")
    mtp_layers = 0 if arch == _ASSISTANT else read_number("nextn_predict_layers", 0)
    layers = read_number("block_count") - mtp_layers
    head_size = hidden // heads if heads else 0
    if not 0 < layers <= len(model.tensors) or not head_size:
        raise GeometryUnknown(
            message(
                "The header of {name} is damaged: it lists {layers:,} layers of {heads:,} heads and "
                "{tensors:,} tensors.",
                name=model.name,
                layers=layers,
                heads=heads,
                tensors=len(model.tensors),
            ),
            _ASK_ENGINE_HINT,
        )
    geometry = Geometry(
        architecture=arch,
        layers=layers,
        mtp_layers=mtp_layers,
        hidden=hidden,
        heads=heads,
        kv_heads=read_number("attention.head_count_kv", heads),
        key_length=read_number("attention.key_length", head_size),
        value_length=read_number("attention.value_length", head_size),
        attention_layers=_count_attention_layers(model, layers),
        cacheless_layers=_count_feed_forward_layers(model, layers),
        conv_kernel=read_number("ssm.conv_kernel", 0) or read_number("conv_kernel_size", 0),
        inner_size=read_number("ssm.inner_size", 0),
        state_size=read_number("ssm.state_size", 0),
        time_step_rank=read_number("ssm.time_step_rank", 0),
        group_count=read_number("ssm.group_count", 0),
        experts=read_number("expert_count", 0),
        experts_used=read_number("expert_used_count", 0),
        expert_ffn=read_number("expert_feed_forward_length", 0),
        ffn=read_number("feed_forward_length", 0),
        vocabulary=model.vocabulary or 0,
        trained_context=read_number("context_length", 0),
        shared_expert_ffn=read_number("expert_shared_feed_forward_length", 0),
        leading_dense=read_number("leading_dense_block_count", 0),
        latent_attention=latent,
        indexer_layers=_count_indexers(model, layers),
        indexer_length=read_number("attention.indexer.key_length", 0),
        per_layer_input=read_number("embedding_length_per_layer_input", 0),
        cache_known=_is_cache_known(model),
        target_layers=(targets := read_target_layers(model)),
        own_outputs=max((each.dimensions[-1] for each in model.tensors if each.name == "output.weight"), default=0)
        if targets
        else 0,
    )
    geometry = _add_window(model, geometry, read_number)
    kv_heads = model.metadata.get(f"{arch}.attention.head_count_kv")
    uneven = isinstance(kv_heads, Sequence) and len({count for count in kv_heads[:layers] if count}) > 1
    if model.metadata.get(f"{arch}.attention.causal") is False and not targets:  # an encoder keeps no cache
        raise _unknown_cache_error(model)
    if targets and not geometry.window and _has_unread_window(geometry, read_number):
        geometry = replace(geometry, cache_known=False)
    elif not geometry.window and (uneven or _has_unread_window(geometry, read_number)):
        raise _unknown_cache_error(model)
    for name, reason in geometry.contradictions():
        key, value = f"{arch}.{_KEYS[name]}", getattr(geometry, name)
        raise GeometryUnknown(
            message(
                "The header of {name} has no usable {key} ({value:,}): it {reason}.",
                name=model.name,
                key=key,
                value=value,
                reason=reason,
            ),
            _ASK_ENGINE_HINT,
        )
    return geometry


def read_target_layers(model: GgufModel | GgufHeader) -> tuple[int, ...]:
    """Return the layers of its model whose inputs a draft reads; () if its header names none."""
    found = model.metadata.get(f"{model.architecture}.target_layers")
    return tuple(each for each in found if isinstance(each, int)) if isinstance(found, tuple) else ()


def _unknown_cache_error(model: GgufModel | GgufHeader) -> GeometryUnknown:
    return GeometryUnknown(
        message(
            "There is no memory formula for the context of {name} ({architecture}).",
            name=model.name,
            architecture=model.architecture,
        ),
        _ASK_ENGINE_HINT,
    )


def _is_cache_known(model: GgufModel | GgufHeader) -> bool:
    """Return whether the caches of the architecture are known, and the header has no key of a cache that is not."""
    arch = model.architecture
    known = arch in _PLAIN or arch in _WINDOWED or arch in _RECURRENT or arch in _LATENT
    begin = f"{arch}."
    keys = (key.removeprefix(begin) for key in model.metadata if key.startswith(begin))
    return known and not any(_CACHE_WORDS.search(key) and key not in _CACHE_KEYS for key in keys)


def _has_unread_window(geometry: Geometry, read_number: Callable[..., int]) -> bool:
    """Return whether the header has a window that llama.cpp uses, or may use, and that was not understood."""
    windows = _WINDOWED.get(geometry.architecture)
    if geometry.architecture in _PLAIN or (windows and windows.only_layers not in (0, geometry.layers)):
        return False
    return read_number("attention.sliding_window", windows.default if windows else 0) > 0


def _add_window(model: GgufModel | GgufHeader, geometry: Geometry, read_number: Callable[..., int]) -> Geometry:
    """Return `geometry` with its sliding-window layers, and without the caches that its last layers share.

    It is returned unchanged for architectures without windows, and if the header contradicts itself.
    """
    arch, layers = geometry.architecture, geometry.layers
    windows = _WINDOWED.get(arch)
    if windows is None or windows.only_layers not in (0, layers):
        return geometry
    window = read_number("attention.sliding_window", windows.default)
    if not window:
        return geometry
    window = windows.fixed or window
    shared = 0 if arch == _ASSISTANT else read_number("attention.shared_kv_layers", 0)
    shared = max(layers - windows.own_layers, 0) if windows.own_layers else shared
    pattern = model.metadata.get(f"{arch}.attention.sliding_window_pattern")
    if isinstance(pattern, Sequence):
        slides = [bool(each) for each in pattern[: layers - shared]]
    else:
        period = pattern if type(pattern) is int else windows.period
        full = 0 if windows.dense_first else period - 1
        slides = [layer % period != full for layer in range(layers - shared)] if period else []
    heads = model.metadata.get(f"{arch}.attention.head_count_kv")
    by_layer = heads if isinstance(heads, Sequence) else [geometry.kv_heads] * layers
    contradictory = shared >= layers or len(slides) < layers - shared or len(by_layer) < layers or min(by_layer) < 0
    if contradictory or True not in slides or False not in slides:
        return geometry
    return replace(
        geometry,
        attention_layers=layers - shared,
        cacheless_layers=shared,
        kv_heads=by_layer[slides.index(False)],
        window=window,
        window_layers=slides.count(True),
        window_kv_heads=by_layer[slides.index(True)],
        window_key_length=read_number("attention.key_length_swa", geometry.key_length),
        window_value_length=read_number("attention.value_length_swa", geometry.value_length),
    )


def _count_feed_forward_layers(model: GgufModel | GgufHeader, layers: int) -> int:
    """Return the number of trunk layers that are feed-forward alone, as in Nemotron-H."""
    widths = model.metadata.get(f"{model.architecture}.feed_forward_length")
    if model.architecture not in _MAMBA_2 or not isinstance(widths, Sequence) or isinstance(widths, str):
        return 0
    return sum(1 for width in widths[:layers] if width)


def _count_indexers(model: GgufModel | GgufHeader, layers: int) -> int:
    """Return the number of trunk layers with a DSA indexer; the others use the choice of the one before."""
    if not model.read_count("attention.indexer.head_count"):
        return 0
    kinds = model.metadata.get(f"{model.architecture}.attention.indexer.types")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str):
        return sum(1 for kind in kinds[:layers] if kind)
    if model.architecture == "glm-dsa" and (model.read_count("context_length") or 0) >= _SHARED_INDEXERS_FROM:
        return sum(1 for layer in range(layers) if layer < 2 or layer % 4 == 2)
    return layers


def _count_attention_layers(model: GgufModel | GgufHeader, layers: int) -> int:
    """Return the number of trunk layers with a KV cache: those with KV heads, or the last of each interval, or all."""
    heads = model.metadata.get(f"{model.architecture}.attention.head_count_kv")
    if isinstance(heads, Sequence) and not isinstance(heads, str):
        return sum(1 for count in heads[:layers] if count)
    kinds = model.metadata.get(f"{model.architecture}.attention.recurrent_layers")
    if model.architecture in _DELTA_NETS and isinstance(kinds, Sequence) and not isinstance(kinds, str):
        return sum(1 for is_recurrent in kinds[:layers] if not is_recurrent)
    interval = model.read_count("full_attention_interval") or (4 if model.read_count("ssm.inner_size") else 1)
    return layers // interval
