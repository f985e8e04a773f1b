"""Geometry of the models: metadata and tensors of the families, as llama.cpp asks for them.

The names and shapes are those that src/models/*.cpp of llama.cpp (build 11434) creates; the numbers are the ones that
the engine prints for the published files, whose tensor counts these have too: 753 with the MTP head and 733 without
for Qwen3.6-35B-A3B, 866 for Qwen3.6-27B, 833 for Gemma 4 31B.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

Shape = tuple[int, ...]
"""Elements along each dimension, the innermost first, as the engine prints them."""
Value = int | float | list[int] | list[bool]
Named = Iterator[tuple[str, Shape]]

QWEN_VOCABULARY = 248_320
GEMMA_VOCABULARY = 262_144


@dataclass(frozen=True, slots=True)
class Geometry:
    """An architecture with its metadata, keys without the architecture's prefix, and its tensors in file order."""

    architecture: str
    metadata: Mapping[str, Value]
    tensors: Mapping[str, Shape]


def _shared_metadata(
    blocks: int, width: int, heads: int, head: int, context: int, vocabulary: int, rope_base: float
) -> dict[str, Value]:
    return {
        "block_count": blocks,
        "context_length": context,
        "embedding_length": width,
        "vocab_size": vocabulary,
        "attention.head_count": heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": rope_base,
    }


def _attention(width: int, heads: int, heads_kv: int, head: int, query: int = 1) -> Named:
    yield "attn_norm.weight", (width,)
    yield "attn_q.weight", (width, heads * head * query)
    yield "attn_k.weight", (width, heads_kv * head)
    yield "attn_v.weight", (width, heads_kv * head)
    yield "attn_output.weight", (heads * head, width)


def _normed_heads(head: int) -> Named:
    yield "attn_q_norm.weight", (head,)
    yield "attn_k_norm.weight", (head,)


def _feed_forward(width: int, inner: int) -> Named:
    yield "ffn_gate.weight", (width, inner)
    yield "ffn_up.weight", (width, inner)
    yield "ffn_down.weight", (inner, width)


def _experts(width: int, inner: int, experts: int) -> Named:
    yield "ffn_gate_inp.weight", (width, experts)
    yield "ffn_gate_exps.weight", (width, inner, experts)
    yield "ffn_up_exps.weight", (width, inner, experts)
    yield "ffn_down_exps.weight", (inner, width, experts)


