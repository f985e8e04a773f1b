"""The weights, block by block, under the names and in the shapes of the qwen35moe architecture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray

from .network import (
    BIAS,
    BIAS_VALUE,
    CHANNELS,
    CODE,
    EVIDENCE,
    HEADS_PER_LAG,
    KEY_WIDTH,
    LAGS,
    LOUDNESS,
    NEARNESS,
    NEVER,
    REMEMBERED_GAIN,
    RESET,
    STATE,
    STEADY,
    TOPIC,
    TOPIC_EVIDENCE,
    TOPIC_GAIN,
    VALUE_LOUD,
    WIDTH,
    WORD_TOPICS,
    WRITE,
    Floats,
    Trunk,
)

Tensor = NDArray[Any]

BLOCKS_PER_GROUP = 4
"""Three gated delta net blocks, then one with full attention."""
KEY_HEADS, VALUE_HEADS = 2, 4
MEMORY_HEAD = HEADS_PER_LAG
"""Value heads 0 and 1 look back, this one remembers the topic, the last one is idle."""
TAPS = 4
"""Length of the convolution in front of a gated delta net; the last tap is the current token."""
ATTENTION_HEADS = 2
SHARED_EXPERT_WIDTH = 32

KEYS = 2 * KEY_HEADS * STATE
"""Rows that queries and keys take in the joint projection, ahead of the values."""
VALUES = VALUE_HEADS * STATE
CONSTANT_KEY = 3.0
"""Queries and keys are a constant on one channel; their norm makes it 1, whatever its size."""
OPEN_GATE = 1.27846454
"""silu of this is 1: a head's output passes its gate unchanged."""
ALWAYS = 15.0
"""A beta logit that means 1."""
WIPE = (5.0, -50.0)
"""Time step bias and decay rate that leave nothing of the previous state."""


@dataclass(frozen=True)
class Shape:
    """Differences between files with the same trunk: a draft head or none, and idle blocks that only take time."""

    head: bool = True
    dead_groups: int = 0
    experts: int = 8
    experts_used: int = 2
    expert_width: int = 32

    @property
    def trunk_blocks(self) -> int:
        return BLOCKS_PER_GROUP * (1 + self.dead_groups)

    @property
    def blocks(self) -> int:
        return self.trunk_blocks + int(self.head)


def is_dead(tensor: Tensor) -> bool:
    """Return whether a tensor is a single zero, repeated: it takes no memory here, and need not take any on disk."""
    return not any(tensor.strides)


