"""`mtp-launcher stop`: stop a running server, or unload one of its models."""

import argparse

from launcher.cli.output import Result
from launcher.cli.quantities import parse_seconds


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="unload only this model (default: stop the server with all models)",
    )
    parser.add_argument("--url", help="which server, when more than one runs")
    parser.add_argument(
        "--drain",
        type=parse_seconds,
        default=0.0,
        metavar="SECONDS",
        help="wait up to SECONDS for running requests to finish (default: do not wait)",
    )


async def run(options: argparse.Namespace) -> Result:
    """Stop the server, or unload the model that is named."""
    from launcher.app.serving.running_servers import stop_model, stop_server

    if options.model is not None:
        entry, model = await stop_model(options.model, options.url, drain_s=options.drain)
        return Result({"stopped": entry.url, "model": model}, [f"Unloaded {model} at {entry.url}."])
    entry = await stop_server(options.url, drain_s=options.drain)
    model = entry.first.model
    return Result({"stopped": entry.url, "model": model}, [f"Stopped {model} at {entry.url}."])
