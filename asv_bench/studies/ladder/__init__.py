"""The ladder: the host paths that decoding had before today's engine, step by step, each runnable.

Rungs 0 to 6 are small classes behind one engine (`rung_engine`), with one block table a layer as
the write-ups had that this project grew from; rungs 7 to 10 are today's engine with options. The
study is finished: it uses only the public face of engine and kernels, and rungs 0 to 6 have a
frozen copy of the model (`model`). What differs between two of them is what the host does.
"""
