"""The pods of this node and which chips each was given. Pure state and rules: no input or output."""
