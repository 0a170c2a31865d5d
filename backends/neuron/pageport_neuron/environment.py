"""Environment variables of the vendor's libraries, some of which read them when they are loaded; imports no torch."""

import os

from pageport_neuron.options import NeuronOptions

CACHE = "TORCH_NEURONX_NEFF_CACHE_DIR"
COMPILE_ONLY = "TORCH_NEURONX_COMPILE_ONLY"
TARGET = "NEURON_PLATFORM_TARGET_OVERRIDE"


def set_cache(options: NeuronOptions) -> None:
    """Say where compiled programs are kept, where an option does."""
    if options.cache_dir is not None:
        options.cache_dir.mkdir(parents=True, exist_ok=True)
        os.environ[CACHE] = str(options.cache_dir)


def set_compile_only(options: NeuronOptions) -> None:
    """Have programs compiled and not run, for a chip that need not be here."""
    set_cache(options)
    os.environ[COMPILE_ONLY] = "1"
    os.environ.setdefault(TARGET, options.target)
