"""How both programs serve HTTP: within limits, whatever their callers do."""
