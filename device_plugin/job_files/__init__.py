"""Mirrors the ConfigMaps of the node's jobs into folders of the node, where training frameworks read them."""
