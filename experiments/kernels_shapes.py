"""Shapes of kernels, drawn at random with fixed seeds: those of `kernels_torch.py`."""

from __future__ import annotations

import math

import numpy as np

#: Most elements of a matrix.
BUFFER = 1 << 29


def size(rng, low, high):
    """Draw a size: usually a multiple of 128 or 64, at times of 8, at times any."""
    value = int(2 ** rng.uniform(math.log2(low), math.log2(high)))
    step = int(rng.choice([256, 128, 64, 8, 1], p=[0.25, 0.3, 0.2, 0.13, 0.12]))
    return max(value // step * step, min(value, low))


def linear_shapes(count, seed=1):
    """Yield rows, outputs and inputs of linear layers."""
    rng = np.random.default_rng(seed)
    while count:
        kind = rng.random()
        if kind < 0.6:  # language models and vision: many rows
            m, n, k = size(rng, 512, 65536), size(rng, 256, 32768), size(rng, 256, 32768)
        elif kind < 0.85:
            m, n, k = size(rng, 8, 65536), size(rng, 16, 16384), size(rng, 16, 16384)
        else:  # a vocabulary
            m, n, k = size(rng, 256, 16384), int(rng.choice([32000, 50257, 50304, 30522, 100277, 128256, 151936])), 0
            k = size(rng, 512, 8192)
        if 2 * m * n * k <= 4e12 and max(m * n, m * k, n * k) <= BUFFER:
            yield m, n, k
            count -= 1


#: Kernel and stride -> share of the layers after the first.
WINDOWS = {
    ((1, 1), 1): 0.3,
    ((3, 3), 1): 0.3,
    ((3, 3), 2): 0.11,
    ((1, 1), 2): 0.06,
    ((5, 5), 1): 0.07,
    ((1, 7), 1): 0.05,
    ((7, 1), 1): 0.05,
    ((1, 3), 1): 0.03,
    ((3, 1), 1): 0.03,
}
#: Kernel and stride of first layers.
FIRST = {((3, 3), 1): 0.3, ((3, 3), 2): 0.2, ((7, 7), 2): 0.2, ((11, 11), 4): 0.15, ((16, 16), 16): 0.15}
SIDES = [6, 7, 8, 10, 12, 13, 14, 16, 17, 20, 24, 27, 28, 32, 35, 40, 48, 56, 64, 71, 75, 96, 112, 128, 147, 224]
CHANNELS = [
    16,
    24,
    32,
    40,
    48,
    64,
    80,
    96,
    112,
    128,
    160,
    192,
    224,
    256,
    288,
    320,
    384,
    448,
    512,
    576,
    640,
    768,
    960,
    1024,
    1280,
    1536,
    2048,
]


def convolution_shapes(count, seed=5):
    """Yield samples, channels, height, width, filters, kernel, stride, padding, groups."""
    rng = np.random.default_rng(seed)
    while count:
        kind, groups = rng.random(), 1
        samples = int(rng.choice([4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256]))
        side, channels, filters = (int(rng.choice(each)) for each in (SIDES, CHANNELS, CHANNELS))
        kernel, stride = [*WINDOWS][int(rng.choice(len(WINDOWS), p=[*WINDOWS.values()]))]
        if kind < 0.09:
            channels, side = 3, int(rng.choice([128, 160, 192, 224, 229, 256, 299, 384]))
            kernel, stride = [*FIRST][int(rng.choice(len(FIRST), p=[*FIRST.values()]))]
            filters = int(rng.choice([192, 384, 768, 1024] if kernel[0] == 16 else [24, 32, 48, 64, 96]))
        elif kind < 0.13:
            filters, groups, kernel, stride = channels, channels, (3, 3), 1
        is_padded = kernel[0] != 16 and rng.random() < 0.85
        pads = tuple(each // 2 if is_padded else 0 for each in kernel)
        rows, columns = ((side + 2 * pad - each) // stride + 1 for pad, each in zip(pads, kernel, strict=True))
        if min(rows, columns) < 1:
            continue
        outputs = samples * filters * rows * columns
        flops = 2 * outputs * channels // groups * kernel[0] * kernel[1]
        if 1e7 <= flops <= 4e11 and max(outputs, samples * channels * side**2) <= 1 << 28:
            yield samples, channels, side, side, filters, *kernel, stride, pads, groups
            count -= 1


def attention_shapes(count, seed=6):
    """Yield samples, heads, kv_heads, queries, keys, channels, causal."""
    rng = np.random.default_rng(seed)
    while count:
        channels = int(rng.choice([32, 64, 64, 80, 128, 128]))
        queries = int(rng.choice([64, 128, 197, 256, 384, 512, 577, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384]))
        heads = int(rng.choice([4, 8, 12, 16, 20, 32, 40, 64]))
        kv_heads = heads // int(rng.choice([1, 1, 1, 4, 8])) or 1
        if heads % kv_heads:
            continue
        samples = int(2 ** rng.integers(0, 8))
        causal = bool(rng.random() < 0.6)
        keys = queries if causal or rng.random() < 0.85 else int(queries * rng.choice([0.5, 2]))
        flops = 4 * samples * heads * queries * keys * channels
        if 1e8 < flops < 4e12 and samples * heads * max(queries, keys) * channels <= 1 << 27:
            yield samples, heads, kv_heads, queries, keys, channels, causal
            count -= 1
