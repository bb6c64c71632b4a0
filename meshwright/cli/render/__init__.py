"""Specs -> text and tables for people."""