def _block(number: int, named: Named) -> Named:
    for name, shape in named:
        yield f"blk.{number}.{name}", shape


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Qwen3.5 and its successors: three gated-delta-net blocks, one of full attention, and so on; an MTP block last."""

    HEAD: ClassVar = 256
    KEY_HEADS: ClassVar = 16
    STATE: ClassVar = 128
    TAPS: ClassVar = 4
    INTERVAL: ClassVar = 4

    blocks: int
    width: int
    heads: int
    heads_kv: int
    inner: int
    value_heads: int
    feed_forward: int
    experts: int = 0

    def geometry(self) -> Geometry:
        """Return metadata and tensors."""
        metadata = {
            **_shared_metadata(self.blocks + 1, self.width, self.heads, self.HEAD, 262_144, QWEN_VOCABULARY, 1e7),
            "attention.head_count_kv": self.heads_kv,
            "nextn_predict_layers": 1,
            "rope.dimension_count": 64,
            "rope.dimension_sections": [11, 11, 10, 0],
            "full_attention_interval": self.INTERVAL,
            "ssm.conv_kernel": self.TAPS,
            "ssm.inner_size": self.inner,
            "ssm.state_size": self.STATE,
            "ssm.time_step_rank": self.value_heads,
            "ssm.group_count": self.KEY_HEADS,
        }
        if self.experts:
            counts = {"expert_count": self.experts, "expert_used_count": 8}
            metadata |= counts | {f"expert_{kind}feed_forward_length": self.feed_forward for kind in ("", "shared_")}
        else:
            metadata["feed_forward_length"] = self.feed_forward
        return Geometry("qwen35moe" if self.experts else "qwen35", metadata, dict(self._tensors()))

    def _tensors(self) -> Named:
        yield "token_embd.weight", (self.width, QWEN_VOCABULARY)
        yield "output_norm.weight", (self.width,)
        yield "output.weight", (self.width, QWEN_VOCABULARY)
        for number in range(self.blocks):
            whole = (number + 1) % self.INTERVAL == 0
            yield from _block(number, self._full_attention() if whole else self._delta_net())
            yield from _block(number, self._feed_forward_part())
        for part in (self._full_attention(), self._feed_forward_part(), self._mtp_part()):
            yield from _block(self.blocks, part)

    def _full_attention(self) -> Named:
        yield from _attention(self.width, self.heads, self.heads_kv, self.HEAD, query=2)  # with its gate
        yield from _normed_heads(self.HEAD)

    def _delta_net(self) -> Named:
        mixed = 2 * self.KEY_HEADS * self.STATE + self.inner
        yield "attn_norm.weight", (self.width,)
        yield "attn_qkv.weight", (self.width, mixed)
        yield "attn_gate.weight", (self.width, self.inner)
        yield "ssm_conv1d.weight", (self.TAPS, mixed)
        yield "ssm_dt.bias", (self.value_heads,)
        yield "ssm_a", (self.value_heads,)
        yield "ssm_beta.weight", (self.width, self.value_heads)
        yield "ssm_alpha.weight", (self.width, self.value_heads)
        yield "ssm_norm.weight", (self.STATE,)
        yield "ssm_out.weight", (self.inner, self.width)

    def _feed_forward_part(self) -> Named:
        yield "post_attention_norm.weight", (self.width,)
        if not self.experts:
            yield from _feed_forward(self.width, self.feed_forward)
            return
        yield from _experts(self.width, self.feed_forward, self.experts)
        yield "ffn_gate_inp_shexp.weight", (self.width,)
        yield "ffn_gate_shexp.weight", (self.width, self.feed_forward)
        yield "ffn_up_shexp.weight", (self.width, self.feed_forward)
        yield "ffn_down_shexp.weight", (self.feed_forward, self.width)

    def _mtp_part(self) -> Named:
        yield "nextn.eh_proj.weight", (2 * self.width, self.width)
        for norm in ("enorm", "hnorm", "shared_head_norm"):
            yield f"nextn.{norm}.weight", (self.width,)


def llama_8b() -> Geometry:
    """Return Llama 3.1 8B: the plain dense transformer."""
    width, heads, heads_kv, head, inner, vocabulary = 4_096, 32, 8, 128, 14_336, 128_256

    def tensors() -> Named:
        yield "token_embd.weight", (width, vocabulary)
        yield "rope_freqs.weight", (head // 2,)
        yield "output_norm.weight", (width,)
        yield "output.weight", (width, vocabulary)
        for number in range(32):
            yield from _block(number, _attention(width, heads, heads_kv, head))
            yield f"blk.{number}.ffn_norm.weight", (width,)
            yield from _block(number, _feed_forward(width, inner))

    metadata = _shared_metadata(32, width, heads, head, 131_072, vocabulary, 5e5)
    metadata |= {"attention.head_count_kv": heads_kv, "feed_forward_length": inner, "rope.dimension_count": head}
    return Geometry("llama", metadata, dict(tensors()))


def qwen3_30b() -> Geometry:
    """Return Qwen3-30B-A3B: attention in every block, and experts."""
    width, heads, heads_kv, head, inner, experts, vocabulary = 2_048, 32, 4, 128, 768, 128, 151_936

    def tensors() -> Named:
        yield "token_embd.weight", (width, vocabulary)
        yield "output_norm.weight", (width,)
        yield "output.weight", (width, vocabulary)
        for number in range(48):
            yield from _block(number, _attention(width, heads, heads_kv, head))
            yield from _block(number, _normed_heads(head))
            yield f"blk.{number}.ffn_norm.weight", (width,)
            yield from _block(number, _experts(width, inner, experts))

    metadata = _shared_metadata(48, width, heads, head, 262_144, vocabulary, 1e7)
    metadata |= {"attention.head_count_kv": heads_kv, "expert_count": experts, "expert_used_count": 8}
    return Geometry("qwen3moe", metadata | {"expert_feed_forward_length": inner}, dict(tensors()))


def gemma3_12b() -> Geometry:
    """Return Gemma 3 12B: of six blocks five have a sliding window; input and output share a matrix."""
    width, heads, heads_kv, head, inner, vocabulary = 3_840, 16, 8, 256, 15_360, 262_208

    def tensors() -> Named:
        yield "token_embd.weight", (width, vocabulary)
        yield "output_norm.weight", (width,)
        for number in range(48):
            yield from _block(number, _attention(width, heads, heads_kv, head))
            yield from _block(number, _normed_heads(head))
            for norm in ("post_attention", "ffn", "post_ffw"):
                yield f"blk.{number}.{norm}_norm.weight", (width,)
            yield from _block(number, _feed_forward(width, inner))

    metadata = _shared_metadata(48, width, heads, head, 131_072, vocabulary, 1e6)
    metadata |= {"attention.head_count_kv": heads_kv, "feed_forward_length": inner, "attention.sliding_window": 1_024}
    return Geometry("gemma3", metadata, dict(tensors()))


def gemma4_31b(*, draft: bool = False) -> Geometry:
    """Return Gemma 4 31B, or the model of its separate draft file, which has no keys and values of its own.

    Every sixth block (in the draft the last one) has full attention, with wider heads and fewer key heads, and uses its
    keys as values.
    """
    target, heads, head, full_head, window = 5_376, 32, 256, 512, 1_024
    blocks, width, inner = (4, 1_024, 8_192) if draft else (60, target, 21_504)
    sliding = [(number + 1) % min(6, blocks) != 0 for number in range(blocks)]
    heads_kv = [16 if slides else 4 for slides in sliding]

    def tensors() -> Named:
        yield "token_embd.weight", (width, GEMMA_VOCABULARY)
        yield "output_norm.weight", (width,)
        yield "rope_freqs.weight", (full_head // 2,)
        if draft:
            yield "nextn.pre_projection.weight", (2 * target, width)
            yield "nextn.post_projection.weight", (width, target)
        for number, slides in enumerate(sliding):
            size = head if slides else full_head
            absent = {"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"} if draft else set()
            if not slides:
                absent |= {"attn_v.weight"}
            for named in (_attention(width, heads, heads_kv[number], size), _normed_heads(size)):
                yield from _block(number, ((name, shape) for name, shape in named if name not in absent))
            for norm in ("post_attention", "ffn", "post_ffw"):
                yield f"blk.{number}.{norm}_norm.weight", (width,)
            yield f"blk.{number}.layer_output_scale.weight", (1,)
            yield from _block(number, _feed_forward(width, inner))

    metadata = _shared_metadata(blocks, width, heads, full_head, 262_144, GEMMA_VOCABULARY, 1e6)
    metadata |= {
        "feed_forward_length": inner,
        "attention.head_count_kv": heads_kv,
        "attention.key_length_swa": head,
        "attention.value_length_swa": head,
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": sliding,
        "attention.shared_kv_layers": blocks if draft else 0,
        "embedding_length_per_layer_input": 0,
        "final_logit_softcapping": 30.0,
        "rope.dimension_count": full_head,
        "rope.dimension_count_swa": head,
        "rope.freq_base_swa": 1e4,
    }
    if draft:
        metadata |= {"nextn_predict_layers": blocks, "embedding_length_out": target}
    return Geometry("gemma4-assistant" if draft else "gemma4", metadata, dict(tensors()))


def windowed(architecture: str, **changes: Value) -> Geometry:
    """Return a model of 8 billion parameters with the windows of an architecture, as src/models creates it.

    `changes` replace its metadata; `block_count` is its number of blocks.
    """
    blocks, width, heads, heads_kv, head, inner, experts, vocabulary = 32, 4_096, 32, 8, 128, 14_336, 16, 128_256
    metadata = _shared_metadata(blocks, width, heads, head, 131_072, vocabulary, 1e6)
    metadata |= {
        "attention.head_count_kv": heads_kv,
        "feed_forward_length": inner,
        **_WINDOWED[architecture],
        **changes,
    }
    blocks = int(str(metadata["block_count"]))
    has_experts = "expert_count" in metadata

    def tensors() -> Named:
        yield "token_embd.weight", (width, vocabulary)
        yield "output_norm.weight", (width,)
        for number in range(blocks):
            attention = _attention(width, heads, heads_kv, head)
            yield from _block(
                number, (named for named in attention if architecture != "exaone4" or "norm" not in named[0])
            )
            if architecture == "exaone4":
                yield from _block(number, _normed_heads(head))
            for norm in _NORMS.get(architecture, ("ffn",)):
                yield f"blk.{number}.{norm}_norm.weight", (width,)
            yield from _block(number, _experts(width, inner, experts) if has_experts else _feed_forward(width, inner))
            if architecture == "llama4":
                for name, shape in _feed_forward(width, inner):
                    yield f"blk.{number}.{name.replace('.weight', '_shexp.weight')}", shape

    return Geometry(architecture, metadata, dict(tensors()))


_SOME_EXPERTS: dict[str, Value] = {"expert_count": 16, "expert_used_count": 1, "expert_feed_forward_length": 14_336}
_WINDOWED: Mapping[str, Mapping[str, Value]] = {
    "cohere2": {"attention.sliding_window": 4_096, "logit_scale": 0.0625, "attention.layer_norm_epsilon": 1e-5},
    "exaone4": {"block_count": 64, "attention.sliding_window": 4_096},
    "gemma2": {},
    "llama4": _SOME_EXPERTS | {"interleave_moe_layer_step": 1},
    "smallthinker": _SOME_EXPERTS | {"attention.sliding_window": 1_024, "expert_gating_func": 2},
}
"""Architectures that `windowed` knows, with their metadata."""
_NORMS = {
    "cohere2": (),
    "exaone4": ("post_attention", "post_ffw"),
    "gemma2": ("post_attention", "ffn", "post_ffw"),
}
"""The norms of a block besides that before attention, where they are not just that of the feed-forward network."""
