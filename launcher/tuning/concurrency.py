"""Several streams at once: what all of them get together, and what each one gets."""

from collections.abc import Sequence
from dataclasses import replace

from launcher.tuning.curves import series_of
from launcher.tuning.curves_rounds import PromptsAt, Start
from launcher.tuning.records import Prompt, Settings
from launcher.tuning.space import DRAFT


def stream_starts(settings: Settings, drafts: Sequence[int], streams: Sequence[int]) -> tuple[Start, ...]:
    """Return the starts of a sweep: one server with a slot for each of the most streams, asked by fewer, too.

    So a place differs from another by its load alone, and not by what slots take of the memory.
    """
    slots = max(streams)
    return tuple(
        Start(series_of(draft), {**settings, "slots": slots, DRAFT: draft}, tuple(streams)) for draft in drafts
    )


def prompts_for(prompts: Sequence[Prompt]) -> PromptsAt:
    """Return what is asked by so many streams at once: the prompts in turn.

    Streams that ended early would leave the others more of the GPU, so replies go on to their last token.
    """

    async def prompts_at(streams: int) -> Sequence[Prompt]:
        return [
            replace(prompt, name=f"{prompt.name} {number + 1}", sampling={**prompt.sampling, "ignore_eos": True})
            for number in range(streams)
            for prompt in (prompts[number % len(prompts)],)
        ]

    return prompts_at
