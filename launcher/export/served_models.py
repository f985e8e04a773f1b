"""Gateways that run, here or on other computers, with the models that they serve."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServedModel:
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
    models: tuple[ServedModel, ...]
    api_key: str | None = field(default=None, repr=False)


def list_model_names(gateways: tuple[GatewayModels, ...]) -> tuple[str, ...]:
    """Return the names of all models, each once, in the order in which they are first served."""
    return tuple(dict.fromkeys(model.name for gateway in gateways for model in gateway.models))


def limit_reply(context: int | None) -> int | None:
    """Return the tokens of a reply that clients may plan with in a context; None if it is unknown.

    The server itself sets no limit. Clients that are told none reserve 16,000 to 32,000 tokens, and then have no room
    for a prompt in a small context.
    """
    return None if context is None else min(_MOST_REPLY_TOKENS, context // 4)


_MOST_REPLY_TOKENS = 16_384
