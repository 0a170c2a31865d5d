"""Neuron backend: AWS Inferentia and Trainium; so far it only finds them."""
