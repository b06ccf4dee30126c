"""The worker's side of checkpoints: what a training script calls. Start with `checkpointer`."""
