"""Figures as people read them; unknown is an en dash."""


def percent(share: float | None) -> str:
    """Return a share as "82 %", or an en dash when it is unknown."""
    return "–" if share is None else f"{100 * share:.0f} %"  # noqa: RUF001 -- the sign for an unknown value


def rate(tokens_per_second: float | None) -> str:
    """Return a rate as "96.2 t/s", or an en dash when it is unknown."""
    return "–" if tokens_per_second is None else f"{tokens_per_second:,.1f} t/s"  # noqa: RUF001
