"""Neuron backend: AWS Trainium through the vendor's own PyTorch device and compiler."""
