"""Generates the parts of the documents that code determines: tables, and the output of commands.

``python -m docs.generate`` writes them, ``python -m docs.generate --check`` fails where one is not current.
"""
