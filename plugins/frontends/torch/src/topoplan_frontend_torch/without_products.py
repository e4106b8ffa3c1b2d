"""Operators of ATen that hold no matrix products: a plan's model FLOPs miss nothing where one is planned as a whole."""

from __future__ import annotations

__all__ = ["WITHOUT_PRODUCTS"]

_NAMES = """
_softmax_backward_data adaptive_max_pool2d affine_grid_generator argmax argmin argsort as_strided atan2
bincount bucketize cat ceil channel_shuffle chunk col2im complex constant_pad_nd copy cosine_similarity cross
deg2rad diag diag_embed diagonal diff embedding embedding_bag empty erfinv expand fill flip floor fmod fold
frac full gather glu grid_sampler grid_sampler_2d grid_sampler_3d hypot im2col imag index index_add index_copy
index_fill index_put index_select isfinite isinf isnan kthvalue lgamma logaddexp logit masked_scatter
masked_select max median min msort multinomial nan_to_num nansum narrow native_dropout nonzero normal one_hot
ones pad pairwise_distance pixel_shuffle pixel_unshuffle polygamma put quantile rand randint randn real
remainder renorm repeat repeat_interleave replication_pad1d roll rot90 rrelu scatter scatter_add
scatter_reduce searchsorted select select_scatter sgn sign sinc slice_scatter sort split split_with_sizes
stack std_mean swapaxes take take_along_dim tan tile topk trace tril triu trunc unbind unfold unique
upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d
upsample_nearest3d upsample_trilinear3d var_mean view_as_complex view_as_real where zeros
"""
WITHOUT_PRODUCTS = frozenset(_NAMES.split())
