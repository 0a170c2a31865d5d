"""NKI kernels; importing one imports NKI."""
