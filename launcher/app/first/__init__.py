"""The first start: checks of the computer, the steps to a first reply, and the demonstration."""
