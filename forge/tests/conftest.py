"""What all tests of this package run under: one thread of torch, so that they are as fast beside others as alone."""

import torch

torch.set_num_threads(1)
