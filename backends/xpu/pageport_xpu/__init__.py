"""XPU backend: Intel GPUs."""
