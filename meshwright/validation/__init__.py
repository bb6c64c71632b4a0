"""Predictions held against measurements."""
