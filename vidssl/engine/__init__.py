"""The training loop, and what it needs: config of a run, optimizers, checkpoints, logs."""
