"""The ``aten`` ops that programs for Neuron may consist of, as the vendor's backend for ``torch.compile`` gets them.

AWS publishes no such list for it (the page "Supported operators" is the older XLA route's). These are the ops that the
decoder needs and that StableHLO expresses with fixed shapes: elementwise arithmetic, reductions, products, gathers and
scatters by index, and views. Whatever else turns up in a graph is refused until somebody has looked at it.
"""

# Products.
_PRODUCTS = ("mm", "addmm", "bmm")

# Elementwise arithmetic on floating-point numbers, and comparisons.
_ARITHMETIC = (
    *("add", "sub", "mul", "div", "neg", "addcmul", "pow", "rsqrt", "log", "exp", "tanh", "erf", "silu", "gelu"),
    *("clamp", "minimum", "maximum", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "bitwise_and", "where"),
)

# Reductions along one axis; softmax and norms, which the vendor decomposes.
_REDUCTIONS = ("sum", "mean", "amax", "amin", "max", "cumsum", "_softmax", "native_layer_norm", "_fused_rms_norm")

# Reads and writes by index; the cache is written with index_put.
_INDEXING = ("index_select", "index_put", "gather", "embedding")

# Integers: slots and rows of the cache, and the random bits that are drawn with sampling=device.
_INTEGERS = ("remainder", "bitwise_or", "bitwise_xor", "__rshift__")

# Choosing tokens with sampling=device ranks the vocabulary.
_RANKING = ("sort",)

# Making tensors, copies and conversions.
_MAKING = (
    *("arange", "full", "zeros", "empty", "scalar_tensor", "full_like", "zeros_like", "ones_like", "empty_like"),
    *("clone", "copy", "copy_", "_to_copy", "cat", "stack", "constant_pad_nd"),
)

# Views, and writes to views as graphs have them.
_VIEWS = (
    *("view", "_unsafe_view", "expand", "permute", "transpose", "t", "unsqueeze", "squeeze", "slice", "select"),
    *("split", "split_with_sizes", "alias", "flip", "select_scatter", "slice_scatter"),
)

ALLOWED_OPS = frozenset((*_PRODUCTS, *_ARITHMETIC, *_REDUCTIONS, *_INDEXING, *_INTEGERS, *_RANKING, *_MAKING, *_VIEWS))
