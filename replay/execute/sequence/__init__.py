# pyright: strict
"""Replays the ops of one recorded step in their order, with tensors that live as long as the step suggests."""
