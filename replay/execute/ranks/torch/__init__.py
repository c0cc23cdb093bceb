# pyright: strict
"""What a rank does with torch.distributed: tensors, calls and their times; imports torch."""
