"""Whether one commit is slower than another, said with stated confidence.

A sample is one process, compared in pairs with a process of the other commit that ran right before
or after it on the same device.
"""
