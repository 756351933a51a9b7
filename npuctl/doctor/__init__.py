"""The command ``npuctl doctor``: checks of one node or of a whole cluster, and what to do about each problem.

Checks only read. Each check looks at one thing and reports findings: a sentence, a severity, and what to do.
"""
