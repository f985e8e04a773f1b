"""The program and its server at full speed for long, watched for what grows: `python -m tools.soak [MINUTES]`."""
