"""Under which name an operation goes through which rule: the method of ``Propagation`` that runs it."""

# the name of an operation -> the method that runs it
ALWAYS = {
    **dict.fromkeys(("add", "sub", "rsub", "__rsub__"), "_sum"),
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d"), "_linear"),
    **dict.fromkeys(("mul", "multiply", "matmul", "bmm", "mm", "mv", "dot", "einsum"), "_product"),
    **dict.fromkeys(("addmm", "baddbmm"), "_addmm"),
    **dict.fromkeys(("embedding", "embedding_bag"), "_embedding"),
    **dict.fromkeys(("cat", "concat", "stack", "hstack", "vstack"), "_cat"),
    **dict.fromkeys(("softmax", "special_softmax"), "_softmax"),
    "layer_norm": "_layer_norm",
    "scaled_dot_product_attention": "_attention",
}
_ACTIVATIONS = (
    "relu", "relu6", "gelu", "silu", "tanh", "sigmoid", "leaky_relu", "elu", "selu", "celu", "softplus", "mish",
    "hardtanh", "hardswish", "hardsigmoid", "log_sigmoid", "softsign", "clamp", "clip", "clamp_min", "clamp_max",
)  # fmt: skip
_NORMS = ("rms_norm", "normalize", "group_norm", "instance_norm", "batch_norm")  # each output is its input, scaled
OTHERS = {
    **dict.fromkeys(_ACTIVATIONS + _NORMS, "_one_to_one"),
    **dict.fromkeys(("div", "divide", "true_divide"), "_quotient"),
    **dict.fromkeys(("__rdiv__", "__rtruediv__"), "_over"),
    **dict.fromkeys(("rsqrt", "reciprocal", "pow"), "_power"),
    **dict.fromkeys(("masked_fill", "where"), "_filled"),
    "__setitem__": "_written",
    "cosine_similarity": "_cosine",
}
# linear, so that the gradient is their rule; how any other operation scales is tried out where it runs (tangent.py)
LINEAR = {
    "view", "view_as", "reshape", "transpose", "permute", "t", "movedim", "flatten", "unflatten", "squeeze",
    "unsqueeze", "expand", "expand_as", "contiguous", "__getitem__", "__get__", "split", "chunk", "unbind",
    "narrow", "select", "index_select", "gather", "repeat", "repeat_interleave", "roll", "flip", "tril", "triu",
    "to", "type", "type_as", "float", "double", "half", "bfloat16", "clone", "dropout", "neg", "sum", "mean", "abs",
    "max", "min", "amax", "amin", "topk", "sort", "_grouped_mm", "copy_", "requires_grad_", "detach_", "zero_",
    "size", "dim", "numel", "detach",
}  # fmt: skip
