"""Triton kernels that several backends share. Importing this package imports neither triton nor torch."""
