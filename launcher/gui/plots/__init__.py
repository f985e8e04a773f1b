"""The live plots and their read-outs."""
