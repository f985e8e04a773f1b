"""The Cockpit page."""
