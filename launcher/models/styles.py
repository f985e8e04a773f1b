"""In what the blocks of one architecture differ from those of another, as far as their graphs go.

Read from llama.cpp's src/models/*.cpp (b11434).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Style:
    """What an architecture's blocks have beside attention and feed forward.

    `gated`: queries with a gate of their own size. `biased`: queries, keys and values with a bias. `normed_heads` and
    `normed_values`: norms of queries and keys, and of values. `scaled_queries`. `windowed`: layers with a sliding
    window between those without. `post_norms`: norms behind attention and feed forward too. `scaled_blocks`: a
    factor at a block's end. `scaled_input`: a factor for each token's embedding. `late_pick`: all rows go through the
    last block. `borrowed`: keys and values are another model's. `experts`: known with experts too. `positions`: numbers
    that tell a token's place.
    """

    gated: bool = False
    biased: bool = False
    normed_heads: bool = False
    normed_values: bool = False
    scaled_queries: bool = False
    windowed: bool = False
    post_norms: bool = False
    scaled_blocks: bool = False
    scaled_input: bool = False
    late_pick: bool = False
    borrowed: bool = False
    experts: bool = False
    positions: int = 1


ASSISTANT = "gemma4-assistant"
"""The architecture of a draft that reads its target's hidden states and cache."""
_QWEN35 = Style(gated=True, normed_heads=True, experts=True, positions=4)
_GEMMA3 = Style(normed_heads=True, scaled_queries=True, windowed=True, post_norms=True, scaled_input=True)
STYLES: Mapping[str, Style] = MappingProxyType(
    {
        "gemma3": _GEMMA3,
        "gemma4": Style(
            normed_heads=True,
            normed_values=True,
            windowed=True,
            post_norms=True,
            scaled_blocks=True,
            scaled_input=True,
            late_pick=True,
        ),
        ASSISTANT: Style(normed_heads=True, windowed=True, post_norms=True, scaled_blocks=True, borrowed=True),
        "llama": Style(experts=True),
        "qwen2": Style(biased=True),
        "qwen3": Style(normed_heads=True),
        "qwen3moe": Style(normed_heads=True, experts=True),
        "qwen35": _QWEN35,
        "qwen35moe": _QWEN35,
    }
)
"""The styles of the architectures whose graphs are known."""
UNKNOWN = Style(gated=True, biased=True, normed_heads=True, normed_values=True, post_norms=True, positions=4)
"""Stands in for an architecture that is not known: as much of everything as there may be."""
