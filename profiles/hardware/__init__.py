"""What a machine has: its GPUs and CPU, detected or written down."""
