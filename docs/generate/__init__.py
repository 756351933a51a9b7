"""Generates the parts of the documents that come from code: tables, and the output of commands.

``python -m docs.generate`` writes them, ``python -m docs.generate --check`` fails if one is not current.
"""
