"""Tests run on the simulated device, with one thread each for torch and JAX."""

import os

# Read when JAX is first imported.
os.environ["PAGEPORT_TPU_SIMULATE"] = "1"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
