# pyright: strict
"""Stand-ins for torch_npu's ops."""
