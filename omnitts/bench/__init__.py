"""Measurements that back every claim of speed: ratios, taken in one run on the machine at hand."""
