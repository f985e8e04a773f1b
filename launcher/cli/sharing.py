"""What `serve --lan` says: at which addresses other computers reach the server, and what that means."""

from launcher.cli.layout import filled
from launcher.machine.addresses import firewall_hint, lan_addresses
from launcher.machine.host import read_host
from launcher.machine.wsl import read_settings


def shared_urls(port: int) -> list[str]:
    """Return the base addresses of a server on `port` for other computers, without a path."""
    return [f"http://{address}:{port}" for address in lan_addresses()]


def sharing(port: int) -> str:
    """Return the lines for people."""
    urls = [f"{url}/v1" for url in shared_urls(port)]
    where = f" with the network: {' and '.join(urls)}." if urls else ", but this computer has no address in a network."
    host = read_host()
    mirrored = any(each.values.get("wsl2.networkingmode", "").lower() == "mirrored" for each in read_settings())
    meaning = (
        f"Shared{where} Whoever has the key can use the server, and whoever can listen on the network reads the"
        " key and all that is said, because nothing is encrypted: share where you trust all. It ends with this run."
    )
    hint = firewall_hint(port, system=host.kind, wsl=host.wsl, wsl_mirrored=mirrored)
    return "\n".join(filter(None, [filled(meaning), hint]))
