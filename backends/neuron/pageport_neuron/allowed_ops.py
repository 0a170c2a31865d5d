"""The ``aten`` ops that programs for Neuron may consist of, as the vendor's backend for ``torch.compile`` gets them.

AWS publishes no such list for it (the page "Supported operators" is the older XLA route's). These are the ops that
decoders come to here, all of them of fixed shapes: whatever else turns up in a graph is refused until somebody has
looked at it.
"""

# Products.
_PRODUCTS = ("mm", "addmm", "bmm")

# Elementwise arithmetic, and comparisons.
_ARITHMETIC = (
    *("add", "sub", "mul", "div", "neg", "addcmul", "pow", "rsqrt", "log", "tanh", "silu", "gelu", "clamp", "minimum"),
    *("eq", "lt", "le", "gt", "ge", "bitwise_and", "where"),
)

# Reductions along one axis; softmax and layer norm, which the vendor decomposes.
_REDUCTIONS = ("sum", "mean", "amax", "amin", "_softmax", "native_layer_norm")

# Reads and writes by index; the cache is written with index_put. Slots become blocks and offsets with remainder.
_INDEXING = ("index_select", "index_put", "remainder")

# Drawing tokens with sampling=device: random bits, and a ranking of the vocabulary.
_DRAWING = ("bitwise_or", "bitwise_xor", "__rshift__", "sort", "cumsum", "gather", "max")

# Making tensors, copies and conversions; cat is for sinks.
_MAKING = ("arange", "zeros", "empty", "scalar_tensor", "clone", "copy", "copy_", "_to_copy", "cat", "stack")

# Views, and writes to views as graphs have them.
_VIEWS = (
    *("view", "_unsafe_view", "alias", "expand", "permute", "transpose", "t", "unsqueeze", "squeeze", "flip"),
    *("slice", "select", "split", "select_scatter", "slice_scatter"),
)

ALLOWED_OPS = frozenset((*_PRODUCTS, *_ARITHMETIC, *_REDUCTIONS, *_INDEXING, *_DRAWING, *_MAKING, *_VIEWS))
