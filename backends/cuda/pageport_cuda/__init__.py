"""CUDA backend: NVIDIA GPUs."""
