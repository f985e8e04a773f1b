"""Pictures of every page of the window, with real data from the demo engine."""
