"""Other people's kernels in our calling form, one file per package."""
