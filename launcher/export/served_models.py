"""Gateways that run, here or on other computers, with the models that they serve."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """A model by its name in the API. `context` is the tokens of one request, None if unknown."""

    name: str
    context: int | None = None
    embeds: bool = False


@dataclass(frozen=True, slots=True)
class GatewayModels:
    """A gateway at `url`, which does not end in /v1, and its models.

    With `api_key` None the exported text reads the key from the variable `key_variable`.
    """

    url: str
    key_variable: str
    models: tuple[OfferedModel, ...]
    api_key: str | None = field(default=None, repr=False)


def list_model_names(gateways: tuple[GatewayModels, ...]) -> tuple[str, ...]:
    """Return the names of all models, each once, in the order in which they are first served."""
    return tuple(dict.fromkeys(model.name for gateway in gateways for model in gateway.models))
