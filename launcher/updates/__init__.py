"""Newer versions of this program: looked for, received, and installed in the way in which this one was."""