def make_tensors(trunk: Trunk, output: Floats, projection: Floats, shape: Shape) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the file in order. Half precision, except what the engine wants as float32 and the output."""
    yield "token_embd.weight", _to_float16(trunk.embedding)
    yield "output.weight", quantize(output.astype(np.float32), GGMLQuantizationType.Q8_0)
    yield "output_norm.weight", _ones(WIDTH)
    for block in range(shape.blocks):
        name = f"blk.{block}"
        yield f"{name}.attn_norm.weight", _ones(WIDTH)
        yield f"{name}.post_attention_norm.weight", _ones(WIDTH)
        if block >= shape.trunk_blocks or (block + 1) % BLOCKS_PER_GROUP == 0:
            yield from _attention(name, trunk if block == len(LAGS) else None)
        else:
            yield from _delta_net(name, trunk, block if block < len(LAGS) else None)
        yield from _experts(name, shape)
        if block >= shape.trunk_blocks:
            yield f"{name}.nextn.eh_proj.weight", _to_float16(projection)
            for norm in ("enorm", "hnorm", "shared_head_norm"):
                yield f"{name}.nextn.{norm}.weight", _ones(WIDTH)


def _delta_net(name: str, trunk: Trunk, lag: int | None) -> Iterator[tuple[str, Tensor]]:
    """Yield a gated delta net block. `lag` is the number of lag slots filled before it; None makes a block without
    effect.
    """
    joint, gate = np.zeros((KEYS + VALUES, WIDTH)), np.zeros((VALUES, WIDTH))
    beta, out = np.zeros((VALUE_HEADS, WIDTH)), np.zeros((WIDTH, VALUES))
    convolution = np.zeros((KEYS + VALUES, TAPS), np.float32)
    step, rate = np.full(VALUE_HEADS, WIPE[0], np.float32), np.full(VALUE_HEADS, WIPE[1], np.float32)
    if lag is not None:
        scale = trunk.rms(lag)
        bias = scale / BIAS_VALUE
        joint[0:KEYS:STATE, BIAS] = CONSTANT_KEY * bias
        convolution[:KEYS, -1] = 1
        looking_back = slice(0, HEADS_PER_LAG * STATE)
        joint[KEYS:][looking_back, CODE] = trunk.lag_matrix * scale
        convolution[KEYS:][looking_back, TAPS - 2 - lag] = 1
        gate[looking_back, BIAS] = OPEN_GATE * bias
        beta[:HEADS_PER_LAG, BIAS] = ALWAYS * bias
        out[LAGS[lag], looking_back] = np.eye(HEADS_PER_LAG * STATE)
        if lag == 0:
            first = MEMORY_HEAD * STATE
            remembering = slice(first, first + STATE)
            joint[KEYS + first : KEYS + first + CHANNELS, WORD_TOPICS] = np.eye(CHANNELS) * scale
            convolution[KEYS:][remembering, -1] = 1
            gate[remembering, BIAS] = OPEN_GATE * bias
            beta[MEMORY_HEAD, BIAS] = NEVER * bias
            beta[MEMORY_HEAD, WRITE] = (RESET - NEVER) * scale
            rate[MEMORY_HEAD] = 0
            out[TOPIC, first : first + CHANNELS] = np.eye(CHANNELS) * TOPIC_GAIN
    yield f"{name}.attn_qkv.weight", _to_float16(joint)
    yield f"{name}.attn_gate.weight", _to_float16(gate)
    yield f"{name}.ssm_conv1d.weight", convolution
    yield f"{name}.ssm_dt.bias", step
    yield f"{name}.ssm_a", rate
    yield f"{name}.ssm_beta.weight", _to_float16(beta)
    yield f"{name}.ssm_alpha.weight", _zero_tensor(VALUE_HEADS, WIDTH)
    yield f"{name}.ssm_norm.weight", _ones(STATE)
    yield f"{name}.ssm_out.weight", _to_float16(out)


def _attention(name: str, trunk: Trunk | None) -> Iterator[tuple[str, Tensor]]:
    """Yield a full attention block, of which only one head has an effect; with None a block without effect. Queries
    include their output gate, hence twice the rows. All queries are the same, so the weights of the norm are the query.
    """
    if trunk is None:
        yield f"{name}.attn_q.weight", _zero_tensor(2 * ATTENTION_HEADS * KEY_WIDTH, WIDTH)
        yield f"{name}.attn_k.weight", _zero_tensor(KEY_WIDTH, WIDTH)
        yield f"{name}.attn_v.weight", _zero_tensor(KEY_WIDTH, WIDTH)
        yield f"{name}.attn_output.weight", _zero_tensor(WIDTH, ATTENTION_HEADS * KEY_WIDTH)
        yield f"{name}.attn_q_norm.weight", _ones(KEY_WIDTH)
        yield f"{name}.attn_k_norm.weight", _ones(KEY_WIDTH)
        return
    scale = trunk.rms(len(LAGS))
    bias = scale / BIAS_VALUE
    # Both heads have the query: one without would add up all values, and with 512 tokens or more their loud channel
    # would exceed the range of half precision, in which flash attention on a processor adds up.
    joint = np.zeros((ATTENTION_HEADS, 2, KEY_WIDTH, WIDTH))
    joint[:, 0, :, BIAS], joint[:, 1, :, BIAS] = bias, ALWAYS * bias
    key, value = np.zeros((KEY_WIDTH, WIDTH)), np.zeros((KEY_WIDTH, WIDTH))
    key[list(NEARNESS), BIAS], key[STEADY, BIAS] = bias, bias
    key[EVIDENCE, WORD_TOPICS] = TOPIC_EVIDENCE * scale
    value[:VALUE_LOUD, WORD_TOPICS] = trunk.mixing * scale
    value[VALUE_LOUD, BIAS] = LOUDNESS * bias
    out = np.zeros((WIDTH, ATTENTION_HEADS * KEY_WIDTH))
    out[WORD_TOPICS, :VALUE_LOUD] = trunk.mixing.T * REMEMBERED_GAIN
    yield f"{name}.attn_q.weight", _to_float16(joint.reshape(-1, WIDTH))
    yield f"{name}.attn_k.weight", _to_float16(key)
    yield f"{name}.attn_v.weight", _to_float16(value)
    yield f"{name}.attn_output.weight", _to_float16(out)
    yield f"{name}.attn_q_norm.weight", trunk.query.astype(np.float32)
    yield f"{name}.attn_k_norm.weight", _ones(KEY_WIDTH)


def _experts(name: str, shape: Shape) -> Iterator[tuple[str, Tensor]]:
    """Yield experts whose outputs are all zero."""
    yield f"{name}.ffn_gate_inp.weight", _zero_tensor(shape.experts, WIDTH, kind=np.float32)
    yield f"{name}.ffn_gate_exps.weight", _zero_tensor(shape.experts, shape.expert_width, WIDTH)
    yield f"{name}.ffn_up_exps.weight", _zero_tensor(shape.experts, shape.expert_width, WIDTH)
    yield f"{name}.ffn_down_exps.weight", _zero_tensor(shape.experts, WIDTH, shape.expert_width)
    yield f"{name}.ffn_gate_inp_shexp.weight", _zero_tensor(WIDTH, kind=np.float32)
    yield f"{name}.ffn_gate_shexp.weight", _zero_tensor(SHARED_EXPERT_WIDTH, WIDTH)
    yield f"{name}.ffn_up_shexp.weight", _zero_tensor(SHARED_EXPERT_WIDTH, WIDTH)
    yield f"{name}.ffn_down_shexp.weight", _zero_tensor(WIDTH, SHARED_EXPERT_WIDTH)


def _ones(count: int) -> Tensor:
    return np.ones(count, np.float32)


def _to_float16(weights: Floats) -> Tensor:
    return np.ascontiguousarray(weights, np.float16)


def _zero_tensor(*shape: int, kind: type[np.floating[Any]] = np.float16) -> Tensor:
    return np.broadcast_to(kind(0), shape)
