"""What `serve --lan` says: at which addresses other computers reach the server, and what that means."""

from launcher.cli.layout import filled
from launcher.sharing import sharing


def sharing_words(port: int) -> str:
    """Return the lines for people."""
    found = sharing(port)
    urls = [f"{url}/v1" for url in found.urls]
    where = f" with the network: {' and '.join(urls)}." if urls else ", but this computer has no address in a network."
    meaning = (
        f"Shared{where} Whoever has the key can use the server, and whoever can listen on the network reads the"
        " key and all that is said, because nothing is encrypted: share where you trust all. It ends with this run."
    )
    return "\n".join(filter(None, [filled(meaning), found.hint]))
