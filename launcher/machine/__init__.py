"""What this computer is: static facts of the host, and sensors that sample it."""
