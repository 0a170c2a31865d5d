"""Every op in plain torch: what a device inherits until it brings something faster."""
