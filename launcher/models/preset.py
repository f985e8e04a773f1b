"""Catalogue classes for presets, published runs, quality notes and sampling advice.

Their docstrings become the descriptions in presets/schema.json, see catalogue.py.
"""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from launcher.models.drafters import MTP, NONE


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a value or of its length, for pydantic. Those of annotated_types take 15 ms to import."""

    ge: int | None = None
    le: int | None = None
    min_length: int | None = None
    max_length: int | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:  # noqa: ANN401 -- pydantic is not imported
        """Return pydantic's schema of the annotated type with these limits."""
        return {**handler(source), **{name: limit for name, limit in asdict(self).items() if limit is not None}}


Positive = Annotated[int, Limits(ge=1)]
Count = Annotated[int, Limits(ge=0)]
Amount = Annotated[float, Limits(ge=0)]
Share = Annotated[float, Limits(ge=0, le=1)]
Text = Annotated[str, Limits(min_length=1)]

Intent = Literal["balanced", "agents", "long-context", "best-quality", "as-published"]
Variant = Literal["any", "desktop", "headless"]
Mark = Literal["measured", "derived", "guess"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters, in llama-server's spelling."""

    temperature: Amount | None = None
    """Temperature."""
    top_p: Share | None = None
    """Nucleus sampling."""
    top_k: Count | None = None
    """Candidates kept."""
    min_p: Share | None = None
    """Least probability, as a share of the best candidate's."""
    presence_penalty: float | None = None
    """Penalty for tokens that were used before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingAdvice:
    """What the model's authors advise."""

    thinking: Sampling | None = None
    """While the model thinks before it answers."""
    no_thinking: Sampling | None = None
    """While it answers at once."""
    source: Text
    """Source of the advice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How good a model's answers are, on one scale for all models: published benchmarks together."""

    value: Amount
    """The score, from 0 to 100."""
    source: Text
    """Who published it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A remark with its source."""

    text: Text
    """The remark."""
    source: Text
    """Its source."""
    mtp_off: bool = False
    """Whether plans leave MTP off for this reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityNote:
    """The loss of quality of a quantisation, shown with the plans that use it."""

    quants: tuple[Text, ...] = ()
    """Parts of quantisation names it applies to, such as IQ2."""
    kv: tuple[Text, ...] = ()
    """KV cache types it applies to."""
    text: Text
    """The note."""
    source: Text
    """Who measured it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """The result of a run that somebody published: one stream of generation on one machine."""

    gpu: Text
    """GPU as the source names it."""
    gpu_memory_gb: Positive | None = None
    """Memory of all GPUs together, in GB as vendors count."""
    backend: Text | None = None
    """Backend, such as CUDA or Vulkan."""
    os: Text | None = None
    """Operating system."""
    engine: Text | None = None
    """Engine and build; absent for an unknown build of llama.cpp."""
    quant: Text | None = None
    """Quantisation."""
    ctx: Positive | None = None
    """Context that was allocated, in tokens."""
    filled: Count | None = None
    """Context that was filled before the generation, in tokens."""
    kv: Text | None = None
    """KV cache type."""
    draft: Count | None = None
    """Draft length."""
    n_cpu_moe: Count | None = None
    """Layers whose routed experts were in host memory."""
    expert_cache: bool = False
    """Whether the GPU had a cache of the experts in host memory."""
    speculation: str = ""
    """How tokens were drafted, as llama-server's --spec-type; empty for MTP or none."""
    gpus: Positive = 1
    """Number of GPUs."""
    workload: str = ""
    """What was generated, in the words of the source."""
    temperature: Amount | None = None
    """Temperature of sampling."""
    power_w: Amount | None = None
    """Power limit of the GPU, in watts."""
    file_bytes: Positive | None = None
    """Size of the model's file, in bytes."""
    date: str = ""
    """Day of the run, as YYYY-MM-DD."""
    tokens_per_second: Amount | None = None
    """Rate with speculation, the lower end of a range; absent where only memory was measured."""
    tokens_per_second_high: Amount | None = None
    """Upper end of a range of rates."""
    baseline: Amount | None = None
    """Rate without speculation, in tokens per second."""
    acceptance: Share | None = None
    """Share of the drafted tokens that were accepted, the lower end of a range."""
    acceptance_high: Share | None = None
    """Upper end of a range of shares."""
    memory_mib: Positive | None = None
    """GPU memory in use while it ran, in MiB."""
    trust: Literal["good", "low"] = "good"
    """Low if the source omits the model or the settings, contradicts better sources, or measured replies that vary."""
    note: str = ""
    """Further remarks of the source."""
    source: Text
    """Who measured it."""

    @property
    def drafts(self) -> bool:
        """Whether tokens were drafted, also if the draft length is unknown."""
        return self.draft != 0

    @property
    def spec_type(self) -> str:
        """How tokens were drafted, as --spec-type calls it."""
        return self.speculation or (MTP if self.drafts else NONE).spec_type

    @property
    def speedup(self) -> float | None:
        """Rate with speculation divided by the rate without; below 1 means slower. None if either is unknown."""
        return self.tokens_per_second / self.baseline if self.tokens_per_second and self.baseline else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One way to start a model on a machine of a certain size."""

    intents: Annotated[tuple[Intent, ...], Limits(min_length=1)] = ("balanced",)
    """What it is meant for."""
    variant: Variant = "any"
    """Whether a desktop shares the GPU, of which a GiB then stays free."""
    memory_gb: Positive | None = None
    """GPU memory that it is made for, in GB as vendors count; absent if any."""
    host_memory_gb_min: Positive | None = None
    """Least host memory, in GB."""
    quant: Text
    """Quantisation, one of the model's files."""
    ctx: Positive
    """Context in tokens."""
    kv: Text = "f16"
    """KV cache type, of keys and values alike."""
    draft: Count = 2
    """Draft length; 0 is off."""
    n_cpu_moe: Count = 0
    """Layers whose routed experts stay in host memory."""
    ubatch: Positive = 512
    """Physical batch in tokens."""
    slots: Positive = 1
    """Requests served at the same time; they share the context."""
    threads: Positive | None = None
    """CPU threads."""
    mark: Mark = "guess"
    """Measured: somebody ran this or a neighbour of it. Derived: the memory formula says it fits. Guess: neither."""
    predicted_mib: Positive | None = None
    """GPU memory by the formula, in MiB."""
    note: str = ""
    """The reason for these settings."""
    source: str = ""
    """Source of the preset."""
