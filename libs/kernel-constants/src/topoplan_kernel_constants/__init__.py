"""Times of the kernels of a kind of device, from tables of measured ones.

    tables (CSV, package data) ─► constants (JSON, fitted by a command) ─► kernels: seconds of a product, convolution,
                                                                           attention, pass over memory, step

`tables` reads what was measured.  `tiles` is the model of products: tiles of the output run in waves on the
multiprocessors.  `attention` and `passes` are those of attention and of what moves bytes.  `neighbours` corrects a
model by what the nearest measured shapes took.  `kernels` has all of them for one device, `steps` what
optimizers take, and `launches` what the host does.
"""
