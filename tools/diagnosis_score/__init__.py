"""Score of the diagnosis: how often it names the first cause in logs of engines that failed."""
