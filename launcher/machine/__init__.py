"""This computer: static facts of the host and its GPUs, and sensors."""
