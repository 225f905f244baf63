"""What a decode step owes to memory, and how near its kernels come: the bandwidth and the floor."""
