"""Leaf switches: the choice of a job's servers, so that its pods communicate through few switches.

docs/spec/switch-affinity.md. ``table.py`` reads which servers each switch has; ``rooms.py`` says what a job sees of a
switch; ``v1.py``, ``v2.py`` and ``single_layer.py`` are the rules, ``replacing.py`` places some pods of a job whose
others stay, ``returning.py`` says to which switches pods may return. All of it are pure functions:
``allocator/state/switches.py`` feeds them, and the policy ``allocator/gangs/switch_affinity.py`` asks them.
"""
