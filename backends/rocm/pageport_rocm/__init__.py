"""ROCm backend: AMD GPUs."""
