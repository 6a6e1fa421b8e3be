"""The training loop and all that it stands on: the schema of a run, optimizers, checkpoints, the log."""
