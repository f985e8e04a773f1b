"""What a llama-server says when it refuses a request."""

from launcher.base.errors import Refused
from launcher.base.text import one_line


def refusal_in(data: object, status: int | None, where: str) -> Refused:
    """Turn llama-server's `{"error": {"code", "message", "type"}}` into an error with a next step."""
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
