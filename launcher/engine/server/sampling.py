"""A server's default sampling parameters, read from /props."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from launcher.base.errors import LauncherError
from launcher.engine.server.client import EngineClient

SAMPLING_PARAMETERS = ("temperature", "top_k", "top_p", "min_p", "max_tokens")
_DIGITS = 4
"""Decimal places kept, because the engine's values are single precision: 0.8 arrives as 0.800000011920929."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Default sampling values by their request parameter; unknown ones are absent.

    `thinks` is whether the chat template has a switch for thinking, None if unknown.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    thinks: bool | None = None


async def read_sampling_defaults(client: EngineClient) -> SamplingDefaults:
    """Request a server's default sampling parameters; empty if it does not answer."""
    try:
        props = await client.request_json("/props")
    except LauncherError:
        return SamplingDefaults()
    if not isinstance(props, dict):
        return SamplingDefaults()
    settings = props.get("default_generation_settings")
    parameters = settings.get("params") if isinstance(settings, dict) else None
    values = {}
    if isinstance(parameters, dict):
        for name in SAMPLING_PARAMETERS:
            value = parameters.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                values[name] = round(value, _DIGITS)
    template = props.get("chat_template")
    return SamplingDefaults(values, "enable_thinking" in template if isinstance(template, str) else None)
