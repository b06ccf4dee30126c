"""The worker's side of checkpoints: what a training script calls. The story begins in `checkpointer`."""
