"""Specs -> text and tables for people; the only place where bytes become GiB."""
