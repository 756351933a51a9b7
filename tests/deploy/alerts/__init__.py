"""The alerts of the chart, on series that are recorded from the programs while a fault is made."""
