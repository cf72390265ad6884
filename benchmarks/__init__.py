"""Ratios against bare and naive servers, measured in one interleaved run."""
