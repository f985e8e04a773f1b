"""What a llama-server says when it refuses a request."""

from launcher.base.errors import Refused
from launcher.base.net import host_of, redirected, without_secrets
from launcher.base.text import one_line

_REDIRECTS = (301, 302, 303, 307, 308)


def refusal_in(data: object, status: int | None, where: str, location: str | None = None) -> Refused:
    """Turn llama-server's `{"error": {"code", "message", "type"}}` into an error with a next step.

    `location` is where a redirect leads to; none is followed.
    """
    if location and status in _REDIRECTS:
        target = one_line(without_secrets(redirected(where, location)), 200)
        title = f"{host_of(where)} leads to {target}, and no redirect is followed."
        return Refused(title, "Use that address, if you trust it.", status=status)
    error = data.get("error") if isinstance(data, dict) else None
    error = error if isinstance(error, dict) else {"message": error}
    message = one_line(str(error.get("message") or f"HTTP status {status}"))
    hints = {
        401: "The API key is wrong: `mtp-launcher status --json` shows the right one.",
        503: "It is still loading its model: try again in a moment.",
    }
    hint = hints.get(status or 0, "")
    if error.get("type") == "exceed_context_size_error":
        hint = "Shorten the prompt, or start the server with a larger --ctx."
    return Refused(f"The server refused the request: {message.rstrip('.')}.", hint, status=status, where=where)
