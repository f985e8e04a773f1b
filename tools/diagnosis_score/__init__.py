"""How often the diagnosis names the first cause: logs that failing engines wrote, and the score on them."""
