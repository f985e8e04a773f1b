"""How llama.cpp spreads a model's layers over several GPUs, and what each of them then takes."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate


def layers_of(count: int, free: Sequence[int]) -> tuple[int, ...]:
    """Return how many of `count` layers each GPU gets: in order, by its share of all that is free.

    The output is the layer behind the last. Source: src/llama-model.cpp, load_tensors: upper_bound over the sums.
    """
    sums = list(accumulate(free if sum(free) else [1] * len(free)))
    owners = Counter(bisect_right(sums, layer * sums[-1] / (count + 1)) for layer in range(count))
    return tuple(owners[gpu] for gpu in range(len(free)))


def by_gpu(
    blocks: Sequence[int], heads: int, buffers: Sequence[int], free: Sequence[int], total: int
) -> tuple[int, ...]:
    """Return the bytes of `total` that each GPU takes.

    `blocks` are the bytes of the trunk's layers with their caches, `heads` the count of MTP layers behind them,
    `buffers` what each GPU holds beside, `free` what they have. The last one has all else: output, heads, drafts.
    """
    begin, first = 0, []
    for count, beside in list(zip(layers_of(len(blocks) + heads, free), buffers, strict=True))[:-1]:
        first.append(sum(blocks[begin : begin + count]) + beside)
        begin += count
    return (*first, total - sum(first))
