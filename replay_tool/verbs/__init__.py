"""The verbs of `lmr-replay`: each a function from logs to data, without a word of rendering."""
