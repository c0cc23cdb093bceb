# pyright: strict
"""The torch.distributed code of a rank: tensors, calls and their times; imports torch."""
