# pyright: strict
"""Small real profiles recorded by this project, and the script that records them."""

from opreplay.traces.samples.catalog import SAMPLES, sample_path

__all__ = ["SAMPLES", "sample_path"]
