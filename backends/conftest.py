"""Triton interprets kernels in this process, on CPU tensors; compile checks run in processes of their own."""

import os

# Read once, when triton is first imported, which tests of other parts do through transformers: hence as early as this.
os.environ["TRITON_INTERPRET"] = "1"
