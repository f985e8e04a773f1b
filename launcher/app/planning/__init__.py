"""Plans and start settings of a model on this computer, for both faces."""
