"""The version, kept here so that reading it costs no import of package metadata."""

__version__ = "0.1.0"
