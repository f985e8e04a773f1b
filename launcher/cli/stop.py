"""`mtp-launcher stop`: stop a running server, or unload one of its models."""

import argparse

from launcher.app.serving.running_servers import stop_model, stop_server
from launcher.cli.output import Result


async def run(options: argparse.Namespace) -> Result:
    """Stop the server, or unload the model that is named."""
    if options.model is not None:
        entry, model = await stop_model(options.model, options.url, drain_s=options.drain)
        return Result({"stopped": entry.url, "model": model}, [f"Unloaded {model} at {entry.url}."])
    entry = await stop_server(options.url, drain_s=options.drain)
    model = entry.first.model
    return Result({"stopped": entry.url, "model": model}, [f"Stopped {model} at {entry.url}."])
