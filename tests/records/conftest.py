"""Every test of records that decodes JSON decodes it twice: with the typed parser, and with orjson alone."""

from .both_parsers import both_parsers

__all__ = ["both_parsers"]
