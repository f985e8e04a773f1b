"""The shape of a model: the numbers that its memory follows from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Geometry:
    """Layers, widths and counts as a GGUF's metadata states them; lengths in elements, contexts in tokens.

    `layers` are the trunk's blocks, `mtp_layers` the heads behind it. Of the trunk, `attention_layers` hold a KV
    cache; the others are gated delta nets with a recurrent state, whose five sizes are 0 in a model of attention
    alone. `experts` is 0 in a dense model.
    """

    architecture: str
    layers: int
    mtp_layers: int
    hidden: int
    heads: int
    kv_heads: int
    key_length: int
    value_length: int
    attention_layers: int
    conv_kernel: int
    inner_size: int
    state_size: int
    time_step_rank: int
    group_count: int
    experts: int
    experts_used: int
    expert_ffn: int
    ffn: int
    vocabulary: int
    trained_context: int
    shared_expert_ffn: int = 0

    @property
    def recurrent_layers(self) -> int:
        """Trunk layers with a recurrent state in place of a KV cache."""
        return self.layers - self.attention_layers

    @property
    def conv_channels(self) -> int:
        """Channels of a gated delta net's convolution: values, and keys and queries of each group."""
        return self.inner_size + 2 * self.group_count * self.state_size

    @property
    def conv_state(self) -> int:
        """Elements of one layer's convolution state (llama.cpp: n_embd_r)."""
        return max(self.conv_kernel - 1, 0) * self.conv_channels

    @property
    def delta_state(self) -> int:
        """Elements of one layer's delta-net state (llama.cpp: n_embd_s)."""
        return self.state_size * self.inner_size
