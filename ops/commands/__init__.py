"""One module for each command of `flow`, or for each group of commands that share their work."""
