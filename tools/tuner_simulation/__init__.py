"""The tuner judged on machines whose true answer is known: `python -m tools.tuner_simulation --tunes 1000`."""
