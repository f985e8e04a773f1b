"""Downloads: the Hugging Face hub, transfers and the download queue."""
