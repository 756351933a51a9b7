"""How both programs read their settings, start and end."""
